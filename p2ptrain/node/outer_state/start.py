"""Choose the snapshot that brings a node to the ledger's head with the fewest bytes.

These functions are pure. The cost of a start is the number of missing bytes: the snapshot, if it is
not here, and the updates after it that are not here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from p2ptrain.ids import Digest


@dataclass(frozen=True, slots=True)
class Start:
    """A snapshot of θ and m as they are before outer step `step`."""

    step: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Here:
    """The stored snapshots, and the outer steps that do not need a fetch: their updates are stored,
    or they were skipped."""

    snapshots: Collection[Digest] = frozenset()
    steps: Collection[int] = frozenset()


def choose_start(
    *,
    target_step: int,
    starts: Iterable[Start],
    here: Here,
    snapshot_bytes: int,
    update_bytes: int,
    first_step: int = 0,
) -> Start | None:
    """Return the start with the fewest missing bytes up to `target_step`. In case of a tie, return
    the newest.

    A snapshot after the target cannot be used, since the ledger here does not reach it. Nor can one
    before `first_step`, where a pruned ledger begins, since the updates after it are unknown.
    """

    def cost_bytes(start: Start) -> int:
        fetched = 0 if start.digest in here.snapshots else snapshot_bytes
        after = range(start.step, target_step)
        return fetched + update_bytes * sum(step not in here.steps for step in after)

    reachable = [each for each in starts if first_step <= each.step <= target_step]
    return min(reachable, key=lambda each: (cost_bytes(each), -each.step), default=None)


def leap_pays(*, updates: int, snapshot_bytes: int, update_bytes: int) -> bool:
    """Return whether a snapshot has fewer bytes than the updates that lead to it."""
    return updates * update_bytes > snapshot_bytes
