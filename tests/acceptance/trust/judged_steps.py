"""Outer steps of honest peers and liars, judged by all checks: which check finds which lie?

Six honest peers differ in precision and in the rows that they compute at once. Liars have the lease
and the optimizer of the first peer; their contributions are judged and never averaged. The auditor
computes in fp32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from p2ptrain.ids import Digest
from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ipc.trainer_config import Optimizer
from p2ptrain.kernels import Sums
from p2ptrain.proofs import outcome, sketch_rules
from p2ptrain.proofs.checkpoints import COLD_DISTANCE_MAX, DISTANCE_MAX, LINKS
from p2ptrain.proofs.outcome import Outcome, RowLosses, outcome_of
from p2ptrain.proofs.sketch_rules import Judged, expected_length, length_ratios
from p2ptrain.proofs.sketches import cosine, seed_of, sketch, unit_exponent_of
from p2ptrain.trainer.tools.replica import one_thread
from tests.acceptance.measures.setting import Line, line
from tests.acceptance.trust.lies import ALL, Lie, Occasion, invented_lies, trained_lies
from tests.acceptance.trust.repeating import Auditor, int8
from tests.acceptance.trust.simulated_peer import (
    Floats,
    Machine,
    Point,
    SimulatedPeer,
    inner_spec,
)

MACHINES = [
    *(Machine("fp32"), Machine("fp32", 3), Machine("bf16")),
    *(Machine("bf16", 2), Machine("fp32", 1), Machine("bf16")),
]
INNER, WARMUP = 16, 20
SAMPLED = 16
"""Blocks of a lease, and of other data, on which outcomes are measured: a whole lease. With six,
the rule about memory has no power in this model."""

HELD, SPARE = 11_000, 10_000
"""The first blocks that are used for outcomes only, and that liars take as other data."""

OUTER_LR, OUTER_MOMENTUM = np.float32(0.7), np.float32(0.5)
CHECKS = ("length", "direction", "twin", "harm", "memory", "link")


@dataclass(slots=True)
class Tally:
    """Results of all contributions of one kind."""

    found: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    twins: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    powers: list[bool] = field(default_factory=list)


@dataclass(slots=True)
class JudgedRun:
    """A run of honest peers. `tallies` has the results of honest peers and of each lie."""

    optimizer: Optimizer
    seed: int
    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    theta: Floats = field(init=False)
    momentum: Floats = field(init=False)
    states: list[Point] = field(init=False)
    peers: list[SimulatedPeer] = field(init=False)
    auditor: Auditor = field(init=False)
    steps: int = 0
    cursor: int = 0
    earlier: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inner = inner_spec(self.optimizer, warmup=WARMUP)
        self.peers = [SimulatedPeer(inner, machine) for machine in MACHINES]
        self.auditor = Auditor(SimulatedPeer(inner))
        start = self.peers[0].start_run(self.seed)
        self.theta, self.momentum = start.weights, np.zeros_like(start.weights)
        self.states = [start] * len(self.peers)

    def train_together(self, steps: int) -> None:
        """Train one replica before the first outer step, and give its state to all peers. Its last
        `INNER` inner steps count as the outer step before."""
        blocks = range(self.cursor, self.cursor + steps)
        points = self.peers[0].train(self.states[0], blocks, self.steps, every=INNER)
        before, point = points[-2:]
        own = int8(before.weights - point.weights)
        self.earlier = {"theta": before.weights, "mean": own, "own": own}
        self.theta, self.states = point.weights, [point] * len(self.peers)
        self.steps, self.cursor = self.steps + steps, self.cursor + steps

    def outer_step(self, *, lying: bool) -> None:
        count = len(self.peers)
        leases = [
            range(self.cursor + who * INNER, self.cursor + (who + 1) * INNER)
            for who in range(count)
        ]
        self.cursor += count * INNER
        starts = [Point(self.theta, state.moments) for state in self.states]
        made = [
            peer.train(start, lease, self.steps, every=INNER // LINKS)
            for peer, start, lease in zip(self.peers, starts, leases, strict=True)
        ]
        deltas = [int8(self.theta - points[-1].weights) for points in made]
        step = _Step(self, deltas, leases)
        for who in range(count):
            step.judge("honest", who, deltas[who], made[who], ALL)
        if lying and self.earlier:
            for lie in self._lies(starts[0], leases[0], made[0], deltas[1]):
                delta = int8(np.asarray(self.theta - lie.points[-1].weights, np.float32))
                step.judge(lie.name, 0, delta, lie.points, lie.faked)
        mean = int8(np.mean(deltas, axis=0, dtype=np.float32))
        self.earlier = {"theta": self.theta, "mean": mean, "own": deltas[0]}
        self.momentum = OUTER_MOMENTUM * self.momentum + mean
        moved = OUTER_LR * (mean + OUTER_MOMENTUM * self.momentum)
        self.theta = np.asarray(self.theta - moved, np.float32)
        self.states, self.steps = [points[-1] for points in made], self.steps + INNER

    def _lies(self, start: Point, lease: range, honest: list[Point], other: Floats) -> list[Lie]:
        spare = range(SPARE + self.steps, SPARE + self.steps + INNER)
        at = Occasion(
            *(self.peers[0], start, lease, self.steps, honest, other),
            *(self.earlier["theta"], self.earlier["mean"], self.earlier["own"]),
            spare,
            self.steps,
        )
        bound = 10 * self.peers[0].inner.lr * INNER
        return [*trained_lies(at), *invented_lies(at, bound)]

    def rates(self) -> list[float]:
        inner = self.peers[0].inner
        return [learning_rate(inner, self.steps + number) for number in range(INNER)]


class _Step:
    """One outer step's honest contributions, among which one is replaced at a time."""

    def __init__(self, run: JudgedRun, deltas: Sequence[Floats], leases: Sequence[range]) -> None:
        self.run, self.leases = run, leases
        roster = Digest(blake3(f"{run.seed} {run.steps}".encode()).hexdigest())
        named = [Digest(blake3(each.tobytes()).hexdigest()) for each in deltas]
        self.seed, self.unit = seed_of(roster, named), unit_exponent_of(64.0)
        self.sums = [self.sketch(each) for each in deltas]
        order = np.random.default_rng(run.steps)
        self.sampled = sorted(order.permutation(INNER)[:SAMPLED].tolist())
        self.held = [HELD + int(each) for each in order.permutation(300)[:SAMPLED]]
        judge = run.auditor.peer
        self.before = judge.losses(run.theta, self.held)
        self.outcomes = [
            self.outcome(delta, lease) for delta, lease in zip(deltas, leases, strict=True)
        ]

    def sketch(self, delta: Floats) -> Sums:
        return sketch(delta, self.seed, self.unit)

    def outcome(self, delta: Floats, lease: range) -> Outcome:
        judge, theta = self.run.auditor.peer, self.run.theta
        own = [lease[each] for each in self.sampled]
        quarter = theta - np.float32(outcome.QUARTER) * delta
        return outcome_of(
            RowLosses(
                judge.losses(theta, own),
                judge.losses(theta - delta, own),
                self.before,
                judge.losses(theta - delta, self.held),
                judge.losses(quarter, self.held),
            )
        )

    def judge(
        self, name: str, who: int, delta: Floats, points: list[Point], links: Sequence[int]
    ) -> None:
        run, honest = self.run, name == "honest"
        tally = run.tallies[name]
        sums = [*self.sums]
        outcomes = [*self.outcomes]
        if not honest:
            sums[who] = self.sketch(delta)
            outcomes[who] = self.outcome(delta, self.leases[who])
        expected = expected_length(run.rates())
        judged = [Judged(each, expected, 1) for each in sums]
        broken = {
            finding.rule for finding in sketch_rules.judge(judged) if who in finding.participants
        }
        others = np.sum([each for place, each in enumerate(sums) if place != who], axis=0)
        tally.lengths.append(length_ratios(judged)[who])
        tally.cosines.append(cosine(sums[who], others))
        tally.twins.append(
            max(cosine(sums[who], each) for place, each in enumerate(sums) if place != who)
        )
        verdict = outcome.judge(outcomes, who)
        tally.outcomes.append(outcomes[who])
        tally.powers.append(verdict.has_power)
        far = run.auditor.distances(run.theta, points, self.leases[who], run.steps, links)
        cold = points[0].moments["step"][0] == 0
        for link, distance in zip(links, far, strict=True):
            (tally.cold if cold and link == 0 else tally.warm).append(distance)
        for check in CHECKS[:3]:
            tally.found[check].append(check in broken)
        tally.found["harm"].append(verdict.suspect == "harm")
        tally.found["memory"].append(verdict.suspect == "memory")
        tally.found["link"] += [
            each > (COLD_DISTANCE_MAX if cold and link == 0 else DISTANCE_MAX)
            for link, each in zip(links, far, strict=True)
        ]


