"""`p2ptrain peers sign`: add an organiser's signature to a document of another organiser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.admission.allow import notify_list
from p2ptrain.cli.commands.admission.proposals import (
    FILE_BYTES_MAX,
    missing_signatures,
    offer,
    read_proposal,
)
from p2ptrain.cli.commands.run_amend import notify_amendments
from p2ptrain.cli.commands.run_hand_over import check_keys, save
from p2ptrain.cli.homes import HomeOption, open_home, organiser_of, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.errors import ConfigError, RemoteProtocolError, TryLater, counted

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.run import (
        Allowlist,
        Run,
        Signed,
        SignedAllowlist,
        SignedAmendment,
        SignedHandOver,
    )

EXAMPLES = examples(
    "p2ptrain peers sign p2ptrain-proposal:…", "p2ptrain peers sign proposal-allowlist-1a2b3c4d5e6f"
)


def sign(
    proposal: Annotated[
        str,
        typer.Argument(
            metavar="PROPOSAL", help="The string or the file that another organiser sent you."
        ),
    ],
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Sign a list that lacks decisions of the newest list."),
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign an allowlist, an amendment or a hand-over that another organiser proposes.

    The output shows what the document changes. When enough organisers have signed, it is published.
    """
    where = open_home(home)
    run = run_of(where)
    organiser = organiser_of(where, run)
    made = _decoded(read_proposal(proposal), run)
    lines = _check(where, run, made, anyway=anyway)
    signed = made.signed.also_by(organiser)
    for line in lines:
        progress(line)
    missing = missing_signatures(run, signed)
    facts: dict[str, object] = {"kind": signed.kind, "signed_by": list(signed.signers)}
    if missing:
        facts |= offer(where, run, signed, quiet=as_json).facts
    else:
        _publish(where, run, signed)
        words = counted(len(signed.signers), "organiser has", "organisers have")
        if not as_json:
            result(f"published: {words} signed this {signed.kind}")
    if as_json:
        result_json(facts | {"published": not missing, "changes": lines})


def _decoded(data: bytes, run: Run) -> SignedAllowlist | SignedAmendment | SignedHandOver:
    """Return the document in `data`. Raises ConfigError: it is not a proposal of an organiser of
    this run."""
    from p2ptrain.encoding import unpack
    from p2ptrain.run import SignedAllowlist, SignedAmendment, SignedHandOver

    try:
        value = unpack(data, bytes_max=FILE_BYTES_MAX)
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "amendment":
            return SignedAmendment.from_bytes(data, run, signatures_min=1)
        if kind == "hand-over":
            return SignedHandOver.from_bytes(data, run.id)
        return SignedAllowlist.from_bytes(data, run, signatures_min=1)
    except RemoteProtocolError as exc:
        raise ConfigError(
            f"this is not a proposal of an organiser of run {run.manifest.name!r}: {exc.what}",
            code="PROPOSAL",
            likely="it was damaged, or it is for another run",
            do="ask the organiser who made it to send it again",
        ) from exc


def _check(
    where: Home,
    run: Run,
    made: SignedAllowlist | SignedAmendment | SignedHandOver,
    *,
    anyway: bool,
) -> list[str]:
    """Return lines that say what the document changes.

    Raises TryLater, ConfigError: it was made from an older list, or it has no effect any more."""
    from p2ptrain.run import SignedAllowlist, SignedHandOver, load_allowlist, load_amendments

    if isinstance(made, SignedHandOver):
        check_keys(run, made)
        said = made.hand_over
        return [f"the organiser's key {said.old}", f"is replaced by {said.new}"]
    if not isinstance(made, SignedAllowlist):
        held = [each.amendment.number for each in load_amendments(where.amendments, run)]
        number = made.amendment.number
        if number in held:
            raise ConfigError(
                f"this home already has an amendment with number {number}",
                code="PROPOSAL-OLD",
                do="ask the organiser to make the proposal again",
            )
        return [f"amendment {number}: {made.amendment.words}"]
    current = load_allowlist(where.allowlist, run)
    if current is None:
        return _differences(None, made.allowlist)
    if not made.replaces(current) or not (anyway or made.allowlist.covers(current.allowlist)):
        raise TryLater(
            f"the proposal was made from an older list; the newest one here has number "
            f"{current.allowlist.sequence}",
            code="PROPOSAL-OLD",
            likely="another list was published since then, and this one would undo its decisions",
            do="ask the organiser to make the proposal again",
        )
    return _differences(current.allowlist, made.allowlist)


def _differences(before: Allowlist | None, after: Allowlist) -> list[str]:
    from p2ptrain.names import label

    old, new = before.roles if before else {}, after.roles
    lines = [f"allowlist number {after.sequence}"]
    for peer in sorted(old.keys() | new | after.revoked):
        if old.get(peer) != new.get(peer):
            lines.append(f"  {label(peer)} {peer}: {new.get(peer, 'revoked')}")
        elif peer in after.revoked and (before is None or peer not in before.revoked):
            lines.append(f"  {label(peer)} {peer}: revoked, so delegates cannot admit it")
    return lines


def _publish(where: Home, run: Run, signed: Signed) -> None:
    from p2ptrain.archive.home import signing_allowlist
    from p2ptrain.run import (
        SignedAllowlist,
        SignedAmendment,
        SignedHandOver,
        load_amendments,
        save_allowlist,
        save_amendments,
    )

    data = signed.to_bytes()
    if signed.kind == "hand-over":
        save(where, run, SignedHandOver.from_bytes(data, run.id))
        return
    if signed.kind == "amendment":
        held = load_amendments(where.amendments, run)
        save_amendments(where.amendments, [*held, SignedAmendment.from_bytes(data, run)])
        notify_amendments(where)
        return
    with signing_allowlist(where):
        save_allowlist(where.allowlist, SignedAllowlist.from_bytes(data, run))
    notify_list(where)
