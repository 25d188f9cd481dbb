"""A run's training data: source code of Python's standard library, a file, or a folder of files.

    .jsonl .ndjson                       text, one JSON object per line, in one field
    .parquet                             text, in one column
    .fa .fas .fasta .ffn .fna .frn .fsa  .fq .fastq   reads
    anything else                        UTF-8 text; a file is one document, cut at line ends

All formats except parquet can be compressed with gzip, with `.gz` after the ending. A folder stands
for all files in it, sorted by path. A source is not kept in memory, and can be read repeatedly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.data.documents import jsonl_pieces, parquet_pieces, text_pieces
from p2ptrain.data.lines import refused
from p2ptrain.data.piece import Piece
from p2ptrain.data.reads import fasta_pieces, fastq_pieces
from p2ptrain.data.text import standard_library_text
from p2ptrain.errors import ConfigError

STANDARD_LIBRARY = "stdlib"

CHECKED_MAX = 32
"""Number of files whose first record is checked in advance: one wrong setting affects all files."""

Reader = Callable[[Path, str], Iterator[Piece]]

RECORDS: dict[str, Reader] = {
    ".jsonl": jsonl_pieces,
    ".ndjson": jsonl_pieces,
    ".parquet": parquet_pieces,
}
READS: dict[str, Reader] = {
    **dict.fromkeys((".fa", ".fas", ".fasta", ".ffn", ".fna", ".frn", ".fsa"), fasta_pieces),
    **dict.fromkeys((".fq", ".fastq"), fastq_pieces),
}


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data source: `files`, of which at most `limit_bytes` of text are used. If `files` is empty,
    the source is the source code of Python's standard library.
    """

    name: str
    files: tuple[Path, ...]
    field: str
    limit_bytes: int

    @property
    def holds_reads(self) -> bool:
        return any(_ending(file) in READS for file in self.files)

    @property
    def holds_records(self) -> bool:
        """Whether documents of this source are records: JSON lines, rows of parquet, or reads."""
        return any(_ending(file) in RECORDS or _ending(file) in READS for file in self.files)

    def pieces(self) -> Iterator[Piece]:
        """Yield non-empty pieces until the next one would exceed the limit. So the last document
        may be incomplete. Raises ConfigError: a file is malformed, or all files are empty.
        """
        return within(self.limit_bytes, self._all(), self.name)

    def check_fields(self) -> None:
        """Read the first record of the first CHECKED_MAX files. Raises ConfigError: it is
        malformed, or has no text in `field`."""
        for file in self.files[:CHECKED_MAX]:
            if _ending(file) in RECORDS:
                next(_reader(file)(file, self.field), None)

    def _all(self) -> Iterator[Piece]:
        if not self.files:
            yield from map(Piece, standard_library_text(self.limit_bytes))
        for file in self.files:
            yield from _reader(file)(file, self.field)


def find_source(name: str, *, field: str, limit_bytes: int, beside: Path) -> DataSource:
    """Return the source that a run file calls `name`. Paths are relative to the folder `beside`.

    Raises ConfigError: there are no files, a folder cannot be read, or reads and text are mixed.
    """
    if name == STANDARD_LIBRARY:
        return DataSource(name, (), field, limit_bytes)
    path = beside / Path(name).expanduser()
    files = [path]
    if path.is_dir():
        files = files_under(path)
    elif not path.exists():
        raise refused(path, "it cannot be read: No such file or directory", do=_DO)
    if not files:
        raise refused(path, "it does not contain any files", do=_DO)
    kinds = {_ending(file) in READS for file in files}
    if len(kinds) > 1:
        other = next(file for file in files if _ending(file) not in READS)
        reason = f"it contains both reads and text (such as {other.name})"
        raise refused(path, reason, do="put reads and text into separate folders")
    return DataSource(name, tuple(files), field, limit_bytes)


def files_under(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted by path. Links to folders are not
    followed.

    Raises ConfigError: a folder cannot be read. Without the error, nobody would notice that its
    files are missing.
    """

    def failed(exc: OSError) -> None:
        raise refused(Path(exc.filename), f"it cannot be read: {exc.strerror}", do=_DO) from exc

    found = os.walk(folder, onerror=failed)
    paths = [Path(each, name) for each, _, names in found for name in names]
    return sorted(path for path in paths if path.is_file())


def within(limit_bytes: int, pieces: Iterable[Piece], name: str) -> Iterator[Piece]:
    """Yield non-empty `pieces` until the next one would exceed `limit_bytes` in total.

    Raises ConfigError: there are no pieces, or the first piece alone exceeds the limit.
    """
    room = limit_bytes
    for piece in pieces:
        size = len(piece.text.encode())
        if size > room:
            if room == limit_bytes:
                raise ConfigError(
                    f"data.source: the first document of {name} has {size} bytes, more than "
                    f"data.limit_mb = {limit_bytes / 1e6:g} allows",
                    code="DATA-SOURCE",
                    do="set data.limit_mb to a larger number",
                )
            return
        room -= size
        if size:
            yield piece
    if room == limit_bytes:
        what, do = f"{name} does not contain text", _DO
        if name == STANDARD_LIBRARY:  # `standard_library_text` has skipped files over the limit.
            what = f"no file of {name} fits into data.limit_mb = {limit_bytes / 1e6:g}"
            do = "set data.limit_mb to a larger number"
        raise ConfigError(f"data.source: {what}", code="DATA-SOURCE", do=do)


_DO = (
    "set it to a text, JSON lines, parquet, FASTA or FASTQ file, a folder of such files, or "
    '"stdlib" (the sources that come with Python)'
)


def _ending(path: Path) -> str:
    """Return the ending before .gz, such as ".fastq" for reads.fastq.gz."""
    plain = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return plain.suffix.lower()


def _reader(path: Path) -> Reader:
    return {**RECORDS, **READS}.get(_ending(path), text_pieces)
