"""Warn an organiser about weaknesses of a run file before anybody is invited to the run.

A finding is a `Lint`: either a fault that prevents the run from working, or a warning. Findings
depend only on the run file and its estimated costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from p2ptrain.config.run_file import RunFile
from p2ptrain.errors import counted
from p2ptrain.ledger.chain.founders import survives_a_loss
from p2ptrain.net.addresses import parse_with_peer
from p2ptrain.net.scopes import scope_of
from p2ptrain.prepare.run_cost import RunCosts
from p2ptrain.ring.arrangement import COARSE_RING_PEERS_MAX
from p2ptrain.store import CHUNK_BYTES_MAX

OUTER_STEPS_MIN = 60
"""Recommended minimum number of averages. With fewer of them, the loss becomes much higher than in
data-parallel training (arXiv 2503.09799)."""

TOKENS_PER_PARAMETER_MIN = 5.0
"""Recommended minimum of tokens per parameter. With fewer tokens, a smaller model would be better
(the Chinchilla optimum is 20)."""

WARMUP_SHARE_MAX = 0.2
UTILISATION_MIN = 0.8
USUAL_MBIT = 50
GUESSED_PARAMETERS_MIN = 100_000_000
"""Minimum number of parameters of a model whose training rate is estimated. In smaller models,
launching kernels takes most of the time, so a device's peak rate does not predict the speed."""

SNAPSHOT_TURNS_MIN = 4
"""Recommended minimum number of averages of each fragment between two snapshots. The weight of a
participant in an average counts only its work since the newest snapshot. So in the first average of
each fragment after a snapshot, work from before the snapshot has too little weight."""

STEP_RATES_MAX = 1.2
"""The longest step of AdamW with betas of 0.9 and 0.95, as a multiple of the learning rate. If
policy.influence_max is smaller, honest work is refused."""

MUON_MOMENTUM_MAX = 0.5
"""Recommended maximum of the outer momentum with Muon. Outer momenta of 0.64 and 0.9 mostly
resulted in a loss 8 to 15 % higher than with little or no momentum. The best values for two and
four peers were 0 and 0.2 (docs/results/learning.md)."""

INFLUENCE_ROOM = 3.0
"""Recommended minimum of policy.influence_max. A peer that was left out contributes the work of two
or more outer steps at once."""


@dataclass(frozen=True, slots=True)
class Lint:
    """One finding. `field` is its place in the run file. If `is_fault`, the run cannot work."""

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
        over = f"a data block would have {costs.block_bytes:,} bytes, over {CHUNK_BYTES_MAX:,}"
        fits = CHUNK_BYTES_MAX * run.inner.batch_sequences // costs.block_bytes
        yield Lint(
            "inner.batch_sequences",
            f"{over}; at most {counted(fits, 'sequence fits', 'sequences fit')}",
            True,
        )


def _seed(text: str) -> Iterator[Lint]:
    address, _ = parse_with_peer(text)
    if words := scope_of(address).words:
        yield Lint("seed", f"{address.transport} is {words}")


def founders_lints(run: RunFile, founders: int) -> list[Lint]:
    """Return a lint if an open run has too few founders. Only founders vote in an open run, so with
    too few of them the loss of one can stop the run."""
    least = survives_a_loss(run.policy.quorum)
    if run.run.admission != "open" or founders >= least:
        return []
    given = counted(founders, "founder")
    return [
        Lint(
            "run.admission",
            f"in an open run only founders vote, and with {given} the loss of one can "
            f"stop the run: publish it with {least} or more founders (run publish --founder)",
        )
    ]


