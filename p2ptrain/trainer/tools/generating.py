"""Generate text from a model, a token at a time.

Keys and values of earlier tokens are cached, so only one position is computed for each new token.
The model was trained on positions up to its sequence length. When all positions are used, the
newest tokens of the text (half a sequence) are read again from position 0, and the older tokens are
dropped.

`CachedModel` computes the same as `model.Llama.forward`, for one text at a time; a test compares
the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from p2ptrain.errors import ConfigError, TrainerDiverged
from p2ptrain.trainer.rank.model import Block, Llama, rotary_table, rotate

TEMPERATURE_MIN = 1e-6
"""Below this temperature, the likeliest token is chosen, because dividing by such a small number
would overflow in fp32."""

POSITIONS_AT_FIRST = 2048
"""Default number of positions for which rotary angles are computed at first; more are computed when
needed. A config.json can claim any number of positions, and a table for all of them could fill the
machine's memory."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen: the likeliest at temperature 0, else a random one from the
    smallest set of tokens whose probabilities add up to `top_p`."""

    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature}", do="set it to 0 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p is {self.top_p}", do="set it above 0 and to 1 at most")


@dataclass(slots=True)
class CachedModel:
    """A model that reads a text from its beginning, in several calls, and keeps its keys and
    values."""

    model: Llama
    positions: InitVar[int] = POSITIONS_AT_FIRST
    """Number of positions for which rotary angles are computed at first."""
    _blocks: list[tuple[Tensor, Tensor] | None] = field(init=False)
    """Keys and values of each block, [1, K, T, D], for the T tokens that were read."""
    _length: int = field(init=False)
    _rotary: Tensor = field(init=False)

    def __post_init__(self, positions: int) -> None:
        self._rotary = self._angles(positions)
        self.forget()

    def _angles(self, positions: int) -> Tensor:
        spec = self.model.spec
        device = self.model.embedding.weight.device
        count = min(spec.sequence, positions)
        return rotary_table(count, spec.head_width, spec.rope_base, device)

    def forget(self) -> None:
        """Begin again at position 0."""
        self._blocks, self._length = [None] * len(self.model.blocks), 0

    @property
    def room(self) -> int:
        """The number of tokens that can still be read."""
        return self.model.spec.sequence - self._length

    @torch.inference_mode()
    def read_tokens(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits [vocab] of the next token, fp32 on the CPU. Only the first call may
        pass several tokens."""
        begin, end = self._length, self._length + len(tokens)
        assert begin == 0 or len(tokens) == 1, "a later call with several tokens needs a mask"
        assert 0 < len(tokens) <= self.room, "the model does not have enough positions left"
        model = self.model
        x = model.embedding(torch.tensor([tokens], device=self._rotary.device))  # [1, T, W]
        if end > self._rotary.shape[1]:
            self._rotary = self._angles(2 * end)
        rotary = self._rotary[:, begin:end]
        for index, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            x = self._through(block, index, x, rotary)
        self._length = end
        logits: Tensor = model.head(model.norm(x[:, -1:]))
        return logits[0, 0].float().cpu()

    def _through(self, block: Block, index: int, x: Tensor, rotary: Tensor) -> Tensor:
        attention, normed = block.attention, block.attention_norm(x)
        parts = (attention.query, attention.key, attention.value)
        query, key, value = (attention.in_heads(part(normed)) for part in parts)
        query = rotate(attention.query_norm(query), rotary)  # [1, H, T, D]
        key = rotate(attention.key_norm(key), rotary)  # [1, K, T, D]
        before = self._blocks[index]
        if before is not None:
            key, value = torch.cat((before[0], key), 2), torch.cat((before[1], value), 2)
        self._blocks[index] = (key, value)
        first, grouped = before is None, attention.grouped
        y = F.scaled_dot_product_attention(query, key, value, is_causal=first, enable_gqa=grouped)
        x = x + attention.output(y.transpose(1, 2).flatten(2))
        return x + block.feed_forward(block.feed_forward_norm(x))


def generate(
    model: Llama,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    positions: int = POSITIONS_AT_FIRST,
) -> Iterator[int]:
    """Yield the tokens after `prompt`, without end. If the prompt is too long, only its end is
    used. `positions` is the number for which memory is allocated at first."""
    assert prompt, "the prompt needs at least one token"
    reader, text = CachedModel(model, positions), list(prompt)
    random = torch.Generator().manual_seed(sampling.seed)
    unread = text[-model.spec.sequence :]
    while True:
        if len(unread) > reader.room:
            reader.forget()
            unread = text[-max(1, model.spec.sequence // 2) :]
        token = pick(reader.read_tokens(unread), sampling, random)
        text.append(token)
        unread = [token]
        yield token


def pick(logits: Tensor, sampling: Sampling, random: torch.Generator) -> int:
    """Choose the next token on the CPU, so that a seed gives the same text on every device.

    Raises TrainerDiverged (NAN): some logits are not finite.
    """
    if not logits.isfinite().all():
        raise TrainerDiverged(
            "the model's output has numbers that are not finite",
            likely="the weights are not finite: training diverged, or the files are damaged",
            do="export an earlier outer step: p2ptrain export --snapshot STEP",
        )
    if sampling.temperature < TEMPERATURE_MIN:
        return int(logits.argmax())
    heights = (logits - logits.max()) / sampling.temperature
    shares, order = heights.softmax(-1).sort(descending=True, stable=True)
    # Keep a token if the likelier tokens add up to less than top_p; this always keeps the first.
    shares[shares.cumsum(-1) - shares >= sampling.top_p] = 0.0
    return int(order[torch.multinomial(shares, 1, generator=random)])
