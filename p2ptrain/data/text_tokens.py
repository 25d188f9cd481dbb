"""Between text and tokens, for whoever talks to a model: a tokenizer.json from anywhere.

Tokens come one at a time and must be shown at once, but a character may be spread over several:
what is incomplete is held back until it is whole. And a token may be spelt by what is before it:
tokenizers in SentencePiece's way (Llama 2's) spell "▁word" with its space, but not at the beginning
of a text. So a token is spelt behind those before it, and their text is taken off again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p2ptrain.data.tokenizer_file import library_errors, parse_tokenizer
from p2ptrain.errors import ConfigError

_INCOMPLETE = "\ufffd"
_HELD_MAX = 8
"""A character has at most four bytes, so after more tokens than that the bytes are no character."""

_BEFORE_MAX = 8
"""Tokens before the one that is spelt: one with some text in it would do."""


class Speller:
    """One tokenizer; `decoded` is for one text at a time, which `begin` begins."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError (MODEL-FOLDER): there is none, or it cannot be read."""
        try:
            self._tokenizer = parse_tokenizer(path)
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"{path} is no tokenizer: {exc}",
                code="MODEL-FOLDER",
                do="give a folder that p2ptrain export --to hf DIR has made",
            ) from exc
        # Who types the name of a special token has typed a text, and not that token.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.begin()

    @property
    def size(self) -> int:
        """One more than the largest token."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encoded(self, text: str) -> list[int]:
        """Raises ConfigError (MODEL-FOREIGN): this tokenizer cannot do it."""
        with _failures():
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def unknown(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` stand for something that the tokenizer cannot spell."""
        name = getattr(self._tokenizer.model, "unk_token", None)
        return 0 if name is None else tokens.count(self._tokenizer.token_to_id(name))

    def begin(self, before: Sequence[int] = ()) -> None:
        """A text that goes on from the tokens `before`, which are shown already."""
        self._before = list(before[-_BEFORE_MAX:])
        self._held: list[int] = []

    def decoded(self, token: int) -> str:
        """What can be shown now that this token has come."""
        self._held.append(token)
        known, text = self._spelt(self._before), self._spelt(self._before + self._held)
        if text.endswith(_INCOMPLETE) and len(self._held) < _HELD_MAX:
            return ""
        if not text.startswith(known):  # It ended in bytes that were no character, and now are one.
            known, text = "", self._spelt(self._held)
        self.begin(self._before + self._held)
        return text[len(known) :]

    def _spelt(self, tokens: list[int]) -> str:
        with _failures():
            return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


@contextmanager
def _failures() -> Iterator[None]:
    try:
        with library_errors():
            yield
    except ValueError as exc:
        raise ConfigError(
            f"the model's tokenizer fails: {exc}",
            code="MODEL-FOREIGN",
            likely="its tokenizer.json is damaged, or was not made for this",
        ) from exc
