"""The exported folder contains θ, as read by code that does not use p2ptrain."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors import safe_open
from safetensors.numpy import load_file

from p2ptrain.errors import ConfigError, StoreFull
from p2ptrain.export import folder as folders
from p2ptrain.export.card import card
from p2ptrain.export.folder import ExportPlan, export
from p2ptrain.export.provenance import Standing
from p2ptrain.export.source import ThetaInMemory
from p2ptrain.export.tokens import Tokenizer
from p2ptrain.ids import Digest
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.state import Float32Vector
from p2ptrain.trainer.formats.huggingface import name_of
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.model import Llama
from tests.export import plain_llama
from tests.export.conftest import ORIGIN, SPEC, trained
from tests.rounding import MARGIN, UNIT, UNIT_BF16, assert_rounded_alike, distance, nudged

TOKENS = [5, 0, 60, 7, 7, 33, 12, 1, 59, 4]
ANGLES = MARGIN * len(TOKENS) * UNIT
"""Allowed relative error of a logit because of the rotary angles. The model's table of angles is
always in fp32: an angle at up to ten positions has an error of ten units in the last place. No
logit has a much larger relative error."""


def logits_of(
    spec: ModelSpec,
    theta: Float32Vector,
    *,
    document_token: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> np.ndarray:
    """Return the logits of the model that trains."""
    model = Llama(spec, document_token)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for entry in layout_of(spec).entries:
            values = torch.from_numpy(theta[entry.offset : entry.end].copy())
            named[entry.name].copy_(values.view(entry.shape))
        logits: np.ndarray = model.to(dtype)(torch.tensor([TOKENS]))[0].double().numpy()
    return logits


def nudged_logits(spec: ModelSpec, theta: Float32Vector) -> list[np.ndarray]:
    """Return the logits after rounding each weight to a neighbouring value, which has about the
    effect of rounding inside the computation."""
    return [logits_of(spec, nudged(theta, np.random.default_rng(seed))) for seed in range(3)]


@pytest.mark.parametrize("shard_bytes_max", [10**9, 9000])
def test_plain_reader_computes_the_same_as_the_trainer(
    plan: ExportPlan, shard_bytes_max: int, tmp_path: Path
) -> None:
    theta = trained(plan.spec)
    done = export(
        replace(plan, shard_bytes_max=shard_bytes_max), ThetaInMemory(theta), tmp_path / "out"
    )
    weights = [name for name in done.files if name.endswith(".safetensors")]
    assert (len(weights) > 3) == (shard_bytes_max == 9000)
    theirs = plain_llama.logits(done.folder, TOKENS)
    ours = logits_of(plan.spec, theta, dtype=torch.float64)
    assert distance(ours, theirs) < ANGLES * np.linalg.norm(theirs)
    assert_rounded_alike(logits_of(plan.spec, theta), ours, *nudged_logits(plan.spec, theta))
    assert np.abs(theirs).max() > 1


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, ANGLES), (torch.bfloat16, MARGIN * UNIT_BF16)]
)
def test_packed_documents_are_computed_as_if_each_were_alone(
    plan: ExportPlan, dtype: torch.dtype, bound: float, tmp_path: Path
) -> None:
    """Each token 7 begins a document. So TOKENS contains the end of a document that began earlier,
    and two more documents. In our model, only the attention mask separates them."""
    theta = trained(plan.spec)
    folder = export(plan, ThetaInMemory(theta), tmp_path / "out").folder
    starts = [0, *(at for at, token in enumerate(TOKENS) if token == 7)]
    documents = [TOKENS[start:end] for start, end in pairwise([*starts, len(TOKENS)])]
    assert [len(each) for each in documents] == [3, 1, 6]
    theirs = np.concatenate([plain_llama.logits(folder, each) for each in documents])

    def far(mark: int | None) -> float:
        ours = logits_of(plan.spec, theta, document_token=mark, dtype=dtype)
        return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))

    assert far(7) < bound
    assert far(None) > 10 * bound


def test_fp32_export_equals_the_runs_theta_bit_for_bit(plan: ExportPlan, tmp_path: Path) -> None:
    theta = trained(plan.spec)
    done = export(plan, ThetaInMemory(theta), tmp_path / "out")
    read = load_file(done.folder / "model.safetensors")
    layout = layout_of(plan.spec)
    assert read.keys() == {name_of(entry.name) for entry in layout.entries}
    for entry in layout.entries:
        expected = theta[entry.offset : entry.end].reshape(entry.shape)
        assert read[name_of(entry.name)].tobytes() == expected.tobytes()
    assert done.theta == blake3(theta.tobytes()).hexdigest()


def test_bf16_export_rounds_each_value_to_the_nearest(tmp_path: Path) -> None:
    theta = trained(SPEC)
    entry = layout_of(SPEC).entries[0]
    awkward = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8]
    theta[entry.offset : entry.offset + len(awkward)] = awkward
    plan = ExportPlan(SPEC, ORIGIN, Tokenizer.of(b"{}"), dtype="bf16")
    done = export(plan, ThetaInMemory(theta), tmp_path / "out")
    expected = torch.from_numpy(theta).to(torch.bfloat16)
    with safe_open(done.folder / "model.safetensors", framework="pt") as file:
        for each in layout_of(SPEC).entries:
            read = file.get_tensor(name_of(each.name)).flatten()
            torch.testing.assert_close(
                read, expected[each.offset : each.end], rtol=0, atol=0, equal_nan=True
            )
    assert done.theta == blake3(theta.tobytes()).hexdigest(), (
        "the digest must be that of the certified fp32 weights"
    )
    assert json.loads((done.folder / "config.json").read_text())["dtype"] == "bfloat16"


def test_index_of_several_files_says_where_each_tensor_is(tmp_path: Path) -> None:
    plan = ExportPlan(SPEC, ORIGIN, Tokenizer.of(b"{}"), shard_bytes_max=20_000)
    done = export(plan, ThetaInMemory(trained(SPEC)), tmp_path / "out")
    index = json.loads((done.folder / "model.safetensors.index.json").read_text())
    sizes: dict[str, list[int]] = {}
    for name, file in index["weight_map"].items():
        tensor = load_file(done.folder / file)[name]
        sizes.setdefault(file, []).append(tensor.nbytes)
    assert sum(sum(each) for each in sizes.values()) == index["metadata"]["total_size"]
    assert all(sum(each) <= 20_000 or len(each) == 1 for each in sizes.values())
    assert sorted(sizes)[0] == f"model-00001-of-{len(sizes):05}.safetensors"
    assert set(sizes) == {name for name in done.files if name.endswith(".safetensors")}


def test_text_begins_and_ends_with_the_tokenizers_own_token(
    plan: ExportPlan, tmp_path: Path
) -> None:
    done = export(plan, ThetaInMemory(trained(plan.spec)), tmp_path / "out")
    read = {
        name: json.loads((done.folder / name).read_text())
        for name in ("config.json", "generation_config.json", "tokenizer_config.json")
    }
    assert read["config.json"]["eos_token_id"] == read["config.json"]["bos_token_id"] == 3
    assert read["generation_config.json"] == {"bos_token_id": 3, "eos_token_id": 3}
    assert read["tokenizer_config.json"]["eos_token"] == "<|endoftext|>"
    assert (done.folder / "tokenizer.json").read_bytes() == plan.tokenizer.json_bytes


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        ("certified", None),
        ("replayed", "NOT DIRECTLY CERTIFIED"),
        ("uncertified", "NOT CERTIFIED:"),
    ],
)
def test_model_card_says_who_certified_the_weights(
    standing: Standing, said: str | None, tmp_path: Path
) -> None:
    origin = replace(ORIGIN, standing=standing, updates=2 * (standing == "replayed"))
    plan = ExportPlan(SPEC, origin, Tokenizer(b"{}", example="ACGT"))
    done = export(plan, ThetaInMemory(trained(SPEC)), tmp_path / "out")
    text = (done.folder / "README.md").read_text()
    facts = json.loads((done.folder / "p2ptrain.json").read_text())
    assert text.count('"ACGT"') == 2
    assert (said in text) if said else ("NOT CERTIFIED" not in text)
    assert all(each in text for each in (ORIGIN.run, ORIGIN.ledger_head, done.theta, "12,345"))
    assert (facts["standing"], facts["theta"], facts["step"]) == (standing, done.theta, 7)
    assert (("no peer: the weights are not certified" in text), "2 voters" in text) == (
        (True, False) if standing == "uncertified" else (False, True)
    )


def test_only_an_earlier_export_is_replaced_and_only_with_force(tmp_path: Path) -> None:
    plan, target = ExportPlan(SPEC, ORIGIN, Tokenizer.of(b"{}")), tmp_path / "out"
    export(plan, ThetaInMemory(trained(SPEC)), target)
    (target / "left.txt").write_text("from before")
    with pytest.raises(ConfigError) as caught:
        export(plan, ThetaInMemory(trained(SPEC)), target)
    assert caught.value.code == "EXPORT-EXISTS"
    assert (target / "left.txt").exists()
    export(plan, ThetaInMemory(trained(SPEC)), target, force=True)
    assert not (target / "left.txt").exists()
    (target / folders.MARK).unlink()
    with pytest.raises(ConfigError):
        export(plan, ThetaInMemory(trained(SPEC)), target, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_refused_export_leaves_nothing_behind(tmp_path: Path) -> None:
    def refuse(written: Path) -> None:
        assert (written / "config.json").exists()
        raise KeyboardInterrupt

    plan = ExportPlan(SPEC, ORIGIN, Tokenizer.of(b"{}"))
    with pytest.raises(KeyboardInterrupt):
        export(plan, ThetaInMemory(trained(SPEC)), tmp_path / "out", check_folder=refuse)
    assert list(tmp_path.iterdir()) == []


def test_too_small_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    plan = ExportPlan(SPEC, ORIGIN, Tokenizer.of(b"{}"))
    with pytest.raises(StoreFull) as caught:
        export(plan, ThetaInMemory(trained(SPEC)), tmp_path / "out", free=lambda folder: 4_000_000)
    assert list(tmp_path.iterdir()) == []
    assert caught.value.what == (f"the export takes 4.3 MB, but {tmp_path} has only 4.0 MB free")
    export(plan, ThetaInMemory(trained(SPEC)), tmp_path / "out", free=lambda folder: 5_000_000)


def test_model_card_shows_the_organisers_words_as_plain_text() -> None:
    hostile = "<img src=x> [click](https://example.org) | *bold* @team"
    theta = Digest("5" * 64)
    origin = replace(ORIGIN, description=hostile, licence="MIT `x`", contact="a|b")
    text = card(origin, SPEC, "fp32", theta, "hello")
    for markup in ("<img", "](", "https:", "*bold*", "@team", "`x`", "a|b"):
        assert markup not in text
    assert "&#60;img src&#61;x&#62;" in text
    assert "names this licence: MIT &#96;x&#96;" in text
    assert "| contact | a&#124;b |" in text
    assert "does not know it" in card(ORIGIN, SPEC, "fp32", theta, "hello")
