"""The length to expect of each contribution to an outer step, according to its roster.

A participant's work on k blocks is k inner steps, and the run's schedule says with which learning
rates. Steps beyond those of one outer step were made before it began: by a member that missed an
average, or continued after a skipped one. These facts are the same for all peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.ipc.learning_rate import join_share, learning_rate
from p2ptrain.kernels import Sums
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.proofs.sketch_rules import Judged, expected_length


def knows_lengths(outer_step: OuterStep) -> bool:
    """Return whether lengths can be compared in this run. They were measured for runs that average
    all of θ at once, while the trainers wait."""
    sync = outer_step.manifest.sync
    return sync.fragments == 1 and sync.overlap_steps == 0


def rates_of(outer_step: OuterStep, blocks: int) -> list[float]:
    """Return the learning rates of the inner steps on this many blocks, in order."""
    inner, agreed = outer_step.manifest.inner, outer_step.inner_rates
    spec = replace(inner, lr=agreed.lr)
    stop = outer_step.first_inner_step + min(blocks, outer_step.pace.stride)
    steps = [max(0, each) for each in range(stop - blocks, stop)]
    return [learning_rate(spec, agreed.schedule_step(each)) for each in steps]


def judged_of(
    outer_step: OuterStep,
    participants: Sequence[Participant],
    weights: Sequence[int],
    sketches: Sequence[Sums],
) -> list[Judged]:
    """Return what the rules about sketches compare. All arguments are in the roster's order."""
    inner = outer_step.manifest.inner
    found = []
    for part, weight, sums in zip(participants, weights, sketches, strict=True):
        rates = rates_of(outer_step, part.blocks)
        usual = expected_length(rates)
        fresh = [rate * join_share(inner, since) for since, rate in enumerate(rates)]
        if usual > 0:
            found.append(Judged(sums, usual, weight, expected_length(fresh)))
        else:  # The schedule has ended at a rate of 0. All contributions are equally short.
            found.append(Judged(sums, 1.0, weight))
    return found
