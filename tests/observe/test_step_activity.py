"""The facts about an outer step are sums of the journal's records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.observe.journal import Journal
from p2ptrain.observe.series.step_activity import StepActivity, StepFacts

TRAINED = {
    "seconds": 2.0,
    "data_wait_s": 0.5,
    "loss": 3.0,
    "gradient_norm": 1.0,
    "mfu": 0.4,
    "learning_rate": 0.01,
}
EXCHANGED: dict[str, Any] = {
    "seconds": 0.25,
    "sent_bytes": 1000,
    "received_bytes": 900,
    "cosine": 0.5,
    "quantisation_error": 0.125,
    "sent_bytes_per_s_by_peer": {"bob": 1.0, "cai": 1.0},
}


def record(event: str, at_s: float, **fields: object) -> dict[str, object]:
    return {"event": event, "monotonic_s": at_s, **fields}


def facts_of(records: Iterable[dict[str, object]]) -> list[StepFacts]:
    activity = StepActivity()
    return [facts for each in records if (facts := activity.note(each)) is not None]


def test_outer_step_consists_of_the_records_since_the_last_one() -> None:
    (facts,) = facts_of(
        [
            record("committed", 5.0, step=7, skipped=False, fetch_s=9.0, apply_s=9.0),
            record("trainer-config", 6.0, device="cpu"),
            record("caught-up", 10.0, step=8),
            record("inner-step", 12.0, **TRAINED),
            record("inner-step", 14.0, **(TRAINED | {"loss": 2.0, "mfu": None})),
            record("exchange-started", 15.0),
            record("exchange-failed", 15.5),
            record("exchange-started", 16.0),
            record("relayed", 16.1, peer="bob", about="reduce"),
            record("punched", 16.1, peer="cai", about="chunks"),
            record("exchange-done", 16.5, **EXCHANGED),
            record("committed", 20.0, step=8, skipped=False, fetch_s=0.0, apply_s=0.125),
        ]
    )
    assert facts == StepFacts(
        step=9,
        skipped=False,
        train_ms=3000,
        data_wait_ms=1000,
        wait_ms=5125,
        exchange_ms=750,
        fetch_ms=0,
        apply_ms=125,
        bytes_up=1000,
        bytes_down=900,
        loss=2.5,
        gradient_norm=1.0,
        mfu=0.4,
        learning_rate=0.01,
        cosine=0.5,
        quantisation_error=0.125,
        device="cpu",
        paths={"bob": "relayed", "cai": "direct"},
    )


def test_each_step_has_its_own_sums() -> None:
    second = facts_of(
        [
            record("caught-up", 0.0),
            record("inner-step", 2.0, **TRAINED),
            record("exchange-done", 2.5, **EXCHANGED),
            record("committed", 3.0, step=0, skipped=False),
            record("committed", 4.0, step=1, skipped=True),
        ]
    )[1]
    assert (second.skipped, second.train_ms, second.exchange_ms, second.wait_ms) == (
        True,
        0,
        0,
        1000,
    )
    assert (second.loss, second.cosine, second.bytes_up, second.paths) == (None, None, 0, {})


def test_rounding_does_not_add_up() -> None:
    short = TRAINED | {"seconds": 0.0006, "data_wait_s": 0.0}
    records = [record("caught-up", 0.0)]
    for step in range(1000):
        records.append(record("inner-step", step + 0.5, **short))
        records.append(record("committed", step + 1.0, step=step, skipped=False, apply_s=0.0007))
    found = facts_of(records)
    assert sum(facts.train_ms for facts in found) == pytest.approx(600, abs=1)
    assert sum(facts.apply_ms for facts in found) == pytest.approx(700, abs=1)
    total = sum(facts.train_ms + facts.apply_ms + facts.wait_ms for facts in found)
    assert total == pytest.approx(1_000_000, abs=3)


def test_training_during_exchanges_leaves_no_time_to_wait() -> None:
    (facts,) = facts_of(
        [
            record("caught-up", 0.0),
            record("inner-step", 2.0, **TRAINED),
            record("exchange-done", 2.0, **EXCHANGED),
            record("committed", 2.0, step=0, skipped=False),
        ]
    )
    assert facts.wait_ms == 0


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"event": None},
        record("inner-step", 1.0),
        record("inner-step", 1.0, seconds="nan", data_wait_s=None, loss="inf"),
        record("exchange-done", 1.0, sent_bytes_per_s_by_peer=3),
        record("exchange-failed", 1.0),
        {"event": "committed", "step": "x"},
        {"event": "caught-up"},
    ],
)
def test_odd_records_are_ignored(odd: dict[str, object]) -> None:
    facts_of([record("caught-up", 0.0), odd, record("committed", 2.0, step=0)])


def test_follower_of_a_journal_gets_records_as_written(tmp_path: Path) -> None:
    got: list[object] = []
    with Journal(tmp_path / "journal.jsonl", monotonic=lambda: 7.0) as journal:
        journal.write("before")
        with journal.followed(lambda record: got.append((record["event"], record.get("loss")))):
            journal.write("inner-step", loss=float("nan"))
            journal.path.unlink()
        journal.write("after")
    assert got == [("inner-step", "nan")]
