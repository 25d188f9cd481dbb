"""Check a changed allowlist before the organiser signs it: `p2ptrain allow`.

A sequence number must not be used twice, because a peer that already holds a list with that number
would never accept another one. Peers ignore voters that are not on the list. If the remaining
voters were not a quorum, they could never agree on a new roster (the next list of members).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from p2ptrain.cli.commands.admission.grants import has_delegates
from p2ptrain.cli.control_client import send_command
from p2ptrain.errors import ConfigError, P2PTrainError, RemoteProtocolError, TryLater, counted
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.ids import PeerId
    from p2ptrain.run import Allowlist, Role, Run

ANSWER_S = 15.0
"""Seconds to wait for the node's answer. The node itself waits up to five seconds for its peers."""

ANYWAY = "repeat the command with --anyway"


def voters_heard(where: Home, run: Run, *, anyway: bool) -> tuple[PeerId, ...]:
    """Make sure that this home has the newest list, and return the run's voters. Do not check
    anything if `anyway`, or if the run is open.

    Raises P2PTrainError: no peer could be asked; see `ask_neighbours`."""
    asks = not anyway and run.manifest.admission != "open"
    return ask_neighbours(where) if asks else ()


def changed_list(
    where: Home, run: Run, peer: PeerId, voters: Sequence[PeerId], *, role: Role | None
) -> tuple[Allowlist, bool]:
    """Return the changed list, unsigned, and True: `peer` has this role, or is revoked. If nothing
    changes, return the current list and False. `voters` are those whose quorum must stay on the
    list; none if it does not matter.

    An organiser decides with the decisions of other organisers that this home has and that the
    newest list lacks.

    Raises P2PTrainError: the list is not safe to sign.
    """
    from p2ptrain.run import TRAINER, Allowlist, load_allowlist, load_lists

    held = load_allowlist(where.allowlist, run)
    before = held.allowlist if held else Allowlist.of(run.id, 1, [run.manifest.organiser])
    for each in load_lists(where.to_merge, run):
        before = before.merged(each.allowlist).numbered(before.sequence)
    tracks = counts_revisions(where, run)
    says_so = peer in before.revoked or not tracks
    if before.roles.get(peer) == role and (role is not None or says_so):
        return before, False
    try:
        after = (
            before.without_peer(peer, tracks=tracks)
            if role is None
            else before.with_peer(peer, role, tracks=tracks)
        )
    except ValueError as exc:
        raise ConfigError(f"the allowlist cannot be changed: {exc}", code="ALLOW-FULL") from exc
    if role != TRAINER:
        check_quorum(run, voters, after, peer)
    return after, True


def counts_revisions(where: Home, run: Run) -> bool:
    """Return whether lists of this run count revisions (see `run/allowlist`): there are other
    organisers or delegates."""
    return len(run.organisers) > 1 or has_delegates(where, run)


def ask_neighbours(where: Home) -> tuple[PeerId, ...]:
    """Let the node that runs here ask its neighbours for the newest list, and store it in the home.
    Return the run's voters; () if the run has not begun.

    Raises:
        TryLater: no peer could be asked, and a peer may have a newer list (ALLOW-UNHEARD); or the
            node is not ready.
        P2PTrainError: the node does not answer, or its answer is malformed.
    """
    from p2ptrain.archive.chain_reader import records_in

    try:
        told = send_command(where.root, "newest-allowlist", deadline_s=ANSWER_S)
    except P2PTrainError as error:
        if error.code != "NO-NODE":
            raise
        if next(records_in(where.ledger), None) is None:
            return ()  # The run has not begun, so only this home has allowlists for it.
        raise _nobody_answered(
            "no node is running in this home, so other peers cannot be asked for the newest list",
            f"start it ({to_paste(where.root, 'node')}) and repeat the command",
        ) from error
    heard, others, voters = (told.get(name) for name in ("heard", "others", "voters"))
    if type(heard) is not int or not _are_peers(others) or not _are_peers(voters):
        raise RemoteProtocolError("the node in this home gave a malformed answer about allowlists")
    if others and not heard:
        raise _nobody_answered(
            "the node in this home is not connected to any peer that it could ask for the "
            "newest allowlist",
            "repeat the command when other peers are online again",
        )
    assert isinstance(voters, list)
    return tuple(voters)


def _are_peers(told: object) -> bool:
    from p2ptrain.identity import is_peer_id

    return isinstance(told, list) and all(map(is_peer_id, told))


def _nobody_answered(what: str, do: str) -> TryLater:
    return TryLater(
        what,
        code="ALLOW-UNHEARD",
        likely=(
            "if this home is a restored backup, other peers may hold a newer list, and would "
            "reject a different list with the same number"
        ),
        do=f"{do}; if you are sure that this home has the newest list, {ANYWAY}",
    )


def check_quorum(run: Run, voters: Sequence[PeerId], after: Allowlist, peer: PeerId) -> None:
    """Raise TryLater (ALLOW-QUORUM) if the run could never reach a quorum again without `peer`."""
    from p2ptrain.ledger.chain.quorum import missing
    from p2ptrain.names import label

    if not voters:
        return
    stay = {*run.organisers, *run.manifest.founders, *after.peers}
    gone = missing(run.manifest.policy.quorum, voters, stay)
    if peer not in gone:
        return
    raise TryLater(
        "this list would leave too few voters for the run to agree on anything, so the run "
        "would stop for ever",
        code="ALLOW-QUORUM",
        evidence=[
            f"{counted(len(voters), 'peer votes', 'peers vote')} at present; "
            "these voters would be off the list:",
            *(f"{peer} {label(peer)}" for peer in gone),
        ],
        likely=(
            "a peer that is off the list keeps its vote until the next roster, but other peers no "
            "longer listen to it"
        ),
        do=(
            "if you have just removed other peers, try again after the next roster (list of "
            f"members), which takes their votes; if you are sure, {ANYWAY}"
        ),
    )
