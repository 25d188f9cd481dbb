"""Load a user's tokenizer.json.

The tokenizers library raises plain Exception for every invalid file. If it meets an error that it
does not expect, it panics, and a panic is a BaseException. This module translates both, so that no
other module has to catch every exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from p2ptrain.errors import ConfigError

BYTES_MAX = 256 * 2**20
"""Maximum length of a file in bytes. The largest vocabularies in use, of 250,000 tokens, take 30
MB.
"""


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer at `path`. Raises ConfigError if the file cannot be read or is not a
    tokenizer.
    """
    try:
        return parse_tokenizer(path)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"data.tokenizer: {path} cannot be read: {exc}",
            do="set it to a tokenizer.json in the format of the tokenizers library",
        ) from exc


def parse_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer at `path`. Raises OSError, or ValueError if it is not a tokenizer."""
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX} bytes")
    text = path.read_text(encoding="utf-8")
    with library_errors():
        return Tokenizer.from_str(text)


@contextmanager
def library_errors() -> Iterator[None]:
    """Translate the library's exceptions inside the `with` block to ValueError. A tokenizer that
    was loaded can still fail later, for instance if its token for unknown letters is missing.
    """
    try:
        yield
    except BaseException as exc:
        if type(exc) is not Exception and type(exc).__name__ != "PanicException":
            raise
        raise ValueError(str(exc)) from exc
