"""A run whose directions and lengths are averaged separately, in a node's own tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from p2ptrain.archive.update_format import UpdateFormat
from p2ptrain.ids import RunId
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.node.outer_state import outer_task as module
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.outer_state.outer_task import keep_outer_state
from p2ptrain.node.reduce.reduce_task import exchange
from p2ptrain.ring import mean_max
from p2ptrain.run.manifest import CodecName, CodecSpec
from p2ptrain.sync import SyncSpec
from p2ptrain.sync.radial import Radial
from p2ptrain.sync.trainer_orders import Work
from p2ptrain.testing.published import manifest_of, policy
from tests.node.rig import ANN, NewRig, opening, settled


@pytest.mark.parametrize("fragments", [1, 2])
async def test_single_peer_moves_as_with_plain_means(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragments: int,
    new_rig: NewRig,
    nursery: trio.Nursery,
) -> None:
    monkeypatch.setattr(module, "HEAR_FIRST_S", 0.01)
    sync = SyncSpec(fragments=fragments, merge="rda")
    settings = {"sync": sync, "inner_steps": 2, "rules": policy(participants_min=1)}
    r = await new_rig(tmp_path, **settings)
    parts = r.parts
    assert parts.arena is not None
    nursery.start_soon(keep_outer_state, parts)
    nursery.start_soon(exchange, parts)
    await settled(lambda: parts.outer.step == 0)
    before = parts.arena.theta.copy()
    work = np.random.default_rng(0).standard_normal(before.size, np.float32) / 20
    parts.arena.local[:] = before - work
    blocks = parts.ledger.state.leases[parts.me]
    parts.standing.work = Work(0, blocks, 16 * len(blocks))
    r.decide(opening(parts.ledger.state, Participant(parts.me, 16 * len(blocks), len(blocks))))
    parts.changes.ring()
    await settled(lambda: parts.standing.reduce is not None)
    assert parts.standing.reduce is not None
    update = parts.standing.reduce.update
    assert update is not None
    await update_blobs.inspect(parts, update, 0)
    r.decide(Commit(0, 0, update))
    parts.changes.ring()
    await settled(lambda: parts.outer.step == 1)
    moved, rates = before - parts.arena.theta, parts.manifest.outer
    expected = np.zeros_like(moved)
    for start, stop in parts.fragment(0).ranges:
        expected[start:stop] = rates.lr * (1 + rates.momentum) * work[start:stop]
    np.testing.assert_allclose(moved, expected, atol=np.abs(expected).max() / 100)
    (done,) = r.said("exchange-done")
    assert done["cosine"] == pytest.approx(1, abs=1e-3)
    assert done["norm"] == pytest.approx(done["mean_norm"], rel=1e-2)
    assert 0 < done["quantisation_error"] < 0.02


def hostile(form: UpdateFormat, step: int, seed: int, most: float) -> np.ndarray:
    """The mean of a liar: it chooses the size of each element, and the length of each tensor."""
    random, numel = np.random.default_rng(seed), form.numel(step)
    radial = Radial.of(form.layout, form.fragment(step), form.spec.block)
    mean = random.choice([-1.0, 1.0], numel) * most * 10.0 ** random.uniform(-12, 0, numel)
    for number, (start, stop) in enumerate(radial.spans):
        tensor, block = mean[start:stop], form.spec.block
        length = mean[-block * (len(radial.spans) - number) :][:block]
        length[:] = random.choice([0.0, 1e-30, 1e-3, 1.0, -1.0]) * most
        match random.integers(5):
            case 0:
                tensor[:] = 0.0
            case 1:
                tensor *= 1e-30
            case 2:
                tensor[:] = 0.0
                tensor[random.integers(tensor.size)] = most
            case 3:
                tensor[:] = most
    return mean.astype(np.float32)


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4"])
def test_accepted_update_moves_no_weight_beyond_the_bound(
    name: CodecName,
) -> None:
    sync, spec = SyncSpec(fragments=2, merge="rda"), CodecSpec(name, 64)
    manifest = manifest_of(ANN.peer, sync=sync, codec=spec)
    form, most = UpdateFormat.of(RunId("a" * 64), manifest), manifest.influence_max
    taken = mean_max(form.codec, "ring", 4, most, feedback=False)
    for seed in range(40):
        step = seed % 2
        payload = bytearray(form.payload_bytes(step))
        assert form.codec.quantise(hostile(form, step, seed, most), payload) <= taken
        made, exact = form.merged(bytes(payload), step, most)
        merged = np.empty(form.fragment(step).numel, np.float32)
        exact.dequantise(made, merged)
        for start, stop in Radial.of(form.layout, form.fragment(step), 64).spans:
            assert np.abs(merged[start:stop]).max() <= most, seed
        assert np.abs(merged).max() <= taken, seed


async def test_update_with_the_longest_lengths_stays_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(module, "HEAR_FIRST_S", 0.01)
    settings = {"sync": SyncSpec(merge="rda"), "rules": policy(participants_min=1)}
    r = await new_rig(tmp_path, **settings)
    parts = r.parts
    assert parts.arena is not None
    nursery.start_soon(keep_outer_state, parts)
    await settled(lambda: parts.outer.step == 0)
    before, most = parts.arena.theta.copy(), parts.influence_max(0)
    form = update_blobs.format_of(parts, 0)
    mean = hostile(form, 0, 1, most)
    mean[form.fragment(0).numel :] = most
    payload = bytearray(form.payload_bytes(0))
    form.codec.quantise(mean, payload)
    r.decide(opening(parts.ledger.state, Participant(parts.me, 32, 2)))
    update = await update_blobs.store(parts, 0, payload)
    await update_blobs.inspect(parts, update, 0)
    r.decide(Commit(0, 0, update))
    parts.changes.ring()
    await settled(lambda: parts.outer.step == 1)
    moved, rates = np.abs(before - parts.arena.theta).max(), parts.manifest.outer
    assert moved == pytest.approx(rates.lr * (1 + rates.momentum) * most, rel=1e-2)


def test_directions_have_no_residuals() -> None:
    manifest = manifest_of(ANN.peer, sync=SyncSpec(merge="rda"))
    with pytest.raises(ValueError, match=r"sync\.merge"):
        replace(manifest, codec=CodecSpec("int8", 64, feedback=True))
