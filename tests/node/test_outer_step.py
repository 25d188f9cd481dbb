"""`OuterSteps` returns the terms of an outer step: those of the manifest, changed by the amendments
that apply to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.home import Home
from p2ptrain.archive.outer_step import KEPT_MAX, OuterSteps
from p2ptrain.archive.update_format import payload_bytes_mean, published_formats
from p2ptrain.encoding import pack
from p2ptrain.errors import LocalProtocolError
from p2ptrain.identity import load_or_create
from p2ptrain.ledger.chain.values import Terms
from p2ptrain.run import Amendment, CodecSpec, Leg, OuterSpec, Run, SignedAmendment
from p2ptrain.sync import SyncSpec
from p2ptrain.sync.trainer_orders import LeasePace
from p2ptrain.testing.published import publish

STEP = 3
"""The outer step from which the amendment applies."""

CHANGES = {"inner_steps": 8, "codec": "fp16", "outer_lr": 0.3, "lr": 0.002}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def run(home: Home) -> Run:
    sync = SyncSpec(fragments=2, overlap_steps=1)
    return publish(home, steps=99, inner_steps=4, sync=sync, codec=CodecSpec("int8", 64))


def amended(home: Home, run: Run) -> tuple[OuterSteps, tuple[Terms, ...]]:
    """Return the outer steps of a run with an amendment, and the ledger's list of agreed
    amendments, which includes this one."""
    wanted = Amendment(run.id, 1, STEP, **CHANGES)  # type: ignore[arg-type]
    signed = SignedAmendment.publish(load_or_create(home.identity), wanted, run)
    amendments = Amendments.of(home, run)
    amendments.adopt_new(pack([signed.to_bytes()]))
    return OuterSteps(run.id, run.manifest, amendments), (signed.terms,)


def test_amendment_changes_the_terms_from_its_outer_step_on(home: Home, run: Run) -> None:
    steps, agreed = amended(home, run)
    before, after = steps.at(agreed, STEP - 1), steps.at(agreed, STEP)
    assert before.leg == Leg(run.manifest)
    assert (before.step, before.codec.name, before.pace) == (STEP - 1, "int8", LeasePace(2, 1))
    assert (after.step, after.codec.name, after.pace) == (STEP, "fp16", LeasePace(4, 1))
    assert after.rates == replace(run.manifest.outer, lr=0.3)
    assert isinstance(before.rates, OuterSpec)
    assert [each.first_inner_step for each in (before, after)] == [4, 6]
    assert [each.inner_rates.lr for each in (before, after)] == [run.manifest.inner.lr, 0.002]


def test_format_of_an_update_follows_from_the_terms_of_its_step(home: Home, run: Run) -> None:
    steps, agreed = amended(home, run)
    even, odd = published_formats(run.id, run.manifest)
    assert even.fragment != odd.fragment
    assert steps.at((), 4).update == replace(even, step=4)
    update, spec = steps.at(agreed, STEP).update, CodecSpec("fp16", 64)
    assert update == replace(odd, step=STEP, spec=spec, influence_max=update.influence_max)
    assert update.meta == {
        "run": run.id,
        "step": STEP,
        "numel": odd.fragment.numel,
        "codec": "fp16",
        "block": 64,
    }
    assert steps.payload_bytes_about(agreed, STEP) == payload_bytes_mean(
        [replace(each, spec=spec) for each in (even, odd)]
    )


def test_outer_step_is_created_once_for_the_same_terms(home: Home, run: Run) -> None:
    steps, agreed = amended(home, run)
    first = steps.at((), 0)
    assert steps.at((), 0) is first
    assert steps.at(agreed, 0) is not first
    assert steps.at(agreed, 0) == first, "the amendment applies only later"


def test_only_the_newest_outer_steps_are_kept_in_memory(home: Home, run: Run) -> None:
    steps, _ = amended(home, run)
    first, *_, last = [steps.at((), step) for step in range(KEPT_MAX + 1)]
    assert steps.at((), last.step) is last
    assert steps.at((), 0) is not first
    assert steps.at((), 0) == first


def test_outer_step_cannot_be_used_while_its_amendment_is_missing(home: Home, run: Run) -> None:
    _, agreed = amended(home, run)
    home.amendments.unlink()
    steps = OuterSteps(run.id, run.manifest, Amendments.of(home, run))
    assert steps.at(agreed, STEP - 1).leg == Leg(run.manifest)
    with pytest.raises(LocalProtocolError):
        steps.at(agreed, STEP)
