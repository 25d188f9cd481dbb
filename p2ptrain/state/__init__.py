"""The outer state in shared memory: θ and m, their layout, and the vectors shared with trainers."""

from p2ptrain.state.arena import Arena
from p2ptrain.state.frozen import Frozen
from p2ptrain.state.layout import Layout, LayoutEntry
from p2ptrain.state.outer_state import (
    SNAPSHOT,
    OuterState,
    snapshot_meta,
    write_frozen,
    write_state,
)
from p2ptrain.state.residual import Residual
from p2ptrain.state.shared_vector import Float32Vector, SharedVector

__all__ = [
    "SNAPSHOT",
    "Arena",
    "Float32Vector",
    "Frozen",
    "Layout",
    "LayoutEntry",
    "OuterState",
    "Residual",
    "SharedVector",
    "snapshot_meta",
    "write_frozen",
    "write_state",
]
