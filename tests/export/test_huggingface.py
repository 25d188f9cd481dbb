"""The conversion between our model and transformers' names and config.json is exact, and a model
that cannot be converted exactly is refused. The special tokens are found in the tokenizer."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from p2ptrain.data.vocabulary import BEGINNINGS, ENDINGS, learn_reads, learn_text, marked
from p2ptrain.errors import ConfigError, ManifestInvalid
from p2ptrain.export.tokens import Tokenizer
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.trainer.formats.huggingface import RMS_EPSILON, config_of, name_of, spec_of
from p2ptrain.trainer.formats.shapes import parameters
from p2ptrain.trainer.rank.model import NORM_EPSILON
from tests.export.conftest import SPEC, SPECS


def test_every_parameter_has_a_unique_name() -> None:
    names = [
        name_of(each.name)
        for each in parameters(replace(SPEC, tied=False, qk_norm=True, layers=11))
    ]
    assert len(set(names)) == len(names)
    assert "model.layers.10.self_attn.q_proj.weight" in names


@pytest.mark.parametrize("name", ["blocks.0.attention.mystery.weight", "extra", "blocks.x.up"])
def test_parameter_unknown_to_transformers_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        name_of(name)
    assert caught.value.code == "EXPORT-MODEL"


def test_both_implementations_add_the_same_epsilon_to_norms() -> None:
    assert RMS_EPSILON == NORM_EPSILON


@pytest.mark.parametrize(
    "spec",
    [*SPECS.values(), replace(SPEC, kv_heads=6)],
)
def test_model_sizes_survive_conversion_to_a_config_and_back(spec: ModelSpec) -> None:
    assert spec_of(config_of(spec, "float32", {"eos": 3})) == spec


def test_special_token_that_is_unknown_is_null_in_the_config() -> None:
    config = config_of(SPEC, "float32", {"bos": 4, "pad": 0})
    named = {name: config[name] for name in config if name.endswith("_token_id")}
    assert named == {"bos_token_id": 4, "eos_token_id": None, "pad_token_id": 0}


def test_config_of_transformers_4_can_be_read() -> None:
    config = config_of(replace(SPEC, rope_base=5e5), "float32", {})
    del config["rope_parameters"], config["head_dim"], config["attention_bias"]
    assert spec_of(config | {"rope_scaling": None}).rope_base == 5e5


FOREIGN: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "gpt2"}, "model_type"),
    ({"model_type": ["llama"]}, "model_type"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"attention_bias": True}, "attention_bias"),
    ({"rope_scaling": {"factor": 8}}, "rope_scaling"),
    ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_parameters"),
    ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta"),
    ({"rope_parameters": [1]}, "rope_parameters"),
    ({"rms_norm_eps": 1e-6}, "rms_norm_eps"),
    ({"rms_norm_eps": "1"}, "rms_norm_eps"),
    ({"head_dim": 8}, "head_dim"),
    ({"num_attention_heads": 5}, "width"),
    ({"num_hidden_layers": 10**9}, "layers"),
    ({"vocab_size": "many"}, "vocab"),
    ({"vocab_size": True}, "vocab"),
    ({"hidden_size": None}, "width"),
    ({"vocab_size": 2**70}, "vocab_size"),
    ({"max_position_embeddings": 10**12}, "max_position_embeddings"),
    ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta"),
]


@pytest.mark.parametrize(("changes", "said"), FOREIGN)
def test_error_for_an_unsupported_model_names_the_difference(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of(config_of(SPEC, "float32", {}) | changes)
    assert caught.value.code == "MODEL-FOREIGN"
    assert said in caught.value.what
    assert "[CONFIG]" not in caught.value.what
    assert caught.value.what.count("p2ptrain cannot run this model") == 1


@pytest.mark.parametrize("config", [[], None, {"model_type": "llama"}])
def test_malformed_config_is_refused(config: object) -> None:
    with pytest.raises(ConfigError):
        spec_of(config)


def test_special_tokens_are_recognised_by_their_usual_names() -> None:
    named = b'{"added_tokens":[{"content":"[BOS]","id":4},{"content":"[EOS]","id":5},{"id":"x"}]}'
    found = Tokenizer.of(named)
    assert (found.names, found.numbers) == ({"bos": "[BOS]", "eos": "[EOS]"}, {"bos": 4, "eos": 5})
    assert Tokenizer.of(b"{}").config(8)["model_max_length"] == 8
    # The inputs that `generate` should get. transformers 4 would add more.
    names = ["input_ids", "attention_mask"]
    assert Tokenizer.of(b"{}").config(8)["model_input_names"] == names


def test_tokenizer_for_dna_reads_has_an_example_that_it_can_encode() -> None:
    reads, text = learn_reads(["ACGTTGCA" * 9], 30), learn_text(["once upon a time"], 260)
    examples = [Tokenizer.of(each.to_json()).example for each in (reads, text)]
    assert examples == ["ACGTACGT", "Once upon"]
    for vocabulary, example in zip((reads, text), examples, strict=True):
        spelt = vocabulary.tokenizer.encode(example).ids
        assert vocabulary.tokenizer.decode(spelt) == example
    assert Tokenizer.of(b'{"model":{"vocab":[["A",0]]}}').example == "Once upon"


def test_bos_is_the_runs_document_token_if_it_has_one() -> None:
    named = b'{"added_tokens":[{"content":"<s>","id":1},{"content":"<read>","id":7}]}'
    found = [Tokenizer.of(named, begin) for begin in (7, 1, None)]
    assert [each.names for each in found] == [{"bos": "<read>"}, {"bos": "<s>"}, {"bos": "<s>"}]
    assert [each.numbers["bos"] for each in found] == [7, 1, 1]


def test_if_several_usual_names_exist_the_one_used_for_packing_is_chosen() -> None:
    """The manifest does not always help, because it names a document token only if a mask separates
    documents."""
    for first, other in permutations([*BEGINNINGS, *ENDINGS], 2):
        given = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
        given.add_special_tokens(["<s>", "</s>", first, other])
        packed = marked(given, None, None)
        found = Tokenizer.of(packed.to_json()).numbers
        assert (found["bos"], found["eos"]) == (packed.begin, packed.end)


def test_ordinary_token_is_used_as_bos_only_if_no_special_token_fits() -> None:
    plain, mark = '{"content":"<s>","id":1}', '{"content":"<bos>","id":2,"special":true}'
    for added, numbers in ((f"{plain},{mark}", {"bos": 2}), (plain, {"bos": 1})):
        assert Tokenizer.of(f'{{"added_tokens":[{added}]}}'.encode()).numbers == numbers


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "the run's tokenizer is not JSON: Expecting value"),
        (b"\xff", "the run's tokenizer is not JSON: 'utf-8' codec"),
        (b"[]", "the run's tokenizer is not a JSON object"),
        (b"null", "the run's tokenizer is not a JSON object"),
    ],
)
def test_tokenizer_that_is_not_a_json_object_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(ManifestInvalid) as raised:
        Tokenizer.of(data)
    assert raised.value.code == "CKPT-MANIFEST"
    assert raised.value.what.startswith(what)
