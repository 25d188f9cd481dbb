"""Lines of a file that somebody else made: numbered, bounded, unpacked, and complained about.

It knows gzip and nothing of what the lines mean.
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
"""A document, a contig: 16 MiB of one. Lines are read whole, so a file without line ends must not
fill the memory."""


def refused(path: Path, reason: str, *, do: str, line: int = 0) -> ConfigError:
    """The error that says what is wrong with the source at `path`, and where."""
    place = f"{path}, line {line}" if line else str(path)
    return ConfigError(f"data.source: {place}: {reason}", code="DATA-SOURCE", do=do)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line without its end, and its number from 1 on. The mark that some editors put before
    UTF-8 is no part of it.

    Raises:
        ConfigError: it cannot be read, is no whole gzip file though its name says so, or has a
            line over LINE_BYTES_MAX.
    """
    number = 0
    try:
        with opened(path) as file:
            if isinstance(file, gzip.GzipFile) and not path.stat().st_size:
                raise EOFError("it is empty")
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise refused(
                        path,
                        f"it is longer than {LINE_BYTES_MAX} bytes",
                        do="cut what is on it into several records, or wrap its lines",
                        line=number,
                    )
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield number, line.rstrip(b"\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise refused(
            path, f"it is no whole gzip file: {exc}", do="fetch or pack it again", line=number
        ) from exc
    except OSError as exc:
        raise refused(
            path, f"it cannot be read: {exc.strerror}", do="name a file that can be read"
        ) from exc


def opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    """The bytes of the file, unpacked if its name ends in .gz."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")
