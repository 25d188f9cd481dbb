"""Measure the all-reduce of other libraries in the same run as ours.

gloo is part of torch, which is installed anyway. hivemind is installed into a temporary
environment, and only on request. If a library cannot be measured, the reason is reported.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from p2ptrain.bench import throwaway
from p2ptrain.bench.processes import Host, ProcessFailed, together

HIVEMIND = ("hivemind==1.1.12", "numpy<2.4")
"""The packages to install: the latest hivemind on PyPI, and an older numpy. With numpy 2.4,
hivemind's quantisation fails, and it then returns each peer's own vector as the mean (its `extract`
converts an array to an int)."""

HIVEMIND_CODECS = ("fp16", "uint8")

Contender = Callable[[Sequence[Host], int, int], float]
"""Called with hosts, elements and repeats. Returns seconds: the median over the repeats of the
slowest process's time."""

Environment = Callable[[Sequence[str]], AbstractContextManager[str]]
"""Called with packages. Yields the path of Python in an environment that has them."""


def gloo(hosts: Sequence[Host], elements: int, repeats: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [sys.executable, "-m", "p2ptrain.bench.all_reduce.gloo"]
    meeting = [hosts[0].address, str(port)]
    return _seconds(program, hosts, elements, repeats, lambda host: [*meeting, host.address])


def sockets(hosts: Sequence[Host], elements: int, repeats: int) -> float:
    """Return the time to send the same bytes without any arithmetic: the best that the network
    paths allow."""
    program = [sys.executable, "-m", "p2ptrain.bench.all_reduce.sockets"]
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-") as folder:
        return _seconds(program, hosts, elements, repeats, lambda host: [host.address, folder])


def hivemind(python: str, codec: str, hosts: Sequence[Host], elements: int, repeats: int) -> float:
    """Run hivemind's averager with `codec` in the environment of `python`, which has hivemind."""
    # -P leaves the script's folder out of sys.path, because some modules in that folder have the
    # same names as installed packages.
    program = [python, "-P", str(Path(__file__).with_name("hivemind_peer.py"))]
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-") as folder:
        return _seconds(
            program,
            hosts,
            elements,
            repeats,
            lambda host: [codec, host.address, folder],
            quiet=True,
        )


def _seconds(
    program: Sequence[str],
    hosts: Sequence[Host],
    elements: int,
    repeats: int,
    rest: Callable[[Host], Sequence[str]],
    *,
    quiet: bool = False,
) -> float:
    """Run `program` on each host, with the process's number, the sizes and `rest` as arguments."""
    sizes = [str(each) for each in (len(hosts), elements, repeats)]
    commands = [
        host.command([*program, str(me), *sizes, *rest(host)]) for me, host in enumerate(hosts)
    ]
    return slowest_median([json.loads(answer) for answer in together(commands, quiet=quiet)])


def slowest_median(times: Sequence[Sequence[float]]) -> float:
    """Return the median over the repeats of the slowest process's time."""
    slowest: list[float] = [max(repeat) for repeat in zip(*times, strict=True)]
    return statistics.median(slowest)


class ContenderRun:
    """The contenders of one run by name, prepared once. Use it as a context manager.

    `missing` gives the reason for each requested contender that is unavailable.
    """

    def __init__(
        self,
        wanted: Sequence[str],
        *,
        gloo: Contender = gloo,
        environment: Environment = throwaway.environment_with,
    ) -> None:
        unknown = set(wanted) - {"gloo", "hivemind", "sockets"}
        if unknown:
            raise ValueError(f"{min(unknown)!r} is not a program to compare with")
        self._wanted = wanted
        self._gloo, self._environment = gloo, environment
        self._stack = ExitStack()
        self.contenders: dict[str, Contender] = {}
        self.missing: dict[str, str] = {}

    def __enter__(self) -> ContenderRun:
        if "gloo" in self._wanted:
            self._enter_gloo()
        if "sockets" in self._wanted:
            self.contenders["bare sockets"] = sockets
        if "hivemind" in self._wanted:
            self._enter_hivemind()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def seconds(
        self, name: str, hosts: Sequence[Host], elements: int, repeats: int
    ) -> float | None:
        """Return the contender's seconds. If it fails, remove it and return None."""
        try:
            return self.contenders[name](hosts, elements, repeats)
        except ProcessFailed as exc:
            del self.contenders[name]
            self.missing[name] = str(exc)
            return None

    def _enter_gloo(self) -> None:
        if find_spec("torch") is None:
            self.missing["gloo fp32"] = "torch is not installed; run scripts/setup"
        else:
            self.contenders["gloo fp32"] = self._gloo

    def _enter_hivemind(self) -> None:
        try:
            python = self._stack.enter_context(self._environment(HIVEMIND))
        except ProcessFailed as exc:
            self.missing["hivemind"] = f"it cannot be installed: {exc}"
            return
        for codec in HIVEMIND_CODECS:
            self.contenders[f"hivemind {codec}"] = partial(hivemind, python, codec)
