"""A tokenizer that somebody made elsewhere, out of its tokenizer.json.

It is a module of its own because of one line: the tokenizers library raises Exception itself, and
nothing more definite, for whatever is wrong with a file; and where it did not think of a fault, it
panics, which is no Exception at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    with library_errors():
        return Tokenizer.from_str(text)


@contextmanager
def library_errors() -> Iterator[None]:
    """What the library raises inside, as ValueError: also a tokenizer that could be read may ask
    for what cannot be done (a token for unknown letters that it has not, a pattern without end)."""
    try:
        yield
    except BaseException as exc:
        if type(exc) is not Exception and type(exc).__name__ != "PanicException":
            raise
        raise ValueError(str(exc)) from exc
