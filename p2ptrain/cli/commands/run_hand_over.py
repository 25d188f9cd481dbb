"""`p2ptrain run hand-over`: replace an organiser's key by a new one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.control_client import notify
from p2ptrain.cli.homes import HomeOption, open_home, organiser_of, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result_json, result_or_json
from p2ptrain.cli.peer_choice import chosen_peer
from p2ptrain.errors import ConfigError
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.ids import PeerId
    from p2ptrain.run import HandOver, Run, SignedHandOver

EXAMPLES = examples(
    "p2ptrain run hand-over 12D3KooWNEW… --home OLD_HOME",
    "p2ptrain run hand-over 12D3KooWNEW… --lost 12D3KooWOLD… --home CO_ORGANISER",
)


def hand_over(
    new: Annotated[
        str,
        typer.Argument(
            metavar="PEER",
            help="The new key: its peer id, from p2ptrain id in its home. If it asks to join or is "
            "on the allowlist, its name or a part of its id is enough.",
        ),
    ],
    lost: Annotated[
        str | None,
        typer.Option(
            "--lost",
            metavar="PEER",
            help="Another organiser whose key is lost or stolen: its name, its peer id, or a "
            "unique part of the id.",
            show_default="the key in this home",
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Sign even if a peer may have a newer allowlist.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace an organiser's key by a new one. The run and its id do not change.

    Documents that the old key has signed stay valid, and it cannot sign new ones. If the old key is
    lost, the other organisers sign: as many as must sign an allowlist. The key of a run's only
    organiser cannot be replaced once it is lost, so name co-organisers when you publish a run.
    """
    from p2ptrain.cli.commands.admission.peers import asking_or_listed
    from p2ptrain.cli.commands.admission.proposals import missing_signatures, offer
    from p2ptrain.names import label
    from p2ptrain.run import SignedHandOver

    where = open_home(home)
    run = run_of(where)
    if lost is not None and len(run.organisers) == 1:
        raise ConfigError(
            f"run {run.manifest.name!r} has one organiser, so a lost key cannot be replaced",
            code="HAND-OVER-ALONE",
            likely="nobody else may sign for the organiser; delegates can still admit peers",
            do="keep a backup of identity.key, and name co-organisers in the next run",
        )
    organiser = organiser_of(where, run)
    old = chosen_peer(lost, run.organisers, of="organisers") if lost else organiser.peer
    chosen = asking_or_listed(where, new)
    made = SignedHandOver.publish(organiser, _wanted(where, run, old, chosen, anyway))
    check_keys(run, made)
    said = made.hand_over
    facts: dict[str, object] = {"number": said.number, "old": said.old, "new": said.new}
    if missing_signatures(run, made.signed):
        offered = offer(where, run, made.signed, quiet=as_json)
        if as_json:
            result_json(facts | offered.facts)
        return
    save(where, run, made)
    result_or_json(f"{label(said.old)} is replaced by {label(said.new)}", facts, as_json=as_json)
    progress("start a node in the home of the new key, so that you can use it")


def _wanted(where: Home, run: Run, old: PeerId, new: PeerId, anyway: bool) -> HandOver:
    from p2ptrain.cli.commands.admission.allow_checks import voters_heard
    from p2ptrain.run import HandOver, load_allowlist, load_amendments

    voters_heard(where, run, anyway=anyway)  # So that this home has the newest list.
    held = load_allowlist(where.allowlist, run)
    amendments = [each.amendment.number for each in load_amendments(where.amendments, run)]
    return HandOver(
        run.id,
        len(run.hand_overs) + 1,
        old,
        new,
        1 + (held.allowlist.sequence if held else 0),
        1 + max(amendments, default=0),
        int(time.time()),
    )


def check_keys(run: Run, made: SignedHandOver) -> None:
    """Raise ConfigError, code HAND-OVER-KEY, unless the old key is an organiser's and the new one
    was never one."""
    said = made.hand_over
    used = {*run.manifest.organiser_keys, *(each.hand_over.new for each in run.hand_overs)}
    if said.old not in run.organisers or said.new in used:
        raise ConfigError(
            "the old key is not an organiser's now"
            if said.old not in run.organisers
            else "the new key is or was an organiser's already",
            code="HAND-OVER-KEY",
            evidence=[f"organiser {peer}" for peer in run.organisers],
            do="start a node in an empty home, and give the peer id that it prints",
        )


def save(where: Home, run: Run, made: SignedHandOver) -> None:
    """Store a hand-over that enough organisers have signed, and tell the node in this home."""
    from p2ptrain.run import save_hand_overs

    after = run.with_hand_overs([made])
    if after == run:
        raise ConfigError(
            "the hand-over is not valid",
            code="HAND-OVER-KEY",
            do=f"look at the organisers with: {to_paste(where.root, 'run show')}",
        )
    save_hand_overs(where.hand_overs, after.hand_overs)
    notify(
        where.root,
        "reload-hand-overs",
        without_node="no node is running in this home; the hand-over is published when one starts",
    )
