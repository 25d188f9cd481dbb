"""Limit how much freed memory the C library keeps.

glibc gives threads up to eight memory pools ("arenas") per core. Freed memory stays in its arena. A
node has dozens of short-lived threads, one for each handshake. Strangers that connect again and
again would make all arenas grow: to 20 MB on two cores, to 320 MB on 32.

glibc also raises the size up to which blocks come from an arena, and not directly from the system.
Once a block of 1 MB has been freed, blocks of up to 1 MB come from an arena. There, they lie
between small blocks that remain in use, so their memory does not go back to the system. Gossip
frames and chunks are that large, so a node under attack would keep the memory of many of them.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""The numbers of mallopt's parameters, from glibc's malloc.h."""

ARENAS_MAX = 2
"""Maximum number of arenas: one for the event loop's thread, and one that the other threads share.
Their large buffers are mapped directly from the system, so they rarely wait for each other."""

MAPPED_BYTES = 128 * 1024
"""Minimum size of blocks that are mapped from the system, and returned to it when freed. This is
glibc's own initial threshold. Mapping a 4 MiB chunk takes 0.3 ms, far less than hashing it."""


def limit_malloc() -> bool:
    """Set the limits. Return whether this worked: only glibc has the function `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    limits = {M_ARENA_MAX: ARENAS_MAX, M_MMAP_THRESHOLD: MAPPED_BYTES}
    limits[M_TRIM_THRESHOLD] = MAPPED_BYTES
    return mallopt is not None and all(mallopt(*limit) for limit in limits.items())
