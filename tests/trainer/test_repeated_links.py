"""An auditor that repeats an honest link ends where the prover ended, and a forged start shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from p2ptrain.ids import Digest
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, Optimizer
from p2ptrain.kernels import codec
from p2ptrain.proofs.checkpoints import Chain, check_start, judge_link, link_distance
from p2ptrain.proofs.moments import Codes, MomentsFormat, moments_digest
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.inner_bounds import is_muons, ratio_max
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.tools.replica import Replica

MODEL = ModelSpec(vocab=61, layers=1, width=16, heads=2, kv_heads=1, ffn=20, sequence=8)
RATE, WARM_STEPS, LINK_STEPS = 1e-2, 12, 4
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Checkpoint:
    weights: Floats
    codes: Codes
    count: int

    @property
    def digest(self) -> Digest:
        return moments_digest(self.codes, self.count)


class Trainer:
    """A replica whose optimizer can be saved and loaded in 2 bytes a parameter."""

    def __init__(self, optimizer: Optimizer) -> None:
        inner = InnerSpec(4, 4, lr=RATE, warmup_steps=0, total_steps=100, optimizer=optimizer)
        entries = layout_of(MODEL).entries
        muon = tuple(slice(each.offset, each.end) for each in entries if is_muons(each, inner))
        self.format = MomentsFormat(ratio_max(inner), inner.clip, muon)
        self.replica = Replica(MODEL, inner, "fp32")

    def save(self) -> Checkpoint:
        moments = self.replica.moments()
        mean = moments["exp_avg"] + moments.get("momentum_buffer", np.float32(0))
        codes = self.format.encode(mean, moments["exp_avg_sq"])
        return Checkpoint(self.replica.weights.copy(), codes, int(moments["step"][0]))

    def load(self, weights: Floats, checkpoint: Checkpoint) -> None:
        mean, square = self.format.decode(checkpoint.codes)
        momentum = np.zeros_like(mean)
        for run in self.format.muon:
            momentum[run], mean[run] = mean[run], 0
        moments = {"exp_avg": mean, "exp_avg_sq": square, "momentum_buffer": momentum}
        np.copyto(self.replica.weights, weights)
        self.replica.set_moments({**moments, "step": np.array([checkpoint.count], np.float32)})

    def train(self, steps: int, data: int) -> None:
        draws = np.random.default_rng(data)
        for _ in range(steps):
            rows = (draws.integers(0, 40, (4, 1)) + 3 * np.arange(MODEL.sequence + 1)) % 59
            self.replica.train(rows.astype(np.int64), RATE, micro_batch=3)


def rounded(displacement: Floats) -> Floats:
    kernels, out = codec("int8", 256), np.empty_like(displacement)
    payload = np.empty(kernels.encoded_bytes(out.size), np.uint8)
    kernels.quantise(displacement, payload)
    kernels.dequantise(payload, out)
    return out


def distance(theta: Floats, start: Checkpoint, end: Checkpoint, optimizer: Optimizer) -> float:
    """Repeat the link from `start` on the blocks of data 2, as an auditor does."""
    auditor = Trainer(optimizer)
    begin = rounded(theta - start.weights)
    auditor.load(theta - begin, start)
    auditor.train(LINK_STEPS, data=2)
    return link_distance(begin, rounded(theta - end.weights), theta - auditor.replica.weights)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_honest_links_can_be_repeated(optimizer: Optimizer) -> None:
    torch.set_num_threads(1)
    theta, prover = genesis(MODEL, 1), Trainer(optimizer)
    np.copyto(prover.replica.weights, theta)
    prover.train(WARM_STEPS, data=1)
    start = prover.save()
    prover.train(LINK_STEPS, data=2)
    assert judge_link(distance(theta, start, prover.save(), optimizer), cold=False).passed
    prover.load(start.weights, start)
    prover.train(LINK_STEPS, data=3)
    assert not judge_link(distance(theta, start, prover.save(), optimizer), cold=False).passed


def test_forged_moments_replay_but_do_not_fit() -> None:
    """Without the rule about the start of a chain, this contribution would pass."""
    torch.set_num_threads(1)
    theta, prover = genesis(MODEL, 1), Trainer("adamw")
    np.copyto(prover.replica.weights, theta)
    prover.train(WARM_STEPS, data=1)
    honest = prover.save()
    forged = Checkpoint(honest.weights, honest.codes.copy(), honest.count)
    forged.codes[:, 1] = 127  # the mean points up everywhere
    prover.load(forged.weights, forged)
    prover.train(LINK_STEPS, data=2)
    assert judge_link(distance(theta, forged, prover.save(), "adamw"), cold=False).passed
    empty = moments_digest(np.zeros_like(honest.codes), 0)
    last, end = (Chain((empty,), (empty, each.digest)) for each in (honest, prover.save()))
    made_up = Chain(end.displacements, (forged.digest, end.moments[1]))
    assert not check_start(made_up, last, empty).passed
    assert check_start(
        Chain(end.displacements, (honest.digest, end.moments[1])), last, empty
    ).passed
