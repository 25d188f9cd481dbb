"""Translate our model to and from Hugging Face `transformers`: parameter names and config.json.

Our model computes the same as the Llama of transformers, or as its Qwen3 if the run has `qk_norm`.
The blocks are the same: pre-norm, RMSNorm, SwiGLU with the gate first, and rotary positions that
rotate feature d with feature d + D/2 of a head of width D. So weights are not reordered. Nothing is
approximated: it is an error if transformers lacks a parameter of our model, or if our model does
not support a setting in a config.json, which may come from anybody.

This module does not need torch or transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from p2ptrain.errors import ConfigError
from p2ptrain.ipc.trainer_config import ModelSpec

RMS_EPSILON = 1e-5
"""The epsilon of RMSNorm in config.json. It equals the model's `NORM_EPSILON`; a test compares the
two."""

FAMILIES = {False: ("llama", "LlamaForCausalLM"), True: ("qwen3", "Qwen3ForCausalLM")}
"""model_type and class in transformers, keyed by whether queries and keys are normalised."""

ROPE_BASE_MAX = 1e12
SIZE_MAX = 2**24
LAYERS_MAX = 4096
"""Maximum number of layers accepted from a config.json: at least as many as a run can have."""

_WHOLE = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_OF_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)\.weight")


def name_of(parameter: str) -> str:
    """Return the name that transformers gives to our `parameter`.

    Raises ConfigError (EXPORT-MODEL): neither model of transformers has this parameter.
    """
    if parameter in _WHOLE:
        return _WHOLE[parameter]
    found = _BLOCK.fullmatch(parameter)
    if found is None or found[2] not in _OF_BLOCK:
        raise ConfigError(
            f"the model has the parameter {parameter}, which transformers' models do not have",
            code="EXPORT-MODEL",
            likely="the export does not support a part of the run's model",
        )
    return f"model.layers.{found[1]}.{_OF_BLOCK[found[2]]}.weight"


def config_of(spec: ModelSpec, dtype: str, special: Mapping[str, int]) -> dict[str, object]:
    """Return the config.json of the model. `special` maps the names of special tokens (such as bos
    and eos) to their ids, as far as they are known.

    The base of the rotary angles and the type of the weights are each given under two names,
    because transformers 4 and 5 read different ones. An unknown bos or eos id is written as null:
    otherwise transformers would use Llama's tokens 1 and 2.
    """
    family, architecture = FAMILIES[spec.qk_norm]
    return {
        "architectures": [architecture],
        "model_type": family,
        **{theirs: getattr(spec, ours) for ours, theirs in SIZES.items()},
        "head_dim": spec.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_EPSILON,
        "rope_theta": spec.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_base},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": spec.tied,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
        **{f"{name}_token_id": special.get(name) for name in sorted({"bos", "eos", *special})},
    }


SIZES = {
    "vocab": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "sequence": "max_position_embeddings",
}
"""The names in config.json of the fields of `ModelSpec`."""

_LIKE_OURS: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
    "use_sliding_window": False,
}
"""The values that our model supports, for settings that a config.json may contain."""


def spec_of(config: object) -> ModelSpec:
    """Return the sizes of the model that a config.json describes.

    Raises ConfigError (MODEL-FOREIGN): p2ptrain cannot run this model. The error says what differs.
    """
    if not isinstance(config, dict):
        raise foreign("its config.json is not a JSON object")
    families = {family: qk_norm for qk_norm, (family, _) in FAMILIES.items()}
    family = config.get("model_type")
    if not isinstance(family, str) or family not in families:
        raise foreign(f"model_type is {family!r}, not {' or '.join(families)}")
    for name, ours in _LIKE_OURS.items():
        if config.get(name, ours) != ours:
            raise foreign(f"{name} is {config[name]!r}; p2ptrain's models have {ours!r}")
    config = {"num_key_value_heads": config.get("num_attention_heads"), **config}
    rope_base = _rope_base(config)
    try:
        spec = ModelSpec(
            **{ours: config[theirs] for ours, theirs in SIZES.items()},
            rope_base=rope_base,
            tied=config.get("tie_word_embeddings", False) is True,
            qk_norm=families[family],
        )
    except KeyError as exc:
        raise foreign(f"its config.json lacks {exc.args[0]}") from exc
    except ConfigError as exc:
        raise foreign(f"{exc.what}; {exc.do}") from exc
    width, epsilon = config.get("head_dim", spec.head_width), config.get("rms_norm_eps", 1e-6)
    if width not in (None, spec.head_width):
        raise foreign(f"head_dim is {width!r}; p2ptrain's models have {spec.head_width}")
    if epsilon != RMS_EPSILON:
        raise foreign(f"rms_norm_eps is {epsilon!r}; p2ptrain's models have {RMS_EPSILON}")
    if spec.layers > LAYERS_MAX:
        raise foreign(f"it has {spec.layers} layers; the limit is {LAYERS_MAX}")
    for ours, theirs in SIZES.items():
        if getattr(spec, ours) > SIZE_MAX:
            raise foreign(f"{theirs} is {config[theirs]}; the limit is {SIZE_MAX}")
    return spec


def _rope_base(config: Mapping[str, object]) -> float:
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise foreign(f"rope_parameters are {parameters!r}; only the default is supported")
    base = parameters.get("rope_theta", config.get("rope_theta", 10_000.0))
    if type(base) not in (int, float) or not 1 < base < ROPE_BASE_MAX:
        raise foreign(
            f"rope_theta is {str(base)[:40]}; it must be above 1 and below {ROPE_BASE_MAX:g}"
        )
    return float(base)


def foreign(reason: str) -> ConfigError:
    """Return the error for a folder with a model that p2ptrain cannot run."""
    return ConfigError(
        f"p2ptrain cannot run this model: {reason}",
        code="MODEL-FOREIGN",
        likely="the folder was made by another program, or for another kind of model",
        do="p2ptrain export --to hf DIR writes a folder that can be used here",
    )


def lacks(path: Path) -> ConfigError:
    """Return the error for a missing file of an exported folder."""
    there = path.parent.is_dir()
    return ConfigError(
        f"{path.parent} has no {path.name}" if there else f"there is no folder {path.parent}",
        code="MODEL-FOLDER",
        do="give a folder that p2ptrain export --to hf DIR has written",
    )
