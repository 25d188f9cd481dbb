"""Bound how much freed memory the C library keeps.

glibc gives threads up to eight arenas for each core, and an arena keeps what was freed in it. A
node has dozens of short-lived threads, one for each handshake. Strangers that connect again and
again would fill all arenas: 20 MB on two cores, 320 MB on 32.

glibc also takes ever larger blocks from an arena instead of the system: once a block of 1 MB was
freed, blocks up to 1 MB come from the arena, between small ones that stay. Frames of gossip and
chunks are that large, so a node under attack would keep the memory of many of them.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""From glibc's malloc.h."""

ARENAS_MAX = 2
"""One for the event loop's thread and one that the others share. Their large buffers are mapped
from the system directly, so they seldom wait for each other."""

MAPPED_BYTES = 128 * 1024
"""Blocks of this size and larger are mapped from the system, and returned when freed: glibc's own
threshold at the start. A 4 MiB chunk costs 0.3 ms for that, far less than its digest."""


def limit_malloc() -> bool:
    """Set the limits. Return whether it worked: only glibc has the call."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    limits = {M_ARENA_MAX: ARENAS_MAX, M_MMAP_THRESHOLD: MAPPED_BYTES}
    limits[M_TRIM_THRESHOLD] = MAPPED_BYTES
    return mallopt is not None and all(mallopt(*limit) for limit in limits.items())
