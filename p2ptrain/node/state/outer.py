"""θ, m and the outer step that they belong to. Written by `outer_state/`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.observe.states import FetchingSnapshot
from p2ptrain.state import OuterState, Residual


class Advance(NamedTuple):
    """A moment at which θ moved: by the monotonic clock, and by the seconds spent in inner steps
    until then."""

    at_s: float
    inner_s: float


@dataclass(slots=True)
class Outer:
    vectors: OuterState
    residuals: tuple[Residual, ...] = ()
    """The residual of each fragment, if the run has error feedback and this node trains.
    `reduce_task` changes their contents."""
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while θ and m are read or written as a whole."""
    step: int | None = None
    """The number of outer steps that θ and m contain; None until a first snapshot is loaded."""
    moving: bool = False
    """True while θ and m are between `step` and the next: they then belong to no outer step."""
    writing: bool = False
    """True while a snapshot is being written."""
    fetching: FetchingSnapshot | None = None
    """Progress of the snapshot being fetched, if any."""
    disowned: SnapshotRef | None = None
    """The certified snapshot that differed from our own state."""
    replaced: int = 0
    """How many times our state was found to be wrong: reads of θ before that were wrong too."""
    passed_over: Digest | None = None
    """The certified snapshot that could not be fetched; the node applies updates instead."""
    digest: tuple[int, Digest] | None = None
    """Digest of θ and m with its outer step, computed when a user asks."""
    advanced: Advance | None = None
    """The newest move of θ; None before the first one."""
    utilisation: float | None = None
    """The fraction of the last outer step's time spent in inner steps."""
