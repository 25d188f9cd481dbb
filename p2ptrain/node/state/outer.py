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
    """When θ changed to the next outer step: the time of the monotonic clock, and the total seconds
    spent in inner steps until then."""

    at_s: float
    inner_s: float


@dataclass(slots=True)
class Outer:
    vectors: OuterState
    residuals: tuple[Residual, ...] = ()
    """The residual (rounding error that is added to the next contribution) of each fragment, if the
    run has error feedback and this node trains. `reduce_task` changes the contents."""
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while θ and m are read or written as a whole."""
    step: int | None = None
    """The number of outer steps that θ and m contain; None while no correct state is loaded."""
    moving: bool = False
    """True while an update or a snapshot changes θ and m. Meanwhile, their values are not those of
    any outer step."""
    writing: bool = False
    """True while a snapshot is being written."""
    fetching: FetchingSnapshot | None = None
    """Progress of the snapshot that is being fetched, if any."""
    disowned: SnapshotRef | None = None
    """The newest certified snapshot that differed from our own state."""
    replaced: int = 0
    """How many times our state was found to be wrong. If this number has changed since θ was read,
    that copy of θ may be wrong too."""
    passed_over: Digest | None = None
    """The newest certified snapshot that could not be fetched in place of updates, if any."""
    digest: tuple[int, Digest] | None = None
    """The outer step and digest of θ and m. Computed when a user asks for the status."""
    advanced: Advance | None = None
    """The newest change of θ to the next outer step; None before the first one."""
    utilisation: float | None = None
    """The fraction of the last outer step's time that was spent in inner steps."""
