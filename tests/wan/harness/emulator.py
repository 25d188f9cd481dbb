"""Compile the emulator, and run commands on its nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "tests" / "wan"
BUILD = ROOT / "build" / "wan"
PROGRAM = ("wan.c", "sites.c", "nat.c")
HEADERS = ("nat.h", "sites.h")
FLAGS = ("-O2", "-Wall", "-Wextra")
PUBLIC_NET = 11
"""The first byte of public outside addresses. They belong to nobody in the emulated network."""

COMPILE_S = 120.0
"""Timeout of the compiler in seconds. On an idle machine it needs two."""

APART = 'mkdir -p /run/netns && mount -t tmpfs none /run/netns && exec "$@"'
"""Hides the names of our namespaces from other runs of the emulator on this machine."""


def missing() -> str:
    """Return what this machine lacks to run the emulator; "" if it lacks nothing."""
    if os.geteuid() != 0:
        return "it makes network namespaces, so it needs root"
    lacking = [name for name in ("cc", "ip", "unshare") if shutil.which(name) is None]
    if lacking:
        return f"these programs are not installed: {', '.join(lacking)}"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun does not exist; perhaps `modprobe tun` loads the driver"
    return ""


def compiled(
    name: str, *flags: str, sources: Sequence[str] = ("wan.c", "sites.c", "nat.c")
) -> Path:
    """Return the compiled program or library `name`. It is compiled once for each version of its
    sources, into build/wan. Raises CalledProcessError if the compiler fails."""
    texts = b"".join((SOURCES / each).read_bytes() for each in (*sources, *HEADERS))
    made = BUILD / sha256(texts).hexdigest()[:16] / name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        fresh = made.with_name(f"{name}.{os.getpid()}")
        paths = (str(SOURCES / each) for each in sources)
        words = ("cc", *FLAGS, *flags, "-o", str(fresh), *paths)
        subprocess.run(words, check=True, timeout=COMPILE_S)
        fresh.replace(made)  # another process may compile at the same time
    return made


def words(options: Sequence[str], command: Sequence[str], *, public: bool = False) -> list[str]:
    """Return the words that run `command` with these options of the emulator (tests/wan/wan.c).
    `public`: outside addresses begin with 11.77, which are public, instead of 10.77."""
    made = compiled("wan-public", f"-DNET={PUBLIC_NET}") if public else compiled("wan")
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", APART, "sh"]
    return [*apart, str(made), *options, "--", *command]


def result(
    options: Sequence[str],
    module: str,
    arguments: Sequence[str],
    limit_s: float,
    *,
    public: bool = False,
) -> dict[str, object]:
    """Run `python -m tests.wan.harness.MODULE --inside` in the emulator, which has `options`.
    Return its last line of output, which is JSON.
    Raises CalledProcessError, TimeoutExpired: it fails, or takes longer than `limit_s`."""
    inner = [sys.executable, "-m", f"tests.wan.harness.{module}", "--inside", *arguments]
    done = subprocess.run(
        words(options, inner, public=public),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=limit_s,
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def inside(node: int, command: Sequence[str]) -> list[str]:
    """Return the words that run `command` in a node."""
    return ["ip", "netns", "exec", f"wan{node}", *command]
