"""The length to expect follows from the roster and the run's schedule alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2ptrain.archive.expected_lengths import judged_of, knows_lengths, rates_of
from p2ptrain.ids import PeerId
from p2ptrain.kernels import WIDTH
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.proofs.sketch_rules import expected_length
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.sync import SyncSpec
from tests.node.rig import rig

CLAIMS = TrustRules(claims=True)


async def test_rates_are_those_of_the_inner_steps_that_were_made(tmp_path: Path) -> None:
    """The run trains two blocks in an outer step, and its rate rises during eight inner steps."""
    async with rig(tmp_path, trust=CLAIMS) as r:
        third = r.context.outer_step(2)
    inner = replace(third.manifest.inner, lr=8.0, warmup_steps=8)
    leg = replace(third.leg, manifest=replace(third.manifest, inner=inner))
    third = replace(third, leg=leg)
    assert third.first_inner_step == 4
    assert rates_of(third, 1) == [5.0]
    assert rates_of(third, 2) == [5.0, 6.0]
    assert rates_of(third, 4) == [3.0, 4.0, 5.0, 6.0]


async def test_new_trainer_may_be_slow_to_begin(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS, join_warmup_steps=4) as r:
        step = r.context.outer_step(0)
    part = Participant(PeerId("ann"), 32, 2)
    (judged,) = judged_of(step, [part], [32], [np.ones(WIDTH, np.int64)])
    lr = step.manifest.inner.lr
    assert judged.expected == pytest.approx(expected_length(rates_of(step, 2)))
    assert judged.least <= expected_length([lr / 4, lr / 2])


@pytest.mark.parametrize(
    ("sync", "known"), [(SyncSpec(), True), (SyncSpec(2, 0), False), (SyncSpec(1, 1), False)]
)
async def test_lengths_are_known_in_plain_runs_only(
    tmp_path: Path, sync: SyncSpec, known: bool
) -> None:
    async with rig(tmp_path, trust=CLAIMS, sync=sync) as r:
        assert knows_lengths(r.context.outer_step(0)) is known
