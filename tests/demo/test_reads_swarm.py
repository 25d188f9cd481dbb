"""`scripts/metagene_mini` changes only two settings of its recipe, and knows which results are
good."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.config.run_file import parse_run_file
from scripts.research.reads_swarm import RECIPE, Learnt, run_text
from tests.architecture.sources import ROOT

LEARNT = Learnt(2, 10, 100, 6.0, ((0, 6.9), (20, 5.7)), 1.0, True)


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"losses": ((0, 6.9), (20, 5.81))}, False),
        ({"losses": ((0, 5.0), (20, 5.9))}, False),
        ({"heads_agree": False}, False),
    ],
)
def test_good_run_has_a_loss_below_the_unigram_entropy_and_equal_weights(
    changes: dict[str, Any], good: bool
) -> None:
    assert replace(LEARNT, **changes).is_good == good


def test_recipe_is_changed_in_only_two_settings() -> None:
    recipe = (ROOT / RECIPE).read_text()
    asked = parse_run_file(tomllib.loads(recipe))
    changed = parse_run_file(tomllib.loads(run_text(recipe, "packed", 7)))
    assert (changed.data.source, changed.outer.steps) == ("packed", 7)
    assert changed.model == asked.model
    assert changed.inner == asked.inner
    same = parse_run_file(tomllib.loads(run_text(recipe, "reads.fasta", None)))
    assert same == asked
