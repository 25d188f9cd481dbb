"""Read documents from text, JSON lines and parquet files, without loading a whole file.

A JSON line or a row of a parquet file is a document in one piece. A text file is one document in
several pieces.

Each reader raises ConfigError for the first error, with file and line or row. A reader skips only
empty documents: if it skipped broken ones, nobody would notice that data are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from p2ptrain.data.lines import LINE_BYTES_MAX, numbered_lines, refused
from p2ptrain.data.piece import Piece
from p2ptrain.errors import ConfigError
from p2ptrain.extras import install

TEXT_PIECE_CHARACTERS = 8192
"""Approximate length of a piece in characters. A text file is divided at line ends into pieces, so
that some pieces can be held out for validation. The other pieces are for training."""

ROWS_AT_ONCE = 256
"""Number of rows of a parquet file to load at a time. A row has at most LINE_BYTES_MAX bytes."""

KEYS_SHOWN_MAX = 8


def text_pieces(
    path: Path, field: str = "", *, characters: int = TEXT_PIECE_CHARACTERS
) -> Iterator[Piece]:
    """Yield the file as one document, in pieces of whole lines. `field` is not used.

    A piece is full once it has as many `characters`. A full piece is yielded only when the next
    line has been read, because a piece must say whether the document ends with it.
    """
    lines, held, begins = list[str](), 0, True
    for number, line in numbered_lines(path):
        if held >= characters:
            yield Piece("".join(lines), begins, ends=False)
            lines, held, begins = [], 0, False
        try:
            lines.append(line.decode() + "\n")
        except UnicodeDecodeError as exc:
            raise _no_text(path, number) from exc
        if "\0" in lines[-1]:  # probably UTF-16, which can also be valid UTF-8
            raise _no_text(path, number)
        held += len(lines[-1])
    if held:
        yield Piece("".join(lines), begins)


def _no_text(path: Path, line: int) -> ConfigError:
    do = (
        'set it to a UTF-8 text file, a folder of text files, or "stdlib" (the sources that '
        "come with Python)"
    )
    return refused(path, "it is not UTF-8 text", do=do, line=line)


def jsonl_pieces(path: Path, field: str) -> Iterator[Piece]:
    """Yield the text in `field` of the object on each line."""
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as exc:
            reason = f"it is not JSON: {exc}"
            raise refused(path, reason, do="correct or remove the line", line=number) from exc
        if not isinstance(value, dict):
            reason = f"expected a JSON object, not {type(value).__name__}"
            raise refused(path, reason, do="correct or remove the line", line=number)
        if field not in value:
            raise _no_such_field(path, field, list(value), line=number)
        yield Piece(_text(value[field], path, f'"{field}"', line=number))


def parquet_pieces(path: Path, field: str) -> Iterator[Piece]:
    """Yield the text in column `field` of each row. Needs pyarrow."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as exc:
        raise ConfigError(
            f"{path} is a parquet file, but pyarrow is not installed",
            code="EXTRA-MISSING",
            do=install("pyarrow"),
        ) from exc
    row = 0
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise _no_such_field(path, field, names)
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=[field], use_threads=False):
                for value in batch.column(0):
                    row += 1
                    yield Piece(_text(value.as_py(), path, f"row {row} of column {field!r}"))
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as exc:
        if isinstance(exc, OSError) and exc.errno:
            reason = f"it cannot be read: {exc.strerror}"
            raise refused(path, reason, do="choose a file that can be read") from exc
        where = f" after row {row}" if row else ""
        reason = f"the parquet file is damaged or incomplete{where}: {str(exc).splitlines()[0]}"
        raise refused(path, reason, do="download or create the file again") from exc


def _no_such_field(path: Path, field: str, there: list[str], line: int = 0) -> ConfigError:
    names = ", ".join(repr(name[:40]) for name in there[:KEYS_SHOWN_MAX])
    known = f"the fields are {names}" if names else "there are no fields"
    reason = f"there is no field {field!r}; {known}"
    return refused(path, reason, do="set data.field to the field with the text", line=line)


def _text(value: object, path: Path, what: str, line: int = 0) -> str:
    if not isinstance(value, str):
        reason = f"{what} is {'null' if value is None else type(value).__name__}, not text"
        do = "set data.field to a different field, or correct the value"
        raise refused(path, reason, do=do, line=line)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as exc:
        reason = f"{what} contains an incomplete character: {exc.reason}"
        raise refused(path, reason, do="correct the text", line=line) from exc
    if size > LINE_BYTES_MAX:
        reason = f"{what} has {size} bytes; a document may have at most {LINE_BYTES_MAX}"
        raise refused(path, reason, do="split it into several documents", line=line)
    return value
