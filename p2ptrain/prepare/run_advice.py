"""Warn an organiser of weaknesses of a run file before anybody is asked to take part.

Each lint is a pure function of the run and its costs. A run with a fault cannot work; a warning is
for a run that works. Each bound comes from a paper or from our own measurements, and its comment
says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from p2ptrain.config.run_file import RunFile
from p2ptrain.ledger.chain.founders import survives_a_loss
from p2ptrain.net.addresses import parse_with_peer
from p2ptrain.net.scopes import scope_of
from p2ptrain.prepare.run_cost import RunCosts
from p2ptrain.ring.arrangement import COARSE_RING_PEERS_MAX
from p2ptrain.store import CHUNK_BYTES_MAX

OUTER_STEPS_MIN = 60
"""With fewer averages, the gap to data-parallel training grows quickly (arXiv 2503.09799)."""

TOKENS_PER_PARAMETER_MIN = 5.0
"""With fewer tokens, a smaller model would learn more from them (Chinchilla: 20)."""

WARMUP_SHARE_MAX = 0.2
UTILISATION_MIN = 0.8
USUAL_MBIT = 50
GUESSED_PARAMETERS_MIN = 100_000_000
"""Below this size, kernel launches dominate, and a device's peak rate says nothing."""

SNAPSHOT_TURNS_MIN = 4
"""How often each fragment should be averaged between two snapshots. A participant's weight is
counted only back to the newest snapshot. So in the first turn after one, older work may weigh too
little."""

STEP_RATES_MAX = 1.2
"""The length of AdamW's steps, in learning rates, with betas of 0.9 and 0.95. With a smaller bound,
honest work is refused."""

MUON_MOMENTUM_MAX = 0.5
"""With Muon, outer momenta of 0.64 and 0.9 mostly ended 8 to 15 % above none or little. The best of
two and four peers were 0 and 0.2 (docs/results/learning.md)."""

INFLUENCE_ROOM = 3.0
"""A peer that was left out brings the work of two or more outer steps at once."""


@dataclass(frozen=True, slots=True)
class Lint:
    """One finding. `is_fault`: the run cannot work. `field`: its place in the run file."""

    field: str
    words: str
    is_fault: bool = False


Adviser = Callable[[RunFile, RunCosts], Iterator[Lint]]


def lints_of(
    run: RunFile, costs: RunCosts, seeds: Sequence[str] = (), *, founders: int = 1
) -> list[Lint]:
    """Return all lints of a run with this number of `founders`, faults first.

    Raises ConfigError: a seed is not an address.
    """
    found = [lint for look in _ADVISERS for lint in look(run, costs)]
    found += founders_lints(run, founders)
    found += [lint for seed in seeds for lint in _seed(seed)]
    return sorted(found, key=lambda lint: not lint.is_fault)


