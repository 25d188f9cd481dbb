"""Limits of the system on this process, which stand for a full disk or too few descriptors."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def exhausted(limit: int) -> Iterator[None]:
    """Set this limit of the process to 0 in the `with` block."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(limit, (soft, hard))


no_file_grows = partial(exhausted, resource.RLIMIT_FSIZE)
"""Lets every write to a file fail, with the error EFBIG. Our code treats it like ENOSPC, the error
of a full disk. Files can still be created."""

no_more_descriptors = partial(exhausted, resource.RLIMIT_NOFILE)
"""Lets this process open no file."""
