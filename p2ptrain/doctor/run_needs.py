"""Check a run against this machine: memory, disk, and the expected work and traffic of a day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2ptrain.archive.update_format import payload_bytes_mean, published_formats
from p2ptrain.config.node import NodeConfig
from p2ptrain.data.blocks import encoded_bytes
from p2ptrain.doctor.finding import Finding, Tell, good
from p2ptrain.doctor.machine import as_finding, machine_facts
from p2ptrain.doctor.subject import Learned, Subject
from p2ptrain.observe.states import size
from p2ptrain.prepare.machine_check import (
    Machine,
    findings,
    inner_bytes,
    memory_needed,
    snapshot_bytes,
)
from p2ptrain.prepare.run_advice import GUESSED_PARAMETERS_MIN
from p2ptrain.prepare.run_cost import SECONDS_PER_DAY, USUAL_UTILISATION
from p2ptrain.run import Run
from p2ptrain.trainer.formats.shapes import parameter_count
from p2ptrain.trainer.host.flops import flops_per_token

MEMORY, DISK, SHARE = "memory for the run", "disk for the run", "your share"

ASSUMED_STEP_S = 600.0
"""Duration of an outer step of a model that is too small for an estimate: ten minutes."""

USUAL_BYTES_PER_S = 50e6 / 8
"""The rate of a typical home connection, for a connection that was not measured."""


@dataclass(frozen=True, slots=True)
class Share:
    """The work and the traffic of one node in a day. Sizes are in bytes."""

    steps: float
    tokens: float
    sent: float
    received: float
    is_computed: bool
    """Whether the number of steps was computed from this machine's speed. Otherwise, an outer step
    was assumed to take ten minutes."""


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_needs(config: NodeConfig, machine: Machine, run: Run) -> Iterator[Finding]:
    """Yield a line about memory and one about disk, as a node would judge them at its start."""
    found = {each.code: each for each in findings(config, machine, run)}
    if short := found.get("MEM-HOST"):
        yield as_finding(MEMORY, short)
    else:
        takes = size(memory_needed(config, machine, run))
        yield good(MEMORY, f"the model takes {takes}, and {size(machine.memory_free)} are free")
    if short := found.get("DISK-LOW"):
        yield as_finding(DISK, short)
    else:
        kept = 1 if config.keep_snapshots is None else config.keep_snapshots
        needed = (kept + 1) * snapshot_bytes(run) + inner_bytes(config, run)
        free = size(machine.disk_free + machine.stored)
        data = "all data" if config.seed else f"up to {size(config.data_cache_bytes)} of data"
        yield good(DISK, f"the node keeps {size(needed)} and {data}, and {free} are free for it")


def judge_share(share: Share) -> Finding:
    basis = (
        "a rough estimate from the speed of matrix products"
        if share.is_computed
        else "if an outer step takes ten minutes"
    )
    return good(
        SHARE,
        f"about {_count(share.tokens)} tokens a day; up to {size(share.sent)} up and "
        f"{size(share.received)} down a day ({basis})",
    )


def _count(number: float) -> str:
    for unit, scale in (("billion", 1e9), ("million", 1e6)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:,.0f}"


def share_of(run: Run, learned: Learned) -> Share:
    """Return the expected share of a node that trains alone at its own speed and never waits for
    others.

    For small models, the speed of matrix products says nothing: starting them takes most of the
    time. Then an outer step is assumed to take ASSUMED_STEP_S, and `judge_share` says so.
    """
    manifest = run.manifest
    update = payload_bytes_mean(published_formats(run.id, manifest))
    sequences = manifest.inner.batch_sequences
    block = encoded_bytes(manifest.model.vocab, sequences, manifest.model.sequence)
    tokens = manifest.blocks_per_step * manifest.data.block_tokens
    sent, received = 2 * update, 2 * update + manifest.blocks_per_step * block
    steps = SECONDS_PER_DAY / ASSUMED_STEP_S
    speed = learned.operations_per_s
    is_computed = speed is not None and parameter_count(manifest.model) >= GUESSED_PARAMETERS_MIN
    if speed is not None and is_computed:
        training_s = tokens * flops_per_token(manifest.model) / (speed * USUAL_UTILISATION)
        up = learned.up_bytes_per_s or USUAL_BYTES_PER_S
        down = learned.down_bytes_per_s or USUAL_BYTES_PER_S
        exchange_s = max(sent / up, received / down)
        hidden_s = training_s * manifest.sync.overlap_steps / manifest.inner.steps
        steps = SECONDS_PER_DAY / (training_s + max(0.0, exchange_s - hidden_s))
    return Share(steps, steps * tokens, steps * sent, steps * received, is_computed)


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def run_needs(subject: Subject, learned: Learned, tell: Tell) -> None:
    """Check the run that the earlier checks have found, if any."""
    run = learned.run
    if run is None:
        return
    for finding in judge_needs(subject.config, machine_facts(subject), run):
        tell(finding)
    if not subject.config.seed:
        tell(judge_share(share_of(run, learned)))
