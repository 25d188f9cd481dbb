"""Generating text one token at a time: the cache does not change the result, and a seed determines
the text."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

from p2ptrain.errors import ConfigError, TrainerDiverged
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.tools.generating import CachedModel, Sampling, generate, pick
from tests.rounding import UNIT
from tests.trainer.test_model import SPEC, started

GREEDY = Sampling(temperature=0.0)
TEXT = [7, 300, 0, 12, 12, 99, 250, 31]


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, qk_norm=True, tied=False, rope_base=5e5)])
@torch.no_grad()
def test_text_read_token_by_token_equals_text_read_at_once(spec: ModelSpec) -> None:
    model = started(spec)
    whole = model(torch.tensor([TEXT]))[0]
    reader = CachedModel(model)
    read = [reader.read_tokens(TEXT[:3])] + [reader.read_tokens([token]) for token in TEXT[3:]]
    # The model is in fp64, and the reader's results are rounded to fp32 once.
    torch.testing.assert_close(torch.stack(read), whole[2:].float(), rtol=2 * UNIT, atol=1e-12)
    assert reader.room == SPEC.sequence - len(TEXT)


@torch.no_grad()
def test_likeliest_token_is_chosen_each_time() -> None:
    model = started(SPEC)
    text = list(TEXT)
    for token in islice(generate(model, TEXT, GREEDY), SPEC.sequence - len(TEXT)):
        assert token == int(model(torch.tensor([text]))[0, -1].argmax())
        text.append(token)
    assert len(text) == SPEC.sequence


@torch.no_grad()
def test_when_all_positions_are_used_the_newer_half_is_read_again() -> None:
    model = started(SPEC)
    prompt = TEXT * 3
    tokens = list(islice(generate(model, prompt, GREEDY), 2 * SPEC.sequence))
    seen = (prompt + tokens[:1])[-SPEC.sequence // 2 :]
    assert tokens[0] == int(model(torch.tensor([prompt[-SPEC.sequence :]]))[0, -1].argmax())
    assert tokens[1] == int(model(torch.tensor([seen]))[0, -1].argmax())
    assert len(tokens) == 2 * SPEC.sequence


def test_seed_determines_the_text_and_a_different_seed_changes_it() -> None:
    model = started(SPEC)
    told = [list(islice(generate(model, TEXT, Sampling(1.0, 1.0, seed)), 12)) for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]


def test_tokens_are_chosen_in_proportion_to_their_probability() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    random = torch.Generator().manual_seed(0)
    drawn = [pick(logits, Sampling(1.0, 1.0), random) for _ in range(4000)]
    shares = [drawn.count(token) / len(drawn) for token in range(3)]
    six_deviations = 6 * math.sqrt(0.5 * 0.5 / len(drawn))
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=six_deviations)


@pytest.mark.parametrize(
    ("top_p", "left"), [(0.01, {0}), (0.5, {0}), (0.51, {0, 1}), (0.81, {0, 1, 2})]
)
def test_tokens_outside_top_p_are_never_chosen(top_p: float, left: set[int]) -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    random = torch.Generator().manual_seed(0)
    assert {pick(logits, Sampling(1.0, top_p), random) for _ in range(300)} == left


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-3])
def test_zero_temperature_chooses_the_likeliest_token(temperature: float) -> None:
    logits, random = torch.tensor([1e30, -1e30, 2e30]), torch.Generator().manual_seed(0)
    assert pick(logits, Sampling(temperature), random) == 2


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_model_with_nan_output_generates_nothing(spoilt: float, temperature: float) -> None:
    logits, random = torch.tensor([0.0, spoilt, 1.0]), torch.Generator().manual_seed(0)
    with pytest.raises(TrainerDiverged):
        pick(logits, Sampling(temperature), random)


@torch.no_grad()
def test_unused_positions_take_no_memory() -> None:
    model = started(SPEC)
    few = list(islice(generate(model, TEXT, GREEDY), 4))
    model.spec = replace(SPEC, sequence=2**62)
    assert list(islice(generate(model, TEXT, GREEDY), 4)) == few


@torch.no_grad()
def test_more_positions_are_allocated_as_they_are_needed() -> None:
    model = started(SPEC)
    whole = list(islice(generate(model, TEXT, GREEDY), 8))
    assert list(islice(generate(model, TEXT, GREEDY, positions=3), 8)) == whole


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1}],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Sampling(**wrong)
