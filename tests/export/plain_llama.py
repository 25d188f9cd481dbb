"""A minimal implementation of Hugging Face's Llama and Qwen3. It reads an exported folder and
computes one position at a time with numpy.

The code does not use p2ptrain. It uses only config.json and the tensors, like any other program
that reads an exported folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Vector = np.ndarray[Any, np.dtype[np.float64]]


def logits(folder: Path, tokens: list[int]) -> Vector:
    """Return logits of shape [positions, vocab], in float64."""
    config = json.loads((folder / "config.json").read_text())
    weights = tensors(folder)
    hidden = [weights["model.embed_tokens.weight"][token] for token in tokens]
    for layer in range(config["num_hidden_layers"]):
        hidden = _block(hidden, weights, f"model.layers.{layer}.", config)
    name = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    normed = [_rms_norm(x, weights["model.norm.weight"], config) for x in hidden]
    return np.stack([weights[f"{name}.weight"] @ x for x in normed])


def tensors(folder: Path) -> dict[str, Vector]:
    found: dict[str, Vector] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {name: value.astype(np.float64) for name, value in load_file(file).items()}
    return found


def _block(
    hidden: list[Vector], weights: dict[str, Vector], prefix: str, config: dict[str, Any]
) -> list[Vector]:
    normed = [_rms_norm(x, weights[prefix + "input_layernorm.weight"], config) for x in hidden]
    attended = _attention(normed, weights, prefix + "self_attn.", config)
    hidden = [x + y for x, y in zip(hidden, attended, strict=True)]
    gain = weights[prefix + "post_attention_layernorm.weight"]
    return [x + _feed_forward(_rms_norm(x, gain, config), weights, prefix + "mlp.") for x in hidden]


def _attention(
    hidden: list[Vector], weights: dict[str, Vector], prefix: str, config: dict[str, Any]
) -> list[Vector]:
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["head_dim"]
    query, key, value = (
        [(weights[f"{prefix}{name}_proj.weight"] @ x).reshape(-1, width) for x in hidden]
        for name in "qkv"
    )
    if config["model_type"] == "qwen3":
        query, key = (
            [_normed_heads(x, weights[f"{prefix}{name}_norm.weight"], config) for x in heads]
            for name, heads in (("q", query), ("k", key))
        )
    found = []
    for position in range(len(hidden)):
        parts = []
        for head in range(heads):
            group = head // (heads // shared)
            turned = _rotated(query[position][head], position, config)
            scores = np.array(
                [
                    turned @ _rotated(key[other][group], other, config) / np.sqrt(width)
                    for other in range(position + 1)
                ]
            )
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            parts.append(sum(s * value[o][group] for o, s in enumerate(shares)))
        found.append(weights[prefix + "o_proj.weight"] @ np.concatenate(parts))
    return found


def _normed_heads(x: Vector, gain: Vector, config: dict[str, Any]) -> Vector:
    return np.stack([_rms_norm(head, gain, config) for head in x])


def _rotated(x: Vector, position: int, config: dict[str, Any]) -> Vector:
    """Feature d is rotated together with feature d + D/2, as in transformers' rotate_half."""
    half = len(x) // 2
    turned = np.empty_like(x)
    for d in range(half):
        angle = position / config["rope_theta"] ** (2 * d / len(x))
        turned[d] = x[d] * np.cos(angle) - x[d + half] * np.sin(angle)
        turned[d + half] = x[d + half] * np.cos(angle) + x[d] * np.sin(angle)
    return turned


def _feed_forward(x: Vector, weights: dict[str, Vector], prefix: str) -> Vector:
    gate = weights[prefix + "gate_proj.weight"] @ x
    up = weights[prefix + "up_proj.weight"] @ x
    return np.asarray(weights[prefix + "down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up))


def _rms_norm(x: Vector, gain: Vector, config: dict[str, Any]) -> Vector:
    return np.asarray(x / np.sqrt(np.mean(x * x) + config["rms_norm_eps"]) * gain)