def honest_lines(title: str, tally: Tally) -> Iterator[Line]:
    """Yield the honest distributions, with the margins of all limits."""
    number = len(tally.lengths)
    wrong = {check: sum(tally.found[check]) for check in CHECKS}
    yield line(f"{title}: wrong findings", wrong, "all 0", not any(wrong.values()))
    yield line(f"{title}: contributions, links", [number, len(tally.found["link"])], "", True)
    worst = max(max(tally.lengths), 1 / min(tally.lengths))
    margin = sketch_rules.LENGTH_RATIO_MAX / worst
    value = f"{margin:.2f} ({min(tally.lengths):.2f} to {max(tally.lengths):.2f})"
    yield line(f"{title}: length limit ÷ worst", value, "at least 2", margin >= 2)
    least = min(tally.cosines)
    wanted = f"above {sketch_rules.COSINE_MIN}"
    yield line(
        f"{title}: cosine to the mean of others, least", round(least, 3), wanted, least > -0.2
    )
    twin = max(tally.twins)
    yield line(f"{title}: cosine to another, largest", round(twin, 4), "below 0.99", twin < 0.99)
    for what, values, limit in (
        ("warm", tally.warm, DISTANCE_MAX),
        ("cold", tally.cold, COLD_DISTANCE_MAX),
    ):
        if values:
            shown = [round(float(each), 4) for each in np.quantile(values, (0.5, 0.95, 1))]
            margin = limit / max(values)
            value = f"{margin:.2f} (median, 95 %, worst {shown} of {len(values)})"
            yield line(f"{title}: {what} link limit ÷ worst", value, "at least 2", margin >= 2)
    yield from _outcome_lines(title, tally)


