"""A trainer's settings survive JSON, and invalid ones cannot be constructed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.errors import ConfigError
from p2ptrain.ipc.trainer_config import Halving, InnerSpec, ModelSpec, TrainerConfig

MODEL = ModelSpec(vocab=300, layers=2, width=32, heads=4, kv_heads=2, ffn=64, sequence=16)
INNER = InnerSpec(steps=4, batch_sequences=4, lr=1e-3, warmup_steps=2, total_steps=40)
FOUND = Halving("A GPU", 9, 2)
CONFIG = TrainerConfig(MODEL, INNER, threads=2, micro_batch=1, halving=FOUND, document_token=4)


def test_settings_survive_json() -> None:
    assert TrainerConfig.from_json(CONFIG.to_json()) == CONFIG


def test_seed_that_a_node_of_an_earlier_version_sends_is_ignored() -> None:
    earlier = json.loads(CONFIG.to_json()) | {"seed": 5}
    assert TrainerConfig.from_json(json.dumps(earlier)) == CONFIG


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        (MODEL, "vocab", 0),
        (MODEL, "layers", 1.5),
        (MODEL, "width", 30),
        (MODEL, "width", 4),
        (MODEL, "kv_heads", 3),
        (MODEL, "rope_base", 0.5),
        (INNER, "steps", 0),
        (INNER, "warmup_steps", 41),
        (INNER, "lr", float("nan")),
        (INNER, "clip", -1.0),
        (INNER, "schedule", "linear"),
        (INNER, "optimizer", "sgd"),
        (INNER, "join_warmup_steps", -1),
        (INNER, "betas", (0.9, 1.0)),
        (INNER, "join_optimizer", "stolen"),
        (replace(INNER, join_optimizer="donor"), "betas", (0.98, 0.95)),
        (CONFIG, "device", "tpu"),
        (CONFIG, "precision", "fp8"),
        (CONFIG, "threads", 0),
        (CONFIG, "micro_batch", -1),
        (CONFIG, "eager", True),
        (CONFIG, "document_token", 300),
        (CONFIG, "document_token", True),
    ],
)
def test_error_for_an_invalid_setting_names_it(
    spec: ModelSpec | InnerSpec | TrainerConfig, field: str, value: object
) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=field) as caught:
        replace(spec, **changed)
    assert caught.value.do


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", CONFIG.to_json()[:-1]])
def test_text_that_is_not_valid_settings_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        TrainerConfig.from_json(text)
