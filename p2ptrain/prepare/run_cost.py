"""Estimate what a run costs its participants: memory, disk, bytes per outer step, and time.

The estimates are arithmetic on the run's sizes. Real machines and connections may be slower.
`trainer.host.cost` estimates the memory of the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2ptrain.config.run_file import RunFile
from p2ptrain.data.blocks import encoded_bytes
from p2ptrain.kernels import codec
from p2ptrain.prepare.node_memory import NodeMemory, node_memory
from p2ptrain.run.draft import inner_spec, model_spec
from p2ptrain.sync.fragments import fragments
from p2ptrain.trainer.formats.shapes import layout_of, parameter_count
from p2ptrain.trainer.host.cost import TrainerMemory, trainer_memory
from p2ptrain.trainer.host.flops import PEAK_FLOPS_PER_S, flops_per_token

RATES_MBIT = (10, 50, 200)
"""Rates in Mbit/s of a slow, a typical and a fast home connection."""

USUAL_UTILISATION = 0.4
"""Share of an H100's peak speed that is assumed if the user does not give a training rate. A
well-tuned trainer reaches this share."""

H100_BYTES = 80 * 10**9

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class ReduceCost:
    """One exchange among `peers`. Each peer sends `sent_bytes`, and receives the same number."""

    peers: int
    sent_bytes: int

    def seconds(self, mbit: float) -> float:
        """Return the duration in seconds at `mbit` Mbit/s up and down, ignoring latency and
        computation."""
        return self.sent_bytes * 8 / (mbit * 1e6)


@dataclass(frozen=True, slots=True)
class RunScenario:
    """A run in which each peer has an internet connection of `mbit` Mbit/s, and trains for
    `inner_s` seconds in each outer step."""

    exchange: ReduceCost
    mbit: float
    inner_s: float
    outer_steps: int
    tokens: int
    """Tokens of all peers in all outer steps."""
    overlap_s: float = 0.0
    """Maximum number of seconds for which training continues during an exchange."""

    @property
    def reduce_s(self) -> float:
        return self.exchange.seconds(self.mbit)

    @property
    def waited_s(self) -> float:
        """Seconds per outer step that trainers wait for the exchange."""
        return max(0.0, self.reduce_s - self.overlap_s)

    @property
    def days(self) -> float:
        return self.outer_steps * (self.inner_s + self.waited_s) / SECONDS_PER_DAY

    @property
    def utilisation(self) -> float:
        """The fraction of time that trainers spend training."""
        return self.inner_s / (self.inner_s + self.waited_s)


@dataclass(frozen=True, slots=True)
class RunCosts:
    """The costs of one run, for each peer."""

    parameters: int
    trainer_bf16: TrainerMemory
    trainer_fp32: TrainerMemory
    node: NodeMemory
    update_bytes: int
    snapshot_bytes: int
    block_bytes: int
    step_tokens: int
    """Tokens that a peer trains on in an outer step."""
    step_operations: int
    tokens_per_s: float
    """Training rate of one peer: given by the user, or estimated for H100s."""
    h100s: int
    """Number of H100s that a trainer needs for its memory."""
    is_told: bool
    """Whether the user gave the training rate."""
    plans: tuple[RunScenario, ...]

    @property
    def inner_s(self) -> float:
        return self.step_tokens / self.tokens_per_s


def costs_of(run: RunFile, peers: Sequence[int], tokens_per_s: float | None = None) -> RunCosts:
    """Return the costs of `run`, with one scenario for each number in `peers` and each connection
    in `RATES_MBIT`. `tokens_per_s` is the training rate of one peer, if the user gave it."""
    model, inner = model_spec(run), inner_spec(run)
    layout, sync = layout_of(model), run.sync
    cut, of_run = fragments(layout, sync.fragments), codec(run.codec.name, run.codec.block)
    update = sum(of_run.encoded_bytes(each.numel) for each in cut) // len(cut)
    step_tokens = inner.steps // sync.fragments * inner.batch_sequences * model.sequence
    overlap_tokens = sync.overlap_steps * inner.batch_sequences * model.sequence
    operations = flops_per_token(model)
    trainer_bf16 = trainer_memory(model, inner, "bf16", eager=sync.eager)
    h100s = -(-trainer_bf16.least // H100_BYTES)
    usual = h100s * PEAK_FLOPS_PER_S["H100"] * USUAL_UTILISATION / operations
    rate = tokens_per_s or usual
    return RunCosts(
        parameters=parameter_count(model),
        trainer_bf16=trainer_bf16,
        trainer_fp32=trainer_memory(model, inner, "fp32", eager=sync.eager),
        node=node_memory(
            layout.numel,
            update,
            feedback=run.codec.feedback,
            cut=cut,
            claims=run.has_claims,
        ),
        update_bytes=update,
        snapshot_bytes=8 * layout.numel,
        block_bytes=block_bytes(run),
        step_tokens=step_tokens,
        step_operations=step_tokens * operations,
        tokens_per_s=rate,
        h100s=h100s,
        is_told=tokens_per_s is not None,
        plans=tuple(
            RunScenario(
                ReduceCost(count, sent_bytes(update, count)),
                mbit,
                step_tokens / rate,
                run.outer.steps,
                step_tokens * count * run.outer.steps,
                overlap_tokens / rate,
            )
            for count in peers
            for mbit in RATES_MBIT
        ),
    )


def sent_bytes(update_bytes: int, peers: int) -> int:
    """Return the bytes that each of `peers` peers sends in an exchange. Each peer computes the
    average of one part of the update. A peer sends the other parts to the peers that average them,
    and then sends its own average to all."""
    return 2 * update_bytes * (peers - 1) // peers


def block_bytes(run: RunFile) -> int:
    """Return the size in bytes of one data block, which is one inner step's batch."""
    return encoded_bytes(run.model.vocab, run.inner.batch_sequences, run.model.sequence)
