"""Decide which events and losses are worth a message, and under which cause. Only pure functions.

A wait and a branch are "stalled": no outer step ends here. A warning is told by its code, which
this node wrote at the end of the text. Other members that are lost are not "dropped": volunteers
come and go, and the word is about this node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import median

from p2ptrain.observe.series import EventRow, StepRow

BY_KIND = {"stall": "stalled", "branch": "stalled", "end": "ended"}
BY_CODE = {
    "ISOLATED": "stalled",
    "SYNC-DROPPED": "dropped",
    "DISK-LOW": "disk",
    "DISK-SLOW": "disk",
    "CKPT-HASH": "disk",
    "NAN": "loss-spike",
}

SPIKE_FACTOR = 1.3
"""A loss in nats that is higher by 30 % means that most of what was learned lately is lost. Noise
of the batch is a few per cent."""

LOSSES_USED = 20
LOSSES_MIN = 5
"""Number of earlier losses without which there is no median to compare with."""

LATER_STEPS = 2
"""Number of later outer steps after which the reports of a step are complete."""

_CODE = re.compile(r"\(([A-Z][A-Z0-9-]{0,40})\)\.\Z")


def cause_of(event: EventRow) -> str:
    """Return the cause under which the event is told; "" if it is not told."""
    if event.kind == "warning":
        found = _CODE.search(event.text)
        return BY_CODE.get(found[1], "") if found else ""
    return BY_KIND.get(event.kind, "")


def is_spike(earlier: Sequence[float], newest: float, factor: float = SPIKE_FACTOR) -> bool:
    """Return whether the loss `newest` is above the median of the last 20 in `earlier` by `factor`.
    A loss that is not finite is a spike. Losses in `earlier` that are not finite do not count."""
    if not math.isfinite(newest):
        return True
    known = [loss for loss in earlier if math.isfinite(loss)][-LOSSES_USED:]
    return len(known) >= LOSSES_MIN and newest > factor * median(known) > 0


def spikes_in(rows: Sequence[StepRow], after: int) -> tuple[int, str]:
    """Return the newest outer step whose loss can be judged, and what to tell about the losses of
    the steps after step `after`; "" if they are usual. `rows` are ordered by step. Rows that
    members told to a newcomer are the past: they are compared with, but not judged."""
    if not rows:
        return after, ""
    judged = max([after, *(row.step for row in rows if row.step <= rows[-1].step - LATER_STEPS)])
    for words, found in (
        ("held-out loss", [(row, row.held_out) for row in rows]),
        ("training loss, as members report it,", [(row, row.loss) for row in rows]),
    ):
        known = [(row, loss) for row, loss in found if loss is not None and row.step <= judged]
        for place, (row, loss) in enumerate(known):
            earlier = [value for _, value in known[max(0, place - LOSSES_USED) : place]]
            if row.step > after and row.told_by is None and is_spike(earlier, loss):
                usual = f"; the median of the outer steps before is {median(earlier):.3f}"
                return judged, f"The {words} of outer step {row.step} is {loss:.3f}{usual}."
    return judged, ""
