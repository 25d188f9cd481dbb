"""Start the processes of one trainer (its ranks), and pass them their file descriptors.

`supervisor` exchanges frames with the ranks and ends them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import p2ptrain
from p2ptrain.ipc.trainer_config import TrainerConfig

STDERR_TAIL_BYTES = 16_384
"""Enough for several Python tracebacks through torch, which take about 3 KB each."""
_LOOPBACK = "127.0.0.1"


class StderrTail:
    """The last bytes that the ranks wrote to stdout and stderr. A thread reads the pipe."""

    def __init__(self, read_fd: int) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._read_pipe, args=(read_fd,), name="trainer-stderr", daemon=True
        )
        self._thread.start()

    def text(self) -> str:
        with self._lock:
            return b"".join(self._pieces)[-STDERR_TAIL_BYTES:].decode(errors="replace")

    def finish(self, limit_s: float) -> str:
        """Wait until all ranks have closed the pipe, at most `limit_s`, and return the text."""
        self._thread.join(limit_s)
        return self.text()

    def _read_pipe(self, read_fd: int) -> None:
        with open(read_fd, "rb", buffering=0) as stream:
            while piece := stream.read(4096):
                with self._lock:
                    self._pieces.append(piece)
                    self._size += len(piece)
                    while self._size - len(self._pieces[0]) >= STDERR_TAIL_BYTES:
                        self._size -= len(self._pieces.popleft())


@dataclass(frozen=True, slots=True)
class LaunchedRanks:
    """The processes by rank, the node's end of the socketpair, and the node's end of the lifeline:
    a pipe whose closing ends the ranks."""

    processes: tuple[subprocess.Popen[bytes], ...]
    socket: socket.socket
    lifeline_fd: int
    tail: StderrTail


def launch(config: TrainerConfig, theta_fd: int, local_fd: int, ranks: int) -> LaunchedRanks:
    """Start `ranks` processes that inherit the vectors θ and `local`. If one process cannot start,
    end the others and raise the error."""
    with ExitStack() as always, ExitStack() as on_failure:
        ours, theirs = socket.socketpair()
        always.callback(theirs.close)
        on_failure.callback(ours.close)
        lifeline_read, lifeline_write = os.pipe()
        always.callback(os.close, lifeline_read)
        on_failure.callback(os.close, lifeline_write)
        stderr_read, stderr_write = os.pipe()
        always.callback(os.close, stderr_write)
        on_failure.callback(os.close, stderr_read)
        # This socket is bound here and passed to rank 0, so that no other program can take the port
        # first.
        store = always.enter_context(socket.create_server((_LOOPBACK, 0)))
        every = {"--theta-fd": theta_fd, "--local-fd": local_fd, "--lifeline-fd": lifeline_read}
        first = {"--socket-fd": theirs.fileno(), "--store-fd": store.fileno()}
        command = [sys.executable, "-m", "p2ptrain.trainer", "--config", config.to_json()]
        processes: list[subprocess.Popen[bytes]] = []
        on_failure.callback(_kill, processes)
        for rank in range(ranks):
            environment = environment_of_rank(rank, ranks, store.getsockname()[1], config.threads)
            fds = every | first if rank == 0 else every
            processes.append(_start_rank(command, environment, fds, stderr_write))
        on_failure.pop_all()
    return LaunchedRanks(tuple(processes), ours, lifeline_write, StderrTail(stderr_read))


def _start_rank(
    command: list[str], environment: dict[str, str], fds: dict[str, int], output_fd: int
) -> subprocess.Popen[bytes]:
    options = [text for option, fd in fds.items() for text in (option, str(fd))]
    return subprocess.Popen(
        command + options,
        pass_fds=tuple(fds.values()),
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        env=environment,
        start_new_session=True,
    )


def environment_of_rank(rank: int, ranks: int, port: int, threads: int) -> dict[str, str]:
    """Return the environment that torchrun would set for `rank`, restricted to connections from
    this machine. Rank 0 serves torch's store on `port`."""
    source = str(Path(p2ptrain.__file__).parents[1])
    added = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": 1,
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
    }
    # Without these variables, gloo would listen at the address of the host's name. Other machines
    # may reach that address, or it may not exist. NCCL would listen on the first interface that is
    # not loopback. NCCL treats a name as a prefix unless it begins with "=".
    if "lo" in {name for _, name in socket.if_nameindex()}:
        added |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    return {**os.environ, **{name: str(value) for name, value in added.items()}}


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
