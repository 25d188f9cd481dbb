"""Read numbered lines from a user's file, with a length limit, gzip, and errors that name the line.

This module does not know what the lines mean.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from p2ptrain.errors import ConfigError

LINE_BYTES_MAX = 2**24
"""Maximum length of a line, such as a document or a contig: 16 MiB. Each line is read into memory,
and a file without line ends must not fill the memory."""


def refused(path: Path, reason: str, *, do: str, line: int = 0) -> ConfigError:
    """Return the error for a problem with the source at `path`, in line `line` if it is not 0."""
    place = f"{path}, line {line}" if line else str(path)
    return ConfigError(f"data.source: {place}: {reason}", code="DATA-SOURCE", do=do)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line's number, from 1, and the line without its line end. A UTF-8 byte order mark
    at the start of the file is removed.

    Raises ConfigError: the file cannot be read, has a line over LINE_BYTES_MAX, or is named .gz and
    is not a complete gzip file.
    """
    number = 0
    try:
        with opened(path) as file:
            if isinstance(file, gzip.GzipFile) and not path.stat().st_size:
                raise EOFError("it is empty")
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    reason = f"it is longer than {LINE_BYTES_MAX} bytes"
                    do = "split the line into several records, or wrap it"
                    raise refused(path, reason, do=do, line=number)
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield number, line.rstrip(b"\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        reason, do = f"it is not a complete gzip file: {exc}", "download or compress the file again"
        raise refused(path, reason, do=do, line=number) from exc
    except OSError as exc:
        reason = f"it cannot be read: {exc.strerror}"
        raise refused(path, reason, do="choose a file that can be read") from exc


def opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open the file for reading bytes, decompressed if its name ends in .gz."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")
