"""The frames with which a node lets its trainer continue a few prompts. See `frames`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

PROMPTS_MAX = 8
TOKENS_MAX = 4096
"""Maximum numbers of prompts in a frame, and of tokens in each text. Nodes send far fewer."""

COUNT_MAX = 2**53
LIMIT_S_MAX = 3600.0
REASON_CHARACTERS_MAX = 4096


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= COUNT_MAX


def _check_texts(name: str, texts: object, least: int) -> None:
    if not isinstance(texts, tuple) or len(texts) > PROMPTS_MAX:
        raise ValueError(f"{name} is not a tuple of at most {PROMPTS_MAX} texts")
    for text in texts:
        if not isinstance(text, tuple) or not least <= len(text) <= TOKENS_MAX:
            raise ValueError(f"{name} has a text without {least} to {TOKENS_MAX} tokens")
        if not all(map(_is_count, text)):
            raise ValueError(f"{name} has a token that is not a count")


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue each prompt with the arena's θ: `tokens_max` tokens at most, the likeliest each
    time. Stop after `limit_s` seconds, because training waits. Local weights are restored."""

    kind: ClassVar[str] = "generate"
    request: int
    prompts: tuple[tuple[int, ...], ...]
    tokens_max: int
    limit_s: float

    def __post_init__(self) -> None:
        if not (_is_count(self.request) and _is_count(self.tokens_max)):
            raise ValueError("request or tokens_max is not a count")
        if type(self.limit_s) not in (int, float) or not 0 <= self.limit_s <= LIMIT_S_MAX:
            raise ValueError(f"limit_s is not a number from 0 to {LIMIT_S_MAX:g}")
        _check_texts("prompts", self.prompts, least=1)


@dataclass(frozen=True, slots=True)
class Generated:
    """The answer to Generate: a continuation for each prompt, or none and the `trouble`."""

    kind: ClassVar[str] = "generated"
    request: int
    texts: tuple[tuple[int, ...], ...]
    trouble: str = ""

    def __post_init__(self) -> None:
        if not _is_count(self.request):
            raise ValueError("request is not a count")
        _check_texts("texts", self.texts, least=0)
        if not isinstance(self.trouble, str) or len(self.trouble) > REASON_CHARACTERS_MAX:
            raise ValueError("trouble is not a short string")