def _outcome_lines(title: str, tally: Tally) -> Iterator[Line]:
    memory = [each.memory for each in tally.outcomes]
    harm = [each.harm for each in tally.outcomes]
    error = float(np.median([each.memory_error for each in tally.outcomes]))
    shown = [round(min(memory), 4), round(max(memory), 4), round(error, 4)]
    yield line(f"{title}: memory from, to, error", shown, "", True)
    yield line(f"{title}: harm from, to", [round(min(harm), 4), round(max(harm), 4)], "", True)
    powers = f"{sum(tally.powers)} of {len(tally.powers)}"
    yield line(f"{title}: memory judged with power", powers, "", True)


def lie_lines(name: str, tally: Tally) -> Iterator[Line]:
    counts = {check: f"{sum(found)}/{len(found)}" for check, found in tally.found.items()}
    links = tally.found["link"]
    share = sum(links) / len(links)
    yield line(f"lie: {name}: found by", counts, "link at least 95 %", share >= 0.95)
    ratio = min(
        [each / DISTANCE_MAX for each in tally.warm]
        + [each / COLD_DISTANCE_MAX for each in tally.cold]
    )
    value = f"{ratio:.2f} (cosine {np.median(tally.cosines):.2f}, length "
    value += f"{np.median(tally.lengths):.2f})"
    yield line(f"lie: {name}: smallest distance ÷ limit", value, "at least 1.5", ratio >= 1.5)


def lines() -> Iterator[Line]:
    one_thread()
    for title, optimizer, together, outer, lying in (
        ("late, AdamW", "adamw", 128, 3, True),
        ("early, AdamW", "adamw", 0, 2, False),
        ("Muon", "muon", 0, 2, False),
    ):
        run = JudgedRun(optimizer, seed=1)  # type: ignore[arg-type]
        run.train_together(together) if together else None
        for _ in range(outer):
            run.outer_step(lying=lying)
        yield from honest_lines(title, run.tallies.pop("honest"))
        for name, tally in run.tallies.items():
            yield from lie_lines(name, tally)
