"""The table of parameters, made without torch, matches the model. `genesis` makes the same first
weights each time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from blake3 import blake3

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of, parameter_count, parameters
from p2ptrain.trainer.rank.model import Llama

SPEC = ModelSpec(vocab=301, layers=2, width=36, heads=6, kv_heads=2, ffn=75, sequence=16)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(SPEC, tied=False, qk_norm=True),
        replace(SPEC, kv_heads=6),
        replace(SPEC, layers=11, ffn=8),
    ],
)
def test_table_matches_the_model(spec: ModelSpec) -> None:
    with torch.device("meta"):
        model = Llama(spec)
    told = {parameter.name: parameter.shape for parameter in parameters(spec)}
    assert told == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert parameter_count(spec) == sum(p.numel() for p in model.parameters())


def test_same_seed_gives_the_same_bytes_in_every_version() -> None:
    digest = blake3(genesis(SPEC, seed=7).tobytes()).hexdigest()
    assert digest == blake3(genesis(SPEC, seed=7).tobytes()).hexdigest()
    assert digest[:16] == "89c06c2b2864ed56"


def test_different_seed_gives_different_values() -> None:
    assert not np.array_equal(genesis(SPEC, seed=7), genesis(SPEC, seed=8))


def test_padding_is_zero_and_gains_are_one() -> None:
    theta, layout = genesis(SPEC, seed=0), layout_of(SPEC)
    covered = np.zeros(layout.numel, dtype=bool)
    for entry in layout.entries:
        covered[entry.offset : entry.end] = True
        if "norm" in entry.name:
            assert set(theta[entry.offset : entry.end]) == {1.0}
    assert theta.dtype == np.float32
    assert not covered.all()
    assert not theta[~covered].any()


def test_genesis_of_a_parameter_does_not_depend_on_the_others() -> None:
    shallow, deep = SPEC, replace(SPEC, layers=5)
    for name in ("embedding.weight", "blocks.1.attention.query.weight"):
        values = []
        for spec in (shallow, deep):
            entry = next(entry for entry in layout_of(spec).entries if entry.name == name)
            values.append(genesis(spec, seed=3)[entry.offset : entry.end])
        np.testing.assert_array_equal(values[0], values[1])
