"""Every run file that comes with p2ptrain loads, passes `run check`, and describes a model with the
expected number of parameters.
"""

from __future__ import annotations

import tomllib

import pytest
import torch

from p2ptrain.config.run_file import parse_run_file
from p2ptrain.config.samples import sample, sample_names
from p2ptrain.prepare.run_advice import lints_of
from p2ptrain.prepare.run_cost import block_bytes, costs_of
from p2ptrain.run.draft import inner_spec, model_spec
from p2ptrain.store import CHUNK_BYTES_MAX
from p2ptrain.trainer.formats.shapes import parameter_count
from p2ptrain.trainer.rank.model import Llama
from tests.architecture.sources import ROOT
from tests.cli.conftest import Command

PARAMETERS = {
    "demo": 541_536,
    "tiny": 39_584,
    "opendiloco_150m": 214_983_680,
    "opendiloco_1b": 1_100_048_384,
    "streaming_1b": 1_100_048_384,
    "intellect1_10b": 10_211_381_248,
    "metagene_7b": 6_484_660_224,
    "metagene_mini": 1_836_672,
}
"""The number of parameters of each model. The two largest were computed by hand, not by the code
under test."""


@pytest.mark.parametrize("name", sample_names())
def test_recipe_builds_its_model_and_run_check_shows_its_costs(
    name: str, p2ptrain: Command
) -> None:
    run = parse_run_file(tomllib.loads(sample(name)))
    spec = model_spec(run)
    with torch.device("meta"):
        model = Llama(spec)
    count = sum(each.numel() for each in model.parameters())
    assert count == parameter_count(spec) == PARAMETERS[name]
    stride = run.inner.steps // run.sync.fragments
    assert inner_spec(run).total_steps == stride * run.outer.steps
    costs = costs_of(run, [2, 8])
    assert [lint for lint in lints_of(run, costs) if lint.is_fault] == []
    checked = p2ptrain("run", "check", ROOT / "configs" / f"{name}.toml")
    assert checked.code == 0
    assert f"{count:,} parameters" in checked.out
    assert all(word in checked.out for word in ("trainer ", "node ", "disk ", "peers "))
    table = [
        line for line in checked.out.splitlines() if line.startswith("peers") or line[0].isdigit()
    ]
    assert len(table) == 5
    assert max(map(len, table)) <= 80, "a table with wrapped lines cannot be read"


@pytest.mark.parametrize(
    ("name", "sequences", "length"),
    [
        ("opendiloco_150m", 512, 1024),
        ("opendiloco_1b", 8192 // 4, 1024),
        ("intellect1_10b", 128, 8192),
        ("metagene_7b", 30_720 // 8, 512),
    ],
)
def test_batch_size_is_the_published_one_or_the_largest_in_a_block(
    name: str, sequences: int, length: int
) -> None:
    run = parse_run_file(tomllib.loads(sample(name)))
    assert run.model.sequence == length
    assert 0.99 * sequences < run.inner.batch_sequences <= sequences
    more = block_bytes(run) * (run.inner.batch_sequences + 1) // run.inner.batch_sequences
    assert run.inner.batch_sequences == sequences or more > CHUNK_BYTES_MAX


def test_every_recipe_is_tested_and_linked_in_configs() -> None:
    assert set(sample_names()) == set(PARAMETERS)
    assert all((ROOT / "configs" / f"{name}.toml").is_symlink() for name in PARAMETERS)


@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - {"tiny"}))
def test_recipe_cites_the_source_of_its_numbers(name: str) -> None:
    text = sample(name)
    assert text.startswith("# ")
    assert name == "demo" or "arXiv" in text.split("[run]")[0]
    assert all(len(line) <= 120 for line in text.splitlines())
