"""The state of this node's reduces. Written by `reduce/`."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.archive.kept_sums import KeptSums
from p2ptrain.ids import PeerId
from p2ptrain.peers.heartbeat import ReduceReport
from p2ptrain.proofs.sketch_collection import SketchBook
from p2ptrain.ring import Arrangement, Reduce, ReduceStatistics
from p2ptrain.state.pseudo_gradient import Comparison


@dataclass(slots=True)
class ReduceState:
    report: ReduceReport | None = None
    """The outcome of this node's newest attempt at a reduce, as our heartbeats report it."""
    ring: Reduce | None = None
    """The reduce that is currently exchanging bytes."""
    averaging: int | None = None
    """The outer step whose update this node is computing in a reduce; None once the update is
    stored or the reduce has failed."""
    last_ring: ReduceStatistics | None = None
    """The measurements of the newest successful reduce."""
    received_bytes: int = 0
    """The bytes received in all successful reduces since this node started."""
    comparison: Comparison | None = None
    """Our work compared with the mean in the newest successful reduce."""
    arranged: Arrangement | None = None
    """The newest ring order that this node proposed."""
    sketches: SketchBook | None = None
    """The claims and stated sketches of the newest attempt, in a run with claims. Other
    participants may ask for them even after this node has finished the attempt."""
    sums: KeptSums | None = None
    """The signed sums of the newest reduces; None on a seed, and in a run without claims."""
    liars: dict[PeerId, int] = field(default_factory=dict)
    """Participants that signed a wrong sum, with the outer step of the newest one, until this node
    has accused them in an attempt."""

    def note_liar(self, peer: PeerId, step: int) -> None:
        self.liars[peer] = step
