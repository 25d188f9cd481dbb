"""A run whose directions and lengths are averaged apart, in a node's own tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from p2ptrain.archive.update_format import UpdateFormat, published_formats
from p2ptrain.ids import RunId
from p2ptrain.ledger.chain.values import Commit, Participant
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
async def test_one_peer_alone_goes_where_plain_means_would_take_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fragments: int,
    new_rig: NewRig,
    nursery: trio.Nursery,
) -> None:
    sync = SyncSpec(fragments=fragments, merge="rda")
    settings = {"sync": sync, "inner_steps": 2, "rules": policy(participants_min=1)}
    r = await new_rig(tmp_path, **settings)
    context = r.context
    assert context.trainer.arena is not None
    nursery.start_soon(keep_outer_state, context)
    nursery.start_soon(exchange, context)
    await settled(lambda: context.outer.step == 0)
    before = context.trainer.arena.theta.copy()
    work = np.random.default_rng(0).standard_normal(before.size, np.float32) / 20
    context.trainer.arena.local[:] = before - work
    blocks = context.ledger.snapshot.leases[context.me]
    context.trainer.work = Work(0, blocks, 16 * len(blocks))
    r.decide(
        opening(context.ledger.snapshot, Participant(context.me, 16 * len(blocks), len(blocks)))
    )
    context.changes.ring()
    await settled(lambda: context.reduce.report is not None)
    assert context.reduce.report is not None
    update = context.reduce.report.update
    assert update is not None
    await update_blobs.inspect(context, update, context.outer_step(0))
    r.decide(Commit(0, 0, update))
    context.changes.ring()
    await settled(lambda: context.outer.step == 1)
    moved, rates = before - context.trainer.arena.theta, context.manifest.outer
    expected = np.zeros_like(moved)
    for start, stop in context.outer_step(0).fragment.ranges:
        expected[start:stop] = rates.lr * (1 + rates.momentum) * work[start:stop]
    np.testing.assert_allclose(moved, expected, atol=np.abs(expected).max() / 100)
    (done,) = r.said("exchange-done")
    assert done["cosine"] == pytest.approx(1, abs=1e-3)
    assert done["norm"] == pytest.approx(done["mean_norm"], rel=1e-2)
    assert 0 < done["quantisation_error"] < 0.02


def hostile(form: UpdateFormat, seed: int) -> np.ndarray:
    """The mean of a liar: each element, and each tensor's length, of a size of its own liking."""
    random, numel, most = np.random.default_rng(seed), form.numel, form.influence_max
    radial = Radial.of(form.layout, form.fragment, form.spec.block)
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
def test_nothing_that_voters_take_moves_a_weight_further_than_a_participant_may(
    name: CodecName,
) -> None:
    sync, spec = SyncSpec(fragments=2, merge="rda"), CodecSpec(name, 64)
    manifest = manifest_of(ANN.peer, sync=sync, codec=spec)
    formats, most = published_formats(RunId("a" * 64), manifest), manifest.influence_max
    taken = mean_max(formats[0].codec, "ring", 4, most, feedback=False)
    for seed in range(40):
        form = formats[seed % 2]
        payload = bytearray(form.payload_bytes)
        assert form.codec.quantise(hostile(form, seed), payload) <= taken
        made, exact = form.merged(bytes(payload))
        merged = np.empty(form.fragment.numel, np.float32)
        exact.dequantise(made, merged)
        for start, stop in Radial.of(form.layout, form.fragment, 64).spans:
            assert np.abs(merged[start:stop]).max() <= most, seed
        assert np.abs(merged).max() <= taken, seed


async def test_an_update_that_claims_the_longest_lengths_is_applied_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    settings = {"sync": SyncSpec(merge="rda"), "rules": policy(participants_min=1)}
    r = await new_rig(tmp_path, **settings)
    context = r.context
    assert context.trainer.arena is not None
    nursery.start_soon(keep_outer_state, context)
    await settled(lambda: context.outer.step == 0)
    before, most = context.trainer.arena.theta.copy(), context.outer_step(0).influence_max
    form = context.outer_step(0).update
    mean = hostile(form, 1)
    mean[form.fragment.numel :] = most
    payload = bytearray(form.payload_bytes)
    form.codec.quantise(mean, payload)
    r.decide(opening(context.ledger.snapshot, Participant(context.me, 32, 2)))
    update = context.outer_step(0).update.write(context.store, payload)
    await update_blobs.inspect(context, update, context.outer_step(0))
    r.decide(Commit(0, 0, update))
    context.changes.ring()
    await settled(lambda: context.outer.step == 1)
    moved, rates = np.abs(before - context.trainer.arena.theta).max(), context.manifest.outer
    assert moved == pytest.approx(rates.lr * (1 + rates.momentum) * most, rel=1e-2)


def test_directions_owe_no_feedback() -> None:
    manifest = manifest_of(ANN.peer, sync=SyncSpec(merge="rda"))
    with pytest.raises(ValueError, match=r"sync\.merge"):
        replace(manifest, codec=CodecSpec("int8", 64, feedback=True))
