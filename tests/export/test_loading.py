"""A folder of weights can come from anyone. A part that does not fit is refused, and the error
names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file, save_file

from p2ptrain.errors import ConfigError, MachineUnfit
from p2ptrain.export.folder import ExportPlan, export
from p2ptrain.export.source import ThetaInMemory
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.tools import exported
from p2ptrain.trainer.tools.exported import load_model
from tests.export.conftest import ORIGIN, SPEC, TOKENIZER, trained

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return export(
        ExportPlan(SPEC, ORIGIN, TOKENIZER), ThetaInMemory(trained(SPEC)), tmp_path / "o"
    ).folder


@pytest.mark.parametrize("shard_bytes_max", [10**9, 9000])
def test_model_loaded_from_a_folder_has_the_runs_weights(
    plan: ExportPlan, shard_bytes_max: int, tmp_path: Path
) -> None:
    theta = trained(plan.spec)
    plan = replace(plan, shard_bytes_max=shard_bytes_max)
    model = load_model(export(plan, ThetaInMemory(theta), tmp_path / "o").folder, CPU)
    assert model.spec == plan.spec
    named = dict(model.named_parameters())
    for entry in layout_of(plan.spec).entries:
        expected = torch.from_numpy(theta[entry.offset : entry.end]).view(entry.shape)
        assert torch.equal(named[entry.name], expected)
    assert not model.training


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def with_one_too_many(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "extra": tensors["model.norm.weight"]}, folder / "model.safetensors")


def with_another_shape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    short = tensors["model.norm.weight"][1:].copy()
    save_file({**tensors, "model.norm.weight": short}, folder / "model.safetensors")


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def index_that_leads_outside(folder: Path) -> None:
    index = {"weight_map": {"a": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def index_of_a_lost_file(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def endless_json(folder: Path) -> None:
    (folder / "config.json").write_text(" " * (17 * 2**20))


def deep_json(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def with_integers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    norm = tensors["model.norm.weight"].astype("int8")
    save_file({**tensors, "model.norm.weight": norm}, folder / "model.safetensors")


def index_of_an_invalid_name(folder: Path) -> None:
    index = {"weight_map": {"a": "\ud800.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (without_a_tensor, "MODEL-FOREIGN", "model.norm.weight"),
        (with_one_too_many, "MODEL-FOREIGN", "extra"),
        (with_another_shape, "MODEL-FOREIGN", "(35,)"),
        (cut_short, "MODEL-FOREIGN", "model.safetensors"),
        (index_that_leads_outside, "MODEL-FOREIGN", "../model.safetensors"),
        (index_of_a_lost_file, "MODEL-FOLDER", "model-00001-of-00002.safetensors"),
        (no_json, "MODEL-FOREIGN", "config.json"),
        (endless_json, "MODEL-FOREIGN", "longer"),
        (deep_json, "MODEL-FOREIGN", "config.json"),
        (with_integers, "MODEL-FOREIGN", "(36,) of int8"),
        (index_of_an_invalid_name, "MODEL-FOREIGN", "not a valid file name"),
        (without_config, "MODEL-FOLDER", "config.json"),
    ],
)
def test_damaged_folder_is_refused(
    folder: Path, spoil: Callable[[Path], None], code: str, said: str
) -> None:
    spoil(folder)
    with pytest.raises(ConfigError) as caught:
        load_model(folder, CPU)
    assert caught.value.code == code
    assert said in caught.value.what


def test_gpu_that_is_too_small_is_reported_as_an_unfit_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(exported, "_tensors", full)
    with pytest.raises(MachineUnfit) as caught:
        load_model(folder, CPU)
    assert caught.value.code == "MEM-GPU"
