"""Shuffle any number of rows of tokens on disk, in two passes.

Every row gets a random 64-bit number, its draw, and the rows are sorted by their draws. The range
of draws is divided evenly among at most FILES_MAX files. The first pass writes each row to the file
for its draw; the second pass reads one file after another and sorts each in memory. So the order
does not depend on the number of files, and only one file at a time has to fit into memory. A file
has about FILE_BYTES, or 1/256 of the data if there are more than 16 GiB of data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from p2ptrain.data.splitmix import below, draws

FILE_BYTES = 64 * 2**20
FILES_MAX = 256
"""Maximum number of open files. The usual limit of a process is 1,024."""

Rows = NDArray[np.unsignedinteger[Any]]


class Shuffle:
    """Takes rows of `row_tokens` tokens, and returns them in random order. The expected number of
    rows, `rows`, determines the number of files. Different values of `use` give different orders.
    """

    def __init__(
        self,
        folder: Path,
        *,
        row_tokens: int,
        token_dtype: str,
        rows: int,
        seed: int,
        use: str,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._record = np.dtype([("draw", "<u8"), ("row", token_dtype, (row_tokens,))])
        self._seed, self._use = seed, use
        wanted = -(-rows * self._record.itemsize // file_bytes)
        self._count = min(max(wanted, 1), FILES_MAX)
        self._stack = ExitStack()
        self._paths = [folder / f"{use}-{number:03d}" for number in range(self._count)]
        self._files = [self._stack.enter_context(path.open("wb")) for path in self._paths]
        self._taken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def add_rows(self, rows: Rows) -> None:
        """Add rows, shaped [rows, row_tokens]."""
        records = np.empty(len(rows), self._record)
        records["draw"] = draws(self._seed, self._use, self._taken, len(rows))
        records["row"] = rows
        self._taken += len(rows)
        homes = below(records["draw"], self._count)
        order = np.argsort(homes, kind="stable")
        borders = np.searchsorted(homes[order], np.arange(self._count + 1))
        for number in np.unique(homes).tolist():
            theirs = order[borders[number] : borders[number + 1]]
            self._files[number].write(records[theirs].tobytes())

    def shuffled(self) -> Iterator[Rows]:
        """Yield all rows, several at a time. Rows cannot be added afterwards."""
        self._stack.close()
        for path in self._paths:
            records = np.fromfile(path, self._record)
            path.unlink()
            yield records["row"][np.argsort(records["draw"], kind="stable")]
