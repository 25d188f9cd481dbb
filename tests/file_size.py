"""A limit on the size of files, which stands for a full disk in tests."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_grows() -> Iterator[None]:
    """Let every write to a file of this process fail in the `with` block. Files can be created.

    The system reports the error EFBIG and not ENOSPC. Our code treats both in the same way.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
