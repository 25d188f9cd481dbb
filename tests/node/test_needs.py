"""The estimate of a node's memory adds up the vectors and updates that the node holds at once."""

from __future__ import annotations

from functools import partial

from p2ptrain.archive.update_format import published_formats
from p2ptrain.ids import RunId
from p2ptrain.prepare.node_memory import NodeMemory, memory_of, node_memory
from p2ptrain.run import RunManifest
from p2ptrain.sync import SyncSpec
from p2ptrain.sync.fragments import Fragment
from p2ptrain.testing.published import manifest_of
from tests.node.rig import ANN

RUN = RunId("a" * 64)


def needs(**sync: object) -> tuple[NodeMemory, RunManifest]:
    """Return the estimate for a run with these sync settings, and the run's manifest."""
    manifest = manifest_of(ANN.peer, sync=SyncSpec(**sync))  # type: ignore[arg-type]
    return memory_of(RUN, manifest), manifest


def test_seed_needs_theta_momentum_and_the_update_it_applies() -> None:
    node, manifest = needs()
    update = published_formats(RUN, manifest)[0].payload_bytes
    assert node.of_seed == node.theta + node.momentum + update
    assert node.total == node.of_seed + node.local + update


def test_fragment_of_several_ranges_needs_a_contiguous_copy() -> None:
    apart, whole = Fragment(((0, 10), (50, 100))), Fragment(((10, 50),))
    node = partial(node_memory, 100, 100, feedback=False)
    assert node(cut=[apart, whole]).fragment == 8 * 60
    assert node(cut=[whole]).fragment == 0
