"""Bound how much memory the C library keeps for threads that have ended.

glibc gives threads up to eight arenas for each core, and an arena keeps what was freed in it. A
node has dozens of short-lived threads, one for each handshake. Strangers that connect again and
again would fill all arenas: 20 MB on two cores, 320 MB on 32.
"""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8
"""From glibc's malloc.h."""

ARENAS_MAX = 2
"""One for the event loop's thread and one that the others share. Their large buffers are mapped
from the system directly, so they seldom wait for each other."""


def bound_malloc_arenas() -> bool:
    """Limit glibc to `ARENAS_MAX` arenas. Return whether it worked: only glibc has the call."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_ARENA_MAX, ARENAS_MAX))
