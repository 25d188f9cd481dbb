"""Choose the snapshot that brings a node to the ledger's head with the fewest bytes.

Pure functions. Only missing bytes cost anything: a snapshot that is not here, and the updates of
the outer steps after it that are not here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from p2ptrain.ids import Digest


@dataclass(frozen=True, slots=True)
class StartSnapshot:
    """A snapshot of θ and m as they are before outer step `step`."""

    step: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class HeldStates:
    """The held snapshots, and the outer steps whose update is held or that have none."""

    snapshots: Collection[Digest] = frozenset()
    steps: Collection[int] = frozenset()


def choose_start(
    *,
    target_step: int,
    starts: Iterable[StartSnapshot],
    here: HeldStates,
    snapshot_bytes: int,
    update_bytes: int,
    first_step: int = 0,
) -> StartSnapshot | None:
    """Return the start with the fewest bytes to `target_step`; of equal ones the newest.

    A snapshot after the target is useless, since the ledger here does not reach it. So is one
    before `first_step`, where a pruned ledger begins: the updates after it are not known.
    """

    def cost_bytes(start: StartSnapshot) -> int:
        fetched = 0 if start.digest in here.snapshots else snapshot_bytes
        after = range(start.step, target_step)
        return fetched + update_bytes * sum(step not in here.steps for step in after)

    reachable = [each for each in starts if first_step <= each.step <= target_step]
    return min(reachable, key=lambda each: (cost_bytes(each), -each.step), default=None)


def leap_pays(*, updates: int, snapshot_bytes: int, update_bytes: int) -> bool:
    """Return whether a snapshot has fewer bytes than the updates that lead to it from here."""
    return updates * update_bytes > snapshot_bytes
