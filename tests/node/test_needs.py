"""What a node's memory is taken for is what it then takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

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
    manifest = manifest_of(ANN.peer, sync=SyncSpec(**sync))  # type: ignore[arg-type]
    return memory_of(RUN, manifest), manifest


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that were there at a time beside what was there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_seed_has_theta_and_momentum_and_the_update_that_it_applies() -> None:
    node, manifest = needs()
    update = published_formats(RUN, manifest)[0].payload_bytes
    assert node.of_seed == node.theta + node.momentum + update
    assert node.total == node.of_seed + node.local + update


def test_a_fragment_in_several_pieces_is_laid_side_by_side() -> None:
    apart, whole = Fragment(((0, 10), (50, 100))), Fragment(((10, 50),))
    node = partial(node_memory, 100, 100, feedback=False, merge="mean")
    assert node(cut=[apart, whole]).fragment == 8 * 60
    assert node(cut=[whole]).fragment == node(cut=[whole]).merged == 0


def test_with_rda_an_update_is_made_into_another_in_the_memory_that_is_said() -> None:
    node, manifest = needs(merge="rda")
    form = replace(published_formats(RUN, manifest)[0], influence_max=1.0)
    payload = bytearray(form.payload_bytes)
    form.codec.quantise(np.ones(form.numel, np.float32), payload)
    form.merged(bytes(payload))  # What is loaded for the first time is not counted.
    tails = 8 * (form.numel - form.fragment.numel)
    taken = peak_of(lambda: form.merged(memoryview(payload)))
    assert node.merged <= taken <= node.merged + tails + 2**17
    assert node.of_seed > node.theta + node.momentum + node.merged
    assert node.fragment == 4 * form.fragment.numel
