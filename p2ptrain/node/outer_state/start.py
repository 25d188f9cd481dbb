"""Where to start from: the snapshot that brings a node to the ledger's head with the fewest bytes.

Pure. Only what is lacking costs anything: of a snapshot that is not here all of it, and of the
outer steps after it the updates that are not here.
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
    """What need not be fetched: snapshots, and the outer steps that have their update here, or that
    have none.
    """

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
    """The cheapest way to `target_step`; of equally cheap ones the newest.

    A snapshot from beyond the target is of no use: the ledger here does not reach it. Nor is one
    from before `first_step`, where a pruned ledger begins: the updates after it are not known.
    """

    def cost_bytes(start: Start) -> int:
        fetched = 0 if start.digest in here.snapshots else snapshot_bytes
        after = range(start.step, target_step)
        return fetched + update_bytes * sum(step not in here.steps for step in after)

    reachable = [each for each in starts if first_step <= each.step <= target_step]
    return min(reachable, key=lambda each: (cost_bytes(each), -each.step), default=None)


def leap_pays(*, updates: int, snapshot_bytes: int, update_bytes: int) -> bool:
    """Whether a snapshot takes fewer bytes than so many updates that lead to it from here."""
    return updates * update_bytes > snapshot_bytes
