"""A tokenizer that somebody made elsewhere, out of its tokenizer.json.

It is a module of its own because of one line: the tokenizers library raises Exception itself, and
nothing more definite, for whatever is wrong with a file.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from p2ptrain.errors import ConfigError

BYTES_MAX = 256 * 2**20
"""Of vocabularies in use the largest have a quarter of a million tokens, in 30 MB."""


def read_tokenizer(path: Path) -> Tokenizer:
    """Raises ConfigError: it cannot be read, or is no tokenizer."""
    try:
        return parse_tokenizer(path)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"data.tokenizer: {path} cannot be read: {exc}",
            do="name a tokenizer.json as the tokenizers library writes it",
        ) from exc


def parse_tokenizer(path: Path) -> Tokenizer:
    """Raises OSError, and ValueError for what is no tokenizer."""
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX} bytes")
    text = path.read_text(encoding="utf-8")
    try:
        return Tokenizer.from_str(text)
    except Exception as exc:
        if type(exc) is not Exception:
            raise  # The library has no error of its own; it raises Exception itself.
        raise ValueError(str(exc)) from exc
