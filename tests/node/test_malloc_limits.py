"""The limits for malloc prevent the C library from keeping memory that nobody uses any more."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import ctypes, sys, threading
from p2ptrain.node.malloc_limits import limit_malloc

if sys.argv[1] == "bound":
    limit_malloc()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
gate = threading.Barrier(16)

def run():
    gate.wait()
    block = libc.malloc(1000)
    gate.wait()
    libc.free(block)

threads = [threading.Thread(target=run) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fdopen.restype = ctypes.c_void_p
sys.stdout.flush()
libc.malloc_info(0, libc.fdopen(1, b"w"))
libc.fflush(None)
"""


def arenas(how: str) -> int:
    """Return the number of malloc arenas after 16 threads have run, with the limits if `how` is
    "bound"."""
    unset = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
    plain = {name: value for name, value in os.environ.items() if name not in unset}
    words = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(words, env=plain, capture_output=True, check=True)
    return done.stdout.count(b"<heap nr=")


def test_malloc_has_at_most_two_arenas_after_many_threads() -> None:
    assert arenas("bound") <= 2 < arenas("unbound")


BLOCKS = """
import sys
from p2ptrain.node.malloc_limits import limit_malloc

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

if sys.argv[1] == "bound":
    limit_malloc()
bytes(3 << 20)  # From now on glibc takes blocks up to 3 MB from the arena.
before, kept = resident_mb(), []
for _ in range(40):
    frame = b"x" * (1 << 20)
    kept.append(b"y" * 1000)
    frames = [frame, b"x" * (1 << 20)]
    kept.append(b"z" * 1000)
    del frame, frames
blocks = [b"x" * (1 << 20) for _ in range(40)]
kept += [b"y" * 2000 for _ in range(40)]
del blocks[:-1]
print(resident_mb() - before)
"""


def growth_mb(how: str) -> float:
    """Return how many MB of freed memory a process keeps, with the limits if `how` is "bound"."""
    words = [sys.executable, "-c", BLOCKS, how]
    return float(subprocess.run(words, capture_output=True, check=True, text=True).stdout)


def test_freed_blocks_of_one_mb_are_returned_to_the_system() -> None:
    assert growth_mb("bound") < 10 < growth_mb("unbound")
