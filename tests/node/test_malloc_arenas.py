"""Ended threads leave no memory of the C library behind."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import ctypes, sys, threading
from p2ptrain.node.state.malloc_arenas import bound_malloc_arenas

if sys.argv[1] == "bound":
    bound_malloc_arenas()
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
    unset = ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
    plain = {name: value for name, value in os.environ.items() if name not in unset}
    words = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(words, env=plain, capture_output=True, check=True)
    return done.stdout.count(b"<heap nr=")


def test_node_has_two_arenas_however_many_threads_it_starts() -> None:
    assert arenas("bound") <= 2 < arenas("unbound")
