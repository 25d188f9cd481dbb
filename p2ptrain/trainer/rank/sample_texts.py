"""Let the model continue prompts while it stays in place, on all ranks together.

`tools/generating` caches keys and values, but needs a model that is not sharded. Here each token
takes a whole forward pass. Its input has the shape of a measured block's piece, padded on the
right, so a compiled model does not have to be compiled again. Attention is causal, so the padding
does not change the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from p2ptrain.errors import TrainerDiverged
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.model import Llama
from p2ptrain.trainer.rank.parallelize import forget_gathered
from p2ptrain.trainer.rank.ranks import Ranks


def continue_texts(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    tokens_max: int,
    ranks: Ranks,
    config: TrainerConfig,
    late: Callable[[], bool],
) -> tuple[tuple[int, ...], ...]:
    """Return a continuation of each prompt: the likeliest token each time, `tokens_max` at most.
    All ranks must call this together. Rank 0 decides by `late` when to stop before that.

    A text ends where the model's context ends. A prompt that leaves no room is cut at its front.

    Raises TrainerDiverged: the model's output is not finite.
    """
    share = math.ceil(config.inner.batch_sequences / ranks.count)
    rows = config.micro_batch or share
    texts = list[tuple[int, ...]]()
    for first in range(0, len(prompts), rows):
        some = prompts[first : first + rows]
        texts += _continued(model, some, tokens_max, rows, ranks, late)
    return tuple(texts)


@torch.no_grad()
def _continued(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    tokens_max: int,
    rows: int,
    ranks: Ranks,
    late: Callable[[], bool],
) -> list[tuple[int, ...]]:
    """Continue at most `rows` prompts."""
    length = model.spec.sequence
    begun = [list(prompt[-max(1, length - tokens_max) :]) for prompt in prompts]
    texts = [list(each) for each in begun]
    for _ in range(tokens_max):
        if ranks.broadcast([int(late())])[0]:
            break
        growing = [number for number, text in enumerate(texts) if len(text) < length]
        if not growing:
            break
        likeliest = _likeliest(model, texts, rows, ranks)
        for number in growing:
            texts[number].append(likeliest[number])
    forget_gathered(model)
    return [tuple(text[len(start) :]) for text, start in zip(texts, begun, strict=True)]


def _likeliest(model: Llama, texts: list[list[int]], rows: int, ranks: Ranks) -> list[int]:
    """Return the likeliest next token of each text, as rank 0 computes it."""
    padded = torch.zeros((rows, model.spec.sequence), dtype=torch.int64)
    for number, text in enumerate(texts):
        padded[number, : len(text)] = torch.tensor(text)
    logits: Tensor = model(padded.to(ranks.device))  # [rows, T, vocab]
    forget_gathered(model)
    ends = torch.tensor([len(text) - 1 for text in texts], device=ranks.device)
    last = logits[torch.arange(len(texts), device=ranks.device), ends].float()
    found = last.argmax(-1) if bool(last.isfinite().all()) else -torch.ones(len(texts))
    tokens = ranks.broadcast([int(each) for each in found])
    if min(tokens) < 0:
        raise TrainerDiverged("the model's output is not finite")
    return tokens
