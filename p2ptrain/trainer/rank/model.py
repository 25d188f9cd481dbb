"""A Llama-style language model: the mathematics only. `parallelize` distributes it over devices.

Pre-norm blocks of grouped-query attention with rotary positions and a SwiGLU feed-forward, RMSNorm,
no biases. The head may be tied to the embedding. `ModelSpec` gives the sizes. `shapes.parameters`
lists the same parameters without torch and defines their initial values. This module leaves them
unset, because a trainer always loads θ before it trains.

Packed sequences contain several documents. If the run marks where they begin, a position sees only
positions of its own document. Positions are not counted from 0 again at the beginning of a
document: rotary attention depends only on distances, so a document's logits are the same anywhere
in the sequence.

Shapes in comments: B sequences, T positions, W width, H heads, K key-value heads, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from p2ptrain.ipc.trainer_config import ModelSpec

NORM_EPSILON = 1e-5


class RMSNorm(nn.Module):
    """x / rms(x) · gain, in fp32 or wider, because a sum of squares in bf16 is too inexact."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        gain = self.weight.to(wide)
        return F.rms_norm(x.to(wide), x.shape[-1:], gain, NORM_EPSILON).type_as(x)


def rotary_table(sequence: int, head_width: int, base: float, device: torch.device) -> Tensor:
    """Return cos and sin for every position and pair of features: [2, T, D/2], fp32."""
    pairs = torch.arange(0, head_width, 2, device=device, dtype=torch.float32)
    frequencies = base ** (-pairs / head_width)
    angles = torch.arange(sequence, device=device, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotate features d and d + D/2 of x [B, H, T, D] by their position's angle."""
    cos, sin = rotary.to(x.dtype).unbind(0)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        key_width = spec.kv_heads * spec.head_width
        self.head_width = spec.head_width
        self.grouped = spec.kv_heads != spec.heads
        self.sharing = spec.heads // spec.kv_heads
        self.query = nn.Linear(spec.width, spec.width, bias=False)
        self.key = nn.Linear(spec.width, key_width, bias=False)
        self.value = nn.Linear(spec.width, key_width, bias=False)
        self.output = nn.Linear(spec.width, spec.width, bias=False)
        self.query_norm = RMSNorm(spec.head_width) if spec.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(spec.head_width) if spec.qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotary: Tensor, visible: Tensor | None) -> Tensor:
        q = rotate(self.query_norm(self.in_heads(self.query(x))), rotary)  # [B, H, T, D]
        k = rotate(self.key_norm(self.in_heads(self.key(x))), rotary)  # [B, K, T, D]
        v = self.in_heads(self.value(x))
        grouped = self.grouped and not lacks_grouped_kernel(q, visible)
        if self.grouped and not grouped:
            k, v = (each.repeat_interleave(self.sharing, dim=1) for each in (k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, is_causal=visible is None, enable_gqa=grouped
        )
        return self.output(y.transpose(1, 2).flatten(2))

    def in_heads(self, x: Tensor) -> Tensor:
        """Split the features of x [B, T, W] into heads: [B, heads, T, D]."""
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


def lacks_grouped_kernel(query: Tensor, visible: Tensor | None) -> bool:
    """Return whether no fused attention kernel accepts groups of query heads that share keys and
    values. Then keys and values must be repeated for each query head.

    On a GPU, flash attention accepts such groups, but it does not accept a mask or fp32. The kernel
    that accepts a mask and fp32 needs a key for each query head, and cuDNN's kernel is not used
    (`ranks`). Unfused attention would keep H · T² fp32 numbers in each block for a sequence. For 32
    heads and 2,048 positions these take 0.5 GB, compared with 17 MB for repeated keys and values.
    """
    on_gpu = query.device.type == "cuda"
    return on_gpu and (visible is not None or query.dtype == torch.float32)


class FeedForward(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.width, spec.ffn, bias=False)
        self.up = nn.Linear(spec.width, spec.ffn, bias=False)
        self.down = nn.Linear(spec.ffn, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.width)
        self.attention = Attention(spec)
        self.feed_forward_norm = RMSNorm(spec.width)
        self.feed_forward = FeedForward(spec)

    def forward(self, x: Tensor, rotary: Tensor, visible: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, visible)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Map tokens [B, T] to logits [B, T, vocab]. A document begins at each `document_token`."""

    def __init__(self, spec: ModelSpec, document_token: int | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.document_token = document_token
        self.embedding = nn.Embedding(spec.vocab, spec.width)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocab, bias=False)
        if spec.tied:
            self.head.weight = self.embedding.weight
        self._rotary: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # [B, T, W]
        rotary = self._rotary_on(tokens.device)[:, : tokens.shape[1]]
        mark = self.document_token
        visible = None if mark is None else bias_of(within_documents(tokens, mark), x.dtype)
        for block in self.blocks:
            x = block(x, rotary, visible)
        return self.head(self.norm(x))

    def _rotary_on(self, device: torch.device) -> Tensor:
        # This table is not a buffer, because the model is built on the meta device, where a buffer
        # would have no values.
        if self._rotary is None or self._rotary.device != device:
            spec = self.spec
            self._rotary = rotary_table(spec.sequence, spec.head_width, spec.rope_base, device)
        return self._rotary


def within_documents(tokens: Tensor, document_token: int) -> Tensor:
    """Return a mask [B, 1, T, T] of visible positions: earlier positions of the same document, and
    the position itself.

    The tokens before the first `document_token` of a sequence are the end of a document that began
    in another sequence. The mask takes B · T² elements, and torch's attention cannot use its
    fastest kernel with a mask. That is acceptable for sequences of a few thousand tokens. Runs
    without marked documents do not use a mask.
    """
    document = (tokens == document_token).cumsum(-1)
    same = document[:, :, None] == document[:, None, :]
    return same.tril()[:, None]


def bias_of(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias to add to attention scores: −∞ at invisible positions, else 0. With a boolean
    mask, torch would build this bias in every block again, and keep all of them for the backward
    pass."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


def token_losses(logits: Tensor, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy in nats, and the objective: cross-entropy + z_loss · log²Z.

    Both are sums over tokens. The caller divides both by the number of tokens of the batch on all
    ranks.
    """
    flat = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    cross_entropy = F.cross_entropy(flat, targets.flatten(), reduction="sum")
    if z_loss == 0:
        return cross_entropy, cross_entropy
    return cross_entropy, cross_entropy + z_loss * flat.logsumexp(-1).square().sum()