def _length(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    averages, fragments = run.outer.steps // run.sync.fragments, run.sync.fragments
    if averages < OUTER_STEPS_MIN:
        of = f", in which each of {fragments} fragments is averaged {counted(averages, 'time')}"
        yield Lint(
            "outer.steps",
            f"the run has {counted(run.outer.steps, 'outer step')}"
            f"{of if fragments > 1 else ''}; with fewer than {OUTER_STEPS_MIN} "
            f"{'averages of each fragment' if fragments > 1 else 'of them'}, the result is much "
            "worse than with training in one place",
        )
    total = run.inner_steps_total
    if run.inner.warmup_steps > WARMUP_SHARE_MAX * total:
        share = run.inner.warmup_steps / total
        yield Lint("inner.warmup_steps", f"{share:.0%} of the whole run is warm-up")
    tokens = costs.step_tokens * run.outer.steps * run.policy.participants_min
    if tokens < TOKENS_PER_PARAMETER_MIN * costs.parameters:
        yield Lint(
            "model",
            f"with {counted(run.policy.participants_min, 'peer')}, the run has only "
            f"{tokens / costs.parameters:.1f} tokens per parameter; a smaller model would learn "
            "more from so few tokens",
        )


def is_unknown(costs: RunCosts) -> bool:
    """Return whether the training time is unknown, because the user did not give a training rate,
    and the model is too small for an estimate."""
    return not costs.is_told and costs.parameters < GUESSED_PARAMETERS_MIN


def _slow_reduce(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    if is_unknown(costs):
        return
    for plan in costs.plans:
        if plan.mbit == USUAL_MBIT and plan.utilisation < UTILISATION_MIN:
            yield Lint(
                "inner.steps",
                f"with internet connections of {plan.mbit} Mbit/s, {plan.exchange.peers} peers "
                f"would train only {plan.utilisation:.0%} of the time: use more inner steps, or a "
                "codec with fewer bits",
            )
            return


def _policy(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    policy = run.policy
    if policy.encryption == "none":
        yield Lint("policy.encryption", "anybody on the network path can read and change bulk data")
    if policy.participants_min < 2:
        yield Lint("policy.participants_min", "a single peer can take outer steps alone")
    if policy.influence_max < INFLUENCE_ROOM:
        is_fault = policy.influence_max < STEP_RATES_MAX
        what = "ordinary work" if is_fault else "the work of a peer that missed several outer steps"
        yield Lint("policy.influence_max", f"{what} would be rejected as too far from θ", is_fault)
    replay = policy.snapshot_every * costs.update_bytes
    if replay > costs.snapshot_bytes:
        yield Lint(
            "policy.snapshot_every",
            f"the updates between two snapshots are {replay / costs.snapshot_bytes:.1f} times "
            "as large as a snapshot, so newcomers download more than necessary",
        )


def _muon(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    momentum = run.outer.momentum
    if run.inner.optimizer == "muon" and momentum >= MUON_MOMENTUM_MAX:
        yield Lint(
            "outer.momentum",
            f"{momentum:g} is too much for Muon: in our measurements the loss ended 8 to 15 % "
            "higher than with little or no momentum; start with 0 and try 0.2",
        )


def _coarse_ring(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    most = max((plan.exchange.peers for plan in costs.plans), default=0)
    if run.codec.name == "int4" and most > COARSE_RING_PEERS_MAX:
        yield Lint(
            "codec.name",
            f"int4 loses precision in a ring of more than {COARSE_RING_PEERS_MAX} peers: every "
            "hop rounds, so the error of a mean is 17 % with 4 peers, 33 % with 16 and 71 % with "
            "64. If each peer sends directly to all others, the error is 15 %. Nodes use a ring "
            "only if too few pairs of peers can connect, so make every peer dialable, or choose "
            "int8",
        )


def _fragments(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    fragments, every = run.sync.fragments, run.policy.snapshot_every
    turns = min(SNAPSHOT_TURNS_MIN, costs.snapshot_bytes // (fragments * costs.update_bytes))
    if fragments > 1 and every < turns * fragments:
        yield Lint(
            "policy.snapshot_every",
            f"the run takes a snapshot every {every} outer steps, and {fragments} fragments "
            "take turns. A participant's weight in an average counts only work since the newest "
            "snapshot, so in the first average of a fragment after a snapshot, older work has too "
            f"little weight: use {turns * fragments} or more",
        )


def _shape(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    model = run.model
    if model.width >= 512 and model.vocab % 64:
        words = f"{model.vocab} is not a multiple of 64, which slows matrix products on GPUs"
        yield Lint("model.vocab", words)
    if model.width // model.heads > 256:
        yield Lint("model.heads", "heads wider than 256 cannot use fast attention on GPUs")


def _organisers(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    number, least = len(run.organisers.peers) + 1, run.organisers.signatures_min
    if number > 1 and least == number:
        yield Lint(
            "organisers.signatures_min",
            f"all {number} organisers must sign, so if one key is lost, nobody can admit peers or "
            f"replace the key: use {number - 1} or less",
        )


def _outside(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    about, public, samples = run.about, run.public, run.samples
    if (public.weights or run.run.admission == "open") and not about.licence:
        yield Lint(
            "about.licence", "anybody can fetch the weights, but nobody knows what they may do"
        )
    if public.names and not public.telemetry:
        yield Lint("public.names", "it has no effect without public.telemetry")
    if public.telemetry and not public.names:
        yield Lint(
            "public.telemetry",
            "strangers can read the ledger, and it names the members by their peer ids: reports "
            "without names hide only the names",
        )
    if public.weights and not public.telemetry:
        yield Lint(
            "public.weights",
            "strangers cannot find out which snapshot is the newest without public.telemetry",
            is_fault=True,
        )
    if samples.prompts and samples.every > run.outer.steps:
        yield Lint(
            "samples.every",
            f"the run has only {counted(run.outer.steps, 'outer step')}, so the model is never "
            "sampled",
        )


def _trust(run: RunFile, costs: RunCosts) -> Iterator[Lint]:
    if run.has_claims:
        return
    why = ", because codec.feedback is true" if run.trust.claims else ""
    yield Lint(
        "trust.claims",
        f"it is false{why}: a member can replace a sum during an exchange, and nobody can find out",
    )


_ADVISERS: tuple[Adviser, ...] = (
    *(_block, _length, _slow_reduce, _policy),
    *(_muon, _coarse_ring, _fragments, _shape, _organisers, _outside, _trust),
)
