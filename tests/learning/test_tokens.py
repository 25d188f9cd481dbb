"""How many tokens ordinary training would need to reach the loss of an arm (one of the compared
ways to train), computed from known losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.research.learning.compared import by_arm
from scripts.research.learning.record import Record
from scripts.research.learning.results import read_results
from scripts.research.learning.tokens import NO_DATA, Ordinary

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "learning"


def record(
    arm: str, loss: float | None, seed: int = 1, tokens: int = 4096, **settings: object
) -> Record:
    plain: dict[str, object] = {
        "start": {"steps": 1},
        "churn": None,
        "batch_sequences": 4,
        "model": {"sequence": 8},
        "total_steps": 128,
    }
    curve = ((1, 3.0, 3.0),)
    return Record(arm, seed, "d", "text", loss, tokens, 1, 1.0, curve, plain | settings)


DP = [record("dp", 2.0), record("dp", 2.1, seed=2)]
SHORT = [record("dp-short", 2.1, tokens=2048)]


def ordinary(whole: Sequence[Record] = DP, half: Sequence[Record] = SHORT) -> Ordinary | None:
    return Ordinary.of({"dp": whole, "dp-short": half})


@pytest.mark.parametrize(
    ("records", "cell"),
    [
        (DP, "1.00 ± 0.00"),
        (SHORT, "1.00"),
        ([record("diloco-4", 2.05)], "1.41"),
        ([record("diloco-4", 2.2)], "4.00 *"),
        ([record("diloco-4", 2.1), record("diloco-4", 2.2, seed=2)], "2.00 ± 0.00"),
        ([record("alone", 2.2, tokens=1024)], "4.00 *"),
        ([record("churn-fresh", 2.1, tokens=3072, churn={})], "2.00"),
        ([record("slow", 2.1, tokens=3072)], "1.50"),
        ([record("scratch-dp", 2.0, start=None)], NO_DATA),
        ([record("diloco-4", None)], NO_DATA),
        ([record("diloco-4", 2.0, seed=3)], NO_DATA),
    ],
)
def test_loss_is_converted_to_tokens_of_ordinary_training(records: list[Record], cell: str) -> None:
    """In these records, doubling the tokens lowers the loss by 0.1 nats."""
    found = ordinary()
    assert found is not None
    assert found.cell(records) == cell


def test_conversion_needs_a_shorter_and_worse_run_of_the_same_seed() -> None:
    assert ordinary(half=[]) is None
    assert ordinary(half=[replace(SHORT[0], seed=3)]) is None
    assert ordinary(half=[replace(SHORT[0], loss=1.9)]) is None, (
        "more tokens must have lowered the loss"
    )


def test_published_page_agrees_with_the_records() -> None:
    found = by_arm(read_results(RESULTS, RESULTS / "none").values())
    page = RESULTS.with_suffix(".md").read_text()
    reached = Ordinary.of(found)
    assert reached is not None
    assert reached.explained in page
    for arm, cell in (("alone", "4.34 ± 0.24 *"), ("churn-fresh", "3.80 ± 0.26 *")):
        assert reached.cell(found[arm]) == cell
        assert f" | {cell} | " in next(
            row for row in page.splitlines() if row.startswith(f"| {arm} | 2")
        )
