"""`p2ptrain peers delegate`: let a member admit volunteers or, in an open run, vote; or take that
right back.

The command makes an amendment that names all delegates from an outer step on. The members agree on
it in their ledger, so it holds even if all organisers are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from p2ptrain.cli.commands.admission.allow import notify_list
from p2ptrain.cli.commands.admission.role_option import role_from
from p2ptrain.cli.homes import HomeOption, open_home, organiser_of, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result_or_json
from p2ptrain.cli.peer_choice import chosen_peer
from p2ptrain.errors import ConfigError, counted
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.identity import Identity
    from p2ptrain.ids import PeerId
    from p2ptrain.run import Run

Right = Literal["admitters", "voters"]
"""The right that is delegated, named like the amendment's field."""

EXAMPLES = examples(
    "p2ptrain peers delegate brave-otter",
    "p2ptrain peers delegate brave-otter --from-step 120",
    "p2ptrain peers delegate --vote brave-otter       in an open run",
    "p2ptrain peers delegate --revoke brave-otter",
)


def delegate(
    peer: Annotated[
        str,
        typer.Argument(
            metavar="PEER", help="Name, unique beginning of a peer id, or whole peer id."
        ),
    ],
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Take the right back instead of giving it.")
    ] = False,
    vote: Annotated[
        bool, typer.Option("--vote", help="Delegate a vote. This is possible in open runs only.")
    ] = False,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from-step",
            metavar="N",
            help="Outer step from which this applies.",
            show_default="the earliest possible one",
        ),
    ] = None,
    drop_peers: Annotated[
        bool,
        typer.Option(
            "--drop-peers", help="With --revoke: do not keep the peers that the delegate admitted."
        ),
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a member admit volunteers with `p2ptrain peers approve` on its own node or, with --vote,
    let it vote in an open run, in which otherwise only the founders vote.

    Your revocations and denials outrank a delegate's decisions. If you take the right back, the
    peers that the delegate admitted are put on your allowlist first, unless you give --drop-peers.
    """
    where = open_home(home)
    run = run_of(where)
    organiser = organiser_of(where, run)
    right: Right = "voters" if vote else "admitters"
    _require_meaning(run, right)
    now = _delegates(where, run, right)
    known = now if revoke else (_voter_candidates if vote else _members)(where, run)
    chosen = chosen_peer(peer, known, of="delegates" if revoke else "members")
    after = _changed(where, now, chosen, right, revoke=revoke)
    kept: list[PeerId] = []
    if revoke and not (drop_peers or vote):
        kept = keep_peers(where, run, organiser, chosen, as_json)
    _amend(where, run, organiser, right, after, from_step, kept, as_json=as_json)
    progress(f"the whole id of {label_of(chosen)} is {chosen}")


def _require_meaning(run: Run, right: Right) -> None:
    """Raise ConfigError if nobody needs this right in `run`."""
    is_open = run.manifest.admission == "open"
    if is_open and right == "admitters":
        raise ConfigError(
            f"run {run.manifest.name!r} is open to everyone, so nobody has to admit peers",
            code="AMEND-VALUE",
            do="there is nothing to do; add --vote to let a member vote",
        )
    if right == "voters" and not is_open:
        raise ConfigError(
            f"run {run.manifest.name!r} has an allowlist, so every member that has trained votes",
            code="AMEND-VALUE",
            do="there is nothing to do; without --vote, the member may admit volunteers",
        )


def label_of(peer: PeerId) -> str:
    from p2ptrain.names import label

    return label(peer)


def _changed(
    where: Home, now: set[PeerId], chosen: PeerId, right: Right, *, revoke: bool
) -> list[PeerId]:
    """Return the delegates with or without `chosen`. Raises ConfigError: this changes nothing, or
    there would be too many."""
    from p2ptrain.ledger.chain.values import DELEGATES_MAX

    if (chosen in now) != revoke:
        raise ConfigError(
            f"{label_of(chosen)} is {'not a' if revoke else 'a'} delegate already",
            code="AMEND-VALUE",
            evidence=[f"delegates: {', '.join(map(label_of, sorted(now))) or 'none'}"],
            do="choose another peer",
        )
    after = sorted(now ^ {chosen})
    command = f"peers delegate --revoke{' --vote' if right == 'voters' else ''}"
    if len(after) > DELEGATES_MAX:
        raise ConfigError(
            f"a run has at most {DELEGATES_MAX} delegates of each kind",
            code="AMEND-VALUE",
            do=f"take the right back from one: {to_paste(where.root, command)}",
        )
    return after


def _amend(
    where: Home,
    run: Run,
    organiser: Identity,
    right: Right,
    delegates: Sequence[PeerId],
    from_step: int | None,
    kept: Sequence[PeerId],
    *,
    as_json: bool,
) -> None:
    """Sign the amendment that names `delegates`, and publish it or pass it on as a proposal."""
    from p2ptrain.cli.commands.admission.proposals import passed_on
    from p2ptrain.cli.commands.run_amend import amend, course_of, next_step
    from p2ptrain.run import Amendment, load_amendments

    held = load_amendments(where.amendments, run)
    step = from_step or next_step(run, course_of(where, run), held)
    wanted = Amendment(run.id, 1, step, **{right: tuple(delegates)})  # type: ignore[arg-type]  # both lists
    made = amend(where, run, organiser, wanted, far=True)
    facts = made.amendment.facts | {"digest": made.digest, "kept_peers": list(kept)}
    if passed_on(where, run, made, as_json=as_json, more=facts):
        return
    words = f"amendment {made.amendment.number}: {made.amendment.words}"
    result_or_json(words, facts, as_json=as_json)
    progress(
        f"this applies from outer step {step} on, once the members have agreed on it; to check, "
        f"run: {to_paste(where.root, 'status')}"
    )


def _delegates(where: Home, run: Run, right: Right) -> set[PeerId]:
    """Return the delegates after the newest amendment in this home, agreed or not."""
    from p2ptrain.archive.admission import sorted_by_number
    from p2ptrain.run import load_amendments

    found: set[PeerId] = set()
    for each in sorted_by_number(it.amendment for it in load_amendments(where.amendments, run)):
        named: tuple[PeerId, ...] | None = getattr(each, right)
        found = found if named is None else set(named)
    return found


def _voter_candidates(where: Home, run: Run) -> list[PeerId]:
    """Return the members of an open run that are not founders, by the ledger in this home."""
    from p2ptrain.cli.commands.ledger import chain_of

    links = chain_of(run, where.ledger).links
    return sorted(set(links[-1].after.members) - set(run.manifest.founders)) if links else []


def _members(where: Home, run: Run) -> list[PeerId]:
    """Return the peers that may train."""
    from p2ptrain.cli.commands.admission.grants import granted
    from p2ptrain.run import load_allowlist

    signed = load_allowlist(where.allowlist, run)
    listed = signed.allowlist.peers if signed else ()
    return [*run.manifest.founders, *listed, *(each.grant.peer for each in granted(where, run))]


def keep_peers(
    where: Home, run: Run, organiser: Identity, delegate: PeerId, as_json: bool
) -> list[PeerId]:
    """Put the peers that `delegate` has admitted on the allowlist, because its grants end with the
    delegation. Return these peers. If several organisers must sign the list, make a proposal."""
    from p2ptrain.archive.home import signing_allowlist
    from p2ptrain.cli.commands.admission.allow_checks import ask_neighbours
    from p2ptrain.cli.commands.admission.grants import granted
    from p2ptrain.cli.commands.admission.proposals import missing_signatures, offer
    from p2ptrain.run import Allowlist, SignedAllowlist, load_allowlist, save_allowlist

    grants = [each.grant for each in granted(where, run) if each.delegate == delegate]
    if grants:
        ask_neighbours(where)
    with signing_allowlist(where):
        held = load_allowlist(where.allowlist, run)
        before = held.allowlist if held else Allowlist.of(run.id, 1, [organiser.peer])
        after = before
        for each in grants:
            if each.peer not in before.roles and each.peer not in before.revoked:
                after = after.with_peer(each.peer, role_from(each.role), tracks=True)
        kept = sorted(after.roles.keys() - before.roles)
        if not kept:
            return []
        signed = SignedAllowlist.publish(organiser, after.numbered(before.sequence + 1))
        if missing := missing_signatures(run, signed.signed):
            offer(where, run, signed.signed, quiet=as_json)
        else:
            save_allowlist(where.allowlist, signed)
    progress(f"{counted(len(kept), 'peer')} that the delegate admitted: now on the allowlist")
    if not missing:
        notify_list(where)
    return kept
