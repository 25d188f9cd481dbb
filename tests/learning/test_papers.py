"""An independent implementation of the sync modes that follows the papers. It shares only the inner
step with our code.

`late` is arXiv 2311.08105 and 2501.18512 (Algorithm 2), with the delay of 2502.12996. `eager` is
from 2502.12996, too. In that paper, each peer has its own outer optimizer. Our code has one outer
optimizer, and stores by how much each peer's weights deviate from θ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.kernels import codec
from p2ptrain.sync import SyncSpec
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.tools.replica import Replica
from scripts.research.learning.corpus import Corpus
from scripts.research.learning.settings import Settings
from scripts.research.learning.swarm import Swarm
from tests.learning.conftest import MODEL, toy
from tests.rounding import assert_rounded_alike, distance, nudged, of_additions

Vector = NDArray[np.float64]


class Nesterov:
    """The outer optimizer: Nesterov momentum, as torch.optim.SGD computes it."""

    def __init__(self, settings: Settings, size: int) -> None:
        self.lr, self.mu = settings.outer_lr, settings.momentum
        self.m = np.zeros(size)

    def step(self, theta: Vector, gradient: Vector, places: NDArray[np.bool_]) -> None:
        self.m[places] = self.mu * self.m[places] + gradient
        theta[places] -= self.lr * (gradient + self.mu * self.m[places])


class Peers:
    """The peers, each with the data blocks on which it trains. In each outer step, the first peer
    trains on the first blocks (one for each inner step), the second peer on the next ones, and so
    on.

    With `random`, the weights are rounded randomly each time they are set. The results then show
    how large rounding errors can become.
    """

    def __init__(
        self, settings: Settings, corpus: Corpus, random: np.random.Generator | None = None
    ) -> None:
        self.settings, self.corpus, self.random = settings, corpus, random
        self.replicas = [
            Replica(MODEL, settings.inner, settings.precision) for _ in range(settings.peers)
        ]

    def place(self, number: int, weights: Vector) -> None:
        placed = weights.astype(np.float32)
        self.replicas[number].weights[:] = nudged(placed, self.random) if self.random else placed

    def inner_step(self, done: int) -> None:
        settings, stride = self.settings, self.settings.schedule.stride
        outer, nth = divmod(done, stride)
        for number, replica in enumerate(self.replicas):
            block = (outer * len(self.replicas) + number) * stride + nth
            count = settings.peer_sequences
            rows = self.corpus.rows(settings.seed, block * count, count)
            replica.train(rows, learning_rate(settings.inner, done))


def fragment_numbers(count: int) -> NDArray[np.int64]:
    """Return the fragment of each element: layers are assigned in turn, and the embedding is in the
    last fragment."""
    layout = layout_of(MODEL)
    numbers = np.full(layout.numel, count - 1)
    starts = [entry.offset for entry in layout.entries]
    for entry, stop in zip(layout.entries, [*starts[1:], layout.numel], strict=True):
        if entry.name.startswith("blocks.") and count > 1:
            numbers[entry.offset : stop] = int(entry.name.split(".")[1]) % (count - 1)
    return numbers


def late(settings: Settings, corpus: Corpus, random: np.random.Generator | None = None) -> Vector:
    """Return the final θ, including the updates that are still delayed when training ends."""
    sync, every = settings.sync, settings.inner_steps
    peers, theta = Peers(settings, corpus, random), genesis(MODEL, settings.seed).astype(np.float64)
    outer, fragment_of = Nesterov(settings, theta.size), fragment_numbers(sync.fragments)
    sent: list[tuple[int, int, Vector]] = []
    for number in range(settings.peers):
        peers.place(number, theta)
    for t in range(1, settings.total_steps + 1):
        peers.inner_step(t - 1)
        for p in range(sync.fragments):
            if t % every == (p + 1) * every // sync.fragments % every:
                places = fragment_of == p
                made = [theta[places] - replica.weights[places] for replica in peers.replicas]
                sent.append((t, p, np.mean(made, axis=0)))
        if sent and sent[0][0] + sync.overlap_steps == t:
            _, p, mean = sent.pop(0)
            outer.step(theta, mean, fragment_of == p)
            for replica in peers.replicas:
                own = replica.weights[fragment_of == p]
                replica.weights[fragment_of == p] = (
                    sync.mixing * own + (1 - sync.mixing) * theta[fragment_of == p]
                )
        elif sync.overlap_steps == every == t:
            for number in range(settings.peers):
                peers.place(number, theta)
    for _, p, mean in sent:
        outer.step(theta, mean, fragment_of == p)
    return theta


def eager(
    settings: Settings, corpus: Corpus, random: np.random.Generator | None = None
) -> list[Vector]:
    """Return the weights with which each peer would continue after the last outer step."""
    count = settings.peers
    peers, everything = Peers(settings, corpus, random), np.ones(layout_of(MODEL).numel, bool)
    thetas = [genesis(MODEL, settings.seed).astype(np.float64) for _ in range(count)]
    outers = [Nesterov(settings, everything.size) for _ in range(count)]
    before = [np.zeros(everything.size)] * count
    for t in range(settings.total_steps):
        if t % settings.inner_steps == 0:
            for number in range(count):
                peers.place(number, thetas[number])
        peers.inner_step(t)
        if (t + 1) % settings.inner_steps == 0:
            made = [thetas[m] - peers.replicas[m].weights for m in range(count)]
            for m in range(count):
                mixed = made[m] / count + np.mean(before, axis=0) - before[m] / count
                outers[m].step(thetas[m], mixed, everything)
            before = made
    return thetas


def trained(settings: Settings, corpus: Corpus) -> Swarm:
    swarm = Swarm.begin(settings, corpus)
    for _ in range(settings.total_steps):
        swarm.advance()
    return swarm


@pytest.mark.parametrize(
    "sync",
    [SyncSpec(), SyncSpec(2, 1, 0.5), SyncSpec(2, 2, 0.5), SyncSpec(1, 1, 0.5), SyncSpec(1, 4)],
    ids=["plain", "streaming", "streaming with the longest delay", "overlapped", "one step late"],
)
def test_theta_matches_the_papers_for_the_same_inner_steps(corpus: Corpus, sync: SyncSpec) -> None:
    settings = toy(sync=sync, outer_lr=0.7, momentum=0.6)
    ours = trained(settings, corpus)
    ours.drain()
    theirs = late(settings, corpus)
    rounded = [late(settings, corpus, np.random.default_rng(seed)) for seed in range(2)]
    assert distance(theirs, genesis(MODEL, settings.seed)) > 1
    assert_rounded_alike(ours.theta, theirs, *rounded)


def test_eager_peers_start_where_separate_outer_optimizers_would_put_them(
    corpus: Corpus,
) -> None:
    settings = toy(sync=SyncSpec(1, 4, eager=True), outer_lr=0.4, momentum=0.6)
    ours = trained(settings, corpus)
    weights = [peer.replica.weights for peer in ours.peers]
    theirs = eager(settings, corpus)
    rounded = [eager(settings, corpus, np.random.default_rng(seed)) for seed in range(2)]
    assert distance(*weights) > 100 * distance(rounded[0], theirs)
    assert_rounded_alike(weights, theirs, *rounded)


def test_outer_step_is_torchs_nesterov_from_the_first_step_on() -> None:
    random, exact = np.random.default_rng(0), codec("fp32", 32)
    theta = random.standard_normal(100).astype(np.float32)
    momentum = np.zeros_like(theta)
    theirs = torch.nn.Parameter(torch.from_numpy(theta.copy()))
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for step in range(5):
        delta = random.standard_normal(100).astype(np.float32)
        payload = bytearray(exact.encoded_bytes(100))
        exact.quantise(delta, payload)
        exact.outer_step(theta, momentum, payload, 0.7, 0.9)
        theirs.grad = torch.from_numpy(delta)
        sgd.step()
        # In each step, our code and torch's each do at most four fp32 additions, of numbers below
        # 16.
        lost = of_additions(2 * 4 * (step + 1), 16.0)
        assert np.allclose(theta, theirs.detach().numpy(), rtol=0, atol=lost)


Places = Callable[[Settings], list[set[int]]]


@pytest.fixture
def by_outer_step(corpus: Corpus) -> Places:
    """Return the positions in the data order that are trained on, by outer step."""
    asked: set[int] = set()

    class Noted(Corpus):
        def rows(self, seed: int, first: int, count: int) -> np.ndarray:
            asked.update(range(first, first + count))
            return super().rows(seed, first, count)

    def places(settings: Settings) -> list[set[int]]:
        swarm, found = Swarm.begin(settings, Noted(corpus.train, corpus.validation)), []
        for _ in range(3):
            asked.clear()
            for _ in range(settings.inner_steps):
                swarm.advance()
            found.append(set(asked))
        return found

    return places


@pytest.mark.parametrize("peers", [2, 4])
def test_outer_step_trains_on_the_same_blocks_as_ordinary_training(
    by_outer_step: Places, peers: int
) -> None:
    ordinary = by_outer_step(toy(peers=1, averages=False))
    assert by_outer_step(toy(peers=peers)) == ordinary
    assert ordinary == [set(range(16)), set(range(16, 32)), set(range(32, 48))]
