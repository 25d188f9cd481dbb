"""Convert between text and tokens for a chat with a model, with any tokenizer.json.

The model produces one token at a time, and its text should be shown immediately. But a character
may consist of several tokens: an incomplete character is held back until it is complete. The text
of a token can also depend on the tokens before it: SentencePiece tokenizers (such as Llama 2's)
decode "▁word" with a space, except at the start of a text. So a token is decoded together with the
tokens before it, and their text is removed from the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p2ptrain.data.tokenizer_file import library_errors, parse_tokenizer
from p2ptrain.errors import ConfigError

_INCOMPLETE = "\ufffd"
_HELD_MAX = 8
"""Maximum number of tokens held back. A character has at most four bytes, so bytes that are still
incomplete after this many tokens are not a character."""

_BEFORE_MAX = 8
"""Number of earlier tokens to decode together with a new token. One would be enough, but some
tokens have no text of their own."""


class Speller:
    """One tokenizer. `decoded` works on one text at a time; `begin` starts a new text."""

    def __init__(self, path: Path) -> None:
        """Load the tokenizer. Raises ConfigError (MODEL-FOLDER) if it is missing or unreadable."""
        try:
            self._tokenizer = parse_tokenizer(path)
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"{path} is not a tokenizer: {exc}",
                code="MODEL-FOLDER",
                do="use a folder that p2ptrain export --to hf DIR has written",
            ) from exc
        # If a person types the name of a special token, encode the name as text.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.begin()

    @property
    def size(self) -> int:
        """The largest token id plus one."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encoded(self, text: str) -> list[int]:
        """Return the tokens of `text`. Raises ConfigError (MODEL-FOREIGN) if the tokenizer
        fails.
        """
        with _failures():
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def unknown(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` are the tokenizer's unknown token."""
        name = getattr(self._tokenizer.model, "unk_token", None)
        return 0 if name is None else tokens.count(self._tokenizer.token_to_id(name))

    def begin(self, before: Sequence[int] = ()) -> None:
        """Start a new text after the tokens `before`, which have already been shown."""
        self._before = list(before[-_BEFORE_MAX:])
        self._held: list[int] = []

    def decoded(self, token: int) -> str:
        """Take the next token, and return the text that can be shown now."""
        self._held.append(token)
        known, text = self._spelt(self._before), self._spelt(self._before + self._held)
        if text.endswith(_INCOMPLETE) and len(self._held) < _HELD_MAX:
            return ""
        if not text.startswith(known):
            # Incomplete bytes at the end of `known` now form a character.
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
            likely="its tokenizer.json is damaged, or was created for a different program",
        ) from exc
