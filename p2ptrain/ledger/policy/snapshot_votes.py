"""Decide which snapshot a Commit may name: one that a quorum of voters reports to have written
(SPEC.md S8).

Equal entries lead to equal states. So if two nodes report different snapshots of one step, one of
them is wrong or lies, and the reports do not show which one. So a snapshot counts only once a
quorum has written it. That does not delay commits: until then, Commits do not name it.

Of the voters that wrote a snapshot, a proposer counts only those that are up, because they can
accept the Commit at once. A voter that is asked to accept counts all of them. So it can accept a
snapshot that it did not write itself because it was busy, away or new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.ledger.policy.reports import Reports


def snapshot_to_name(rules: Rules, state: LedgerState, reports: Reports) -> SnapshotRef | None:
    """Return the newest snapshot that a quorum wrote, if it is newer than the last certified one.
    Never return a snapshot that differs from this node's own snapshot of the same step.
    """
    newest = -1 if state.snapshot is None else state.snapshot.step
    own = reports.own_snapshots
    vouched = [
        (step, digest)
        for step, digest in _vouched(rules, state, reports, reports.down)
        if newest < step <= state.step and own.get(step, digest) == digest
    ]
    return SnapshotRef(*max(vouched)) if vouched else None


def is_vouched_for(
    rules: Rules, state: LedgerState, reports: Reports, snapshot: SnapshotRef
) -> bool:
    """Return whether this node wrote this snapshot, or knows that a quorum did."""
    named = (snapshot.step, snapshot.digest)
    return named in reports.own_snapshots.items() or named in _vouched(rules, state, reports)


def _vouched(
    rules: Rules, state: LedgerState, reports: Reports, apart: AbstractSet[PeerId] = frozenset()
) -> list[tuple[int, Digest]]:
    """Return the (step, digest) of each snapshot that a quorum of voters reports to have written,
    not counting voters in `apart`. There is at most one for each step, since only the last report
    of a voter about a step counts.
    """
    voters = state.voters
    said = {
        voter: reports.snapshots.get(voter, {}).items() for voter in voters if voter not in apart
    }
    counts = Counter(taken for each in said.values() for taken in each)
    return [
        taken
        for taken, count in counts.items()
        if quorum.is_enough(
            rules.quorum, len(voters), count, first_present=taken in said.get(voters[0], ())
        )
    ]
