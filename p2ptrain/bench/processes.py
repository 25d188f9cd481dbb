"""Run the processes of one measurement, each on a host of its own or all on this machine."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

PROCESS_S_MAX = 900.0
WORDS_MAX = 300
_NAMESPACE = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Host:
    """Where a peer runs: an address of this machine, or of one of its network namespaces."""

    address: str = "127.0.0.1"
    namespace: str = ""

    @classmethod
    def parse(cls, text: str) -> Host:
        """Parse "10.77.0.1" or "wan0/10.77.0.1". Raises ValueError."""
        namespace, slash, address = text.rpartition("/")
        if slash and not _NAMESPACE.fullmatch(namespace):
            raise ValueError(f"{namespace!r} is not the name of a network namespace")
        return cls(str(ip_address(address)), namespace)

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs `words` on this host."""
        way_in = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [*way_in, *words]


class ProcessFailed(Exception):
    """A process did not produce a result. The message says why, or is the end of its output."""


def together(commands: Iterable[list[str]], *, quiet: bool = False) -> list[str]:
    """Run the commands at the same time, and return what each prints to stdout. Their stderr is
    shown, unless `quiet`. Raises ProcessFailed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    errors = subprocess.PIPE if quiet else None
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        for command in commands
    ]
    try:
        said = [process.communicate(timeout=PROCESS_S_MAX) for process in running]
    except subprocess.TimeoutExpired as exc:
        raise ProcessFailed(f"a process did not end within {PROCESS_S_MAX:.0f} s") from exc
    finally:
        for process in running:
            process.kill()
    for process, (_, words) in zip(running, said, strict=True):
        if process.returncode:
            raise ProcessFailed((words or "its output is above").strip()[-WORDS_MAX:])
    return [answer for answer, _ in said]
