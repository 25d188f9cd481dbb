"""Where to start from: the snapshot that brings a node to the ledger's head with the fewest bytes.

Pure. A snapshot costs what must be fetched of it; each outer step after it costs an update at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2ptrain.ids import Digest


@dataclass(frozen=True, slots=True)
class Start:
    """A snapshot of θ and m as they are before outer step `step`."""

    step: int
    digest: Digest


def choose_start(
    *,
    target_step: int,
    own: Start | None,
    others: Iterable[Start],
    snapshot_bytes: int,
    update_bytes: int,
    first_step: int = 0,
) -> Start | None:
    """The cheapest way to `target_step`; of equally cheap ones the newest.

    `own` lies in our store and costs only the updates after it; the `others` must be fetched.
    A snapshot from beyond the target is of no use: the ledger here does not reach it. Nor is one
    from before `first_step`, where a pruned ledger begins: the updates after it are not known.
    """

    def cost_bytes(start: Start, fetched_bytes: int) -> int:
        return fetched_bytes + (target_step - start.step) * update_bytes

    priced = [(cost_bytes(start, snapshot_bytes), -start.step, start) for start in others]
    if own is not None:
        priced.append((cost_bytes(own, 0), -own.step, own))
    reachable = [entry for entry in priced if first_step <= entry[2].step <= target_step]
    return min(reachable, key=lambda entry: entry[:2])[2] if reachable else None


def leap_pays(*, updates: int, snapshot_bytes: int, update_bytes: int) -> bool:
    """Whether a snapshot takes fewer bytes than so many updates that lead to it from here."""
    return updates * update_bytes > snapshot_bytes
