"""The memory that a node is estimated to need is what it really uses."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from p2ptrain.archive.update_format import UpdateFormat
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
    """The peak of memory above the amount in use before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_seed_has_theta_momentum_and_the_update_it_applies() -> None:
    node, manifest = needs()
    update = UpdateFormat.of(RUN, manifest).payload_bytes(0)
    assert node.of_seed == node.theta + node.momentum + update
    assert node.total == node.of_seed + node.local + update


def test_fragment_in_several_pieces_is_copied_together() -> None:
    apart, whole = Fragment(((0, 10), (50, 100))), Fragment(((10, 50),))
    node = partial(node_memory, 100, 100, feedback=False, merge="mean")
    assert node(cut=[apart, whole]).fragment == 8 * 60
    assert node(cut=[whole]).fragment == node(cut=[whole]).merged == 0


def test_with_rda_converting_an_update_takes_the_stated_memory() -> None:
    node, manifest = needs(merge="rda")
    form = UpdateFormat.of(RUN, manifest)
    payload = bytearray(form.payload_bytes(0))
    form.codec.quantise(np.ones(form.numel(0), np.float32), payload)
    # Modules that are loaded for the first time are not counted.
    form.merged(bytes(payload), 0, 1.0)
    tails = 8 * (form.numel(0) - form.fragment(0).numel)
    taken = peak_of(lambda: form.merged(memoryview(payload), 0, 1.0))
    assert node.merged <= taken <= node.merged + tails + 2**17
    assert node.of_seed > node.theta + node.momentum + node.merged
    assert node.fragment == 4 * form.fragment(0).numel
