"""Which snapshot a Commit may name: one that a quorum of the voters says it wrote (SPEC.md S8).

Equal entries make equal states, so who wrote another one errs, or lies; a single word does not tell
who it is. So the first to have written is not believed before enough others have written the same.
That costs a commit nothing: it names no snapshot then, and a later one does.

A proposer counts only those who are up: they accept at once what they wrote. A voter counts all, so
it need not have written what it accepts: who was busy, or away, or has just begun to vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.ledger.policy.reports import View


def snapshot_to_name(rules: Rules, state: LedgerState, view: View) -> SnapshotRef | None:
    """The newest that is vouched for and not certified yet. What this node itself wrote otherwise
    it does not name, nor does it accept it.
    """
    newest = -1 if state.snapshot is None else state.snapshot.step
    own = view.own_snapshots
    vouched = [
        (step, digest)
        for step, digest in _vouched(rules, state, view, view.down)
        if newest < step <= state.step and own.get(step, digest) == digest
    ]
    return SnapshotRef(*max(vouched)) if vouched else None


def is_vouched_for(rules: Rules, state: LedgerState, view: View, snapshot: SnapshotRef) -> bool:
    """Whether this node wrote this very snapshot, or heard that a quorum did."""
    named = (snapshot.step, snapshot.digest)
    return named in view.own_snapshots.items() or named in _vouched(rules, state, view)


def _vouched(
    rules: Rules, state: LedgerState, view: View, apart: AbstractSet[PeerId] = frozenset()
) -> list[tuple[int, Digest]]:
    """What a quorum says it wrote, without those `apart`. Of one step never two, since a voter says
    one of each.
    """
    voters = state.voters
    said = {voter: view.snapshots.get(voter, {}).items() for voter in voters if voter not in apart}
    voices = Counter(taken for each in said.values() for taken in each)
    return [
        taken
        for taken, count in voices.items()
        if quorum.is_enough(
            rules.quorum, len(voters), count, first_present=taken in said.get(voters[0], ())
        )
    ]