def _block(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    if costs.block_bytes > CHUNK_BYTES_MAX:
        over = f"a block of data would have {costs.block_bytes:,} bytes, over {CHUNK_BYTES_MAX:,}"
        fits = CHUNK_BYTES_MAX * run.inner.batch_sequences // costs.block_bytes
        yield Lint("inner.batch_sequences", f"{over}; at most {fits} sequences fit", True)


def _seed(text: str) -> Iterator[Lint]:
    address, _ = parse_with_peer(text)
    if words := scope_of(address).words:
        yield Lint("seed", f"{address.transport} is {words}")


def founders_lints(run: RunFile, founders: int) -> list[Lint]:
    """Return the lint about too few founders: in an open run only founders ever vote."""
    least = survives_a_loss(run.policy.quorum)
    if run.run.admission != "open" or founders >= least:
        return []
    given = f"{founders} founder{'s' * (founders != 1)}"
    return [
        Lint(
            "run.admission",
            f"in an open run only founders vote, and with {given} the loss of one can "
            f"stop the run: publish it with {least} or more (run publish --founder)",
        )
    ]


def _length(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    averages, fragments = run.outer.steps // run.sync.fragments, run.sync.fragments
    if averages < OUTER_STEPS_MIN:
        of = f", in which each of {fragments} fragments is averaged {averages} times"
        yield Lint(
            "outer.steps",
            f"the run has {run.outer.steps} outer steps{of if fragments > 1 else ''}: with "
            f"fewer than {OUTER_STEPS_MIN}, averaging learns much worse than training in one "
            "place",
        )
    total = run.inner_steps_total
    if run.inner.warmup_steps > WARMUP_SHARE_MAX * total:
        share = run.inner.warmup_steps / total
        yield Lint("inner.warmup_steps", f"{share:.0%} of the whole run is warm-up")
    tokens = costs.step_tokens * run.outer.steps * run.policy.participants_min
    if tokens < TOKENS_PER_PARAMETER_MIN * costs.parameters:
        yield Lint(
            "model",
            f"the run has {tokens / costs.parameters:.1f} tokens for each parameter with "
            f"{run.policy.participants_min} peers: a smaller model would learn more from them",
        )


def is_unknown(costs: RunCosts) -> bool:
    """Return whether the training time is unknown: nobody gave a rate, and the model is too small
    for a guess.
    """
    return not costs.is_told and costs.parameters < GUESSED_PARAMETERS_MIN


def _slow_reduce(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    if is_unknown(costs):
        return
    for plan in costs.plans:
        if plan.mbit == USUAL_MBIT and plan.utilisation < UTILISATION_MIN:
            yield Lint(
                "inner.steps",
                f"on lines of {plan.mbit} Mbit/s, {plan.exchange.peers} peers would train "
                f"only {plan.utilisation:.0%} of the time: use more inner steps, or a smaller "
                "codec",
            )
            return


def _policy(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    policy = run.policy
    if policy.encryption == "none":
        yield Lint("policy.encryption", "anybody on the network path can read and change bulk data")
    if policy.participants_min < 2:
        yield Lint("policy.participants_min", "one peer alone may take outer steps")
    if policy.influence_max < INFLUENCE_ROOM:
        is_fault = policy.influence_max < STEP_RATES_MAX
        what = "ordinary work" if is_fault else "the work of a peer that missed several outer steps"
        yield Lint("policy.influence_max", f"{what} would be rejected as too far from θ", is_fault)
    replay = policy.snapshot_every * costs.update_bytes
    if replay > costs.snapshot_bytes:
        yield Lint(
            "policy.snapshot_every",
            f"the updates between two snapshots are {replay / costs.snapshot_bytes:.1f} times "
            "as long as a snapshot: newcomers fetch more than they need",
        )


def _muon(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    momentum = run.outer.momentum
    if run.inner.optimizer == "muon" and momentum >= MUON_MOMENTUM_MAX:
        yield Lint(
            "outer.momentum",
            f"{momentum:g} is too much for Muon: in our measurements the loss ended 8 to 15 % "
            "higher than with little or no momentum; begin at 0 and try 0.2",
        )


def _coarse_ring(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    most = max((plan.exchange.peers for plan in costs.plans), default=0)
    if run.codec.name == "int4" and most > COARSE_RING_PEERS_MAX:
        yield Lint(
            "codec.name",
            f"int4 in a ring of more than {COARSE_RING_PEERS_MAX} peers: each hop rounds, so a "
            "mean is off by 17 % with 4 peers, 33 % with 16 and 71 % with 64; direct is off by "
            "15 %. Nodes choose direct or grid unless too few pairs of peers can connect, so let "
            "every peer be dialled, or choose int8",
        )


def _fragments(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    fragments, every = run.sync.fragments, run.policy.snapshot_every
    turns = min(SNAPSHOT_TURNS_MIN, costs.snapshot_bytes // (fragments * costs.update_bytes))
    if fragments > 1 and every < turns * fragments:
        yield Lint(
            "policy.snapshot_every",
            f"the run takes a snapshot every {every} outer steps, and {fragments} fragments "
            "take turns. A participant's weight counts from the newest snapshot on, so in "
            "the first turn after one, work of several outer steps weighs too little: use "
            f"{turns * fragments} or more",
        )


def _shape(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    model = run.model
    if model.width >= 512 and model.vocab % 64:
        yield Lint(
            "model.vocab", f"{model.vocab} is not a multiple of 64: matrices are slower on GPUs"
        )
    if model.width // model.heads > 256:
        yield Lint("model.heads", "heads wider than 256 cannot use fast attention on GPUs")


_ADVISERS: tuple[Adviser, ...] = (
    _block,
    _length,
    _slow_reduce,
    _policy,
    _muon,
    _coarse_ring,
    _fragments,
    _shape,
)
