"""Start a trainer's ranks (its processes), exchange frames with them, and end them.

The node uses this module, which does not load torch. The methods are not asynchronous. A trio task
waits on `LocalTrainer.socket` and passes what it reads to `feed`. All methods that send to a
trainer, check it or end it can block, so trio calls them in a thread.

    trainer = Supervisor(config, theta_fd, local_fd).start()
    trainer.send(Load(step=0))
    frames = trainer.feed(trainer.socket.recv(65_536))

If one rank ends, the others are ended immediately, because they would hang in a collective. Then
the socket closes. A terminal's Ctrl-C does not reach the ranks, which are in separate sessions. It
reaches only the node, which stops the ranks in an orderly way. The ranks hold one end of a pipe.
When the node ends, its end of the pipe closes, and the ranks end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from p2ptrain.errors import (
    RemoteProtocolError,
    TrainerDiverged,
    TrainerError,
    TrainerExited,
    TrainerOutOfMemory,
    TrainerStalled,
    TrainerUnfit,
)
from p2ptrain.ipc.channel import Channel, ChannelClosed
from p2ptrain.ipc.frames import Failed, Frame, Hello, Stop, ToTrainer
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.ipc.wire import FrameReader
from p2ptrain.trainer.host.launch import LaunchedRanks, launch
from p2ptrain.trainer.host.micro_batch import (
    OUT_OF_MEMORY_EXIT_CODE,
    UNFIT_EXIT_CODE,
    OnHalving,
    at_once,
    halved,
    ignore_halving,
    report_halving,
)
from p2ptrain.trainer.host.stall_watch import AnswerTimeout, RestartBudget, StallWatch, StepCost

KILL_LIMIT_S = 10.0
"""Time limit for processes to end after SIGKILL. A device driver can delay the end of a process."""
EXIT_LIMIT_S = 1.0
"""Time limit for processes to end after their socket closed. A trainer closes its socket last."""


class LocalTrainer:
    """The processes of one trainer, from start to end. Created by `Supervisor.start`."""

    waits_for: str = ""
    """Always empty: the node starts these ranks itself and does not wait for them."""

    def __init__(
        self,
        launched: LaunchedRanks,
        watch: StallWatch,
        micro_batch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.micro_batch = micro_batch
        self._clock = clock
        self.hello: Hello | None = None
        self.socket = launched.socket
        self._processes = launched.processes
        self._lifeline_fd: int | None = launched.lifeline_fd
        self._tail = launched.tail
        self.useful = False
        """Whether work of this trainer was offered to the other peers. Written by the code that
        offers the work."""
        self.dismissed = False
        """Whether the node has stopped this trainer without a fault, for instance to pause. Such an
        end does not count as a restart."""
        self._watch = watch
        self._channel = Channel(self.socket)
        self._reader = FrameReader()
        self._first_exit: int | None = None
        self._exit_lock = threading.Lock()
        self._reapers = [
            threading.Thread(target=self._reap, args=(process,), name="trainer-reaper", daemon=True)
            for process in self._processes
        ]
        for reaper in self._reapers:
            reaper.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by rank."""
        return tuple(process.pid for process in self._processes)

    def send(self, frame: ToTrainer, meanwhile: Callable[[], None] | None = None) -> None:
        """Send a frame. It stays in the socket's buffer until the trainer's inner step is done.

        If a frame with many blocks does not fit into the buffer, this call blocks until the trainer
        reads. That can take minutes while the trainer restores its optimizer; `check` detects a
        hang. `meanwhile` is called every second, and can raise an exception to end the wait.

        Raises TrainerExited: the trainer is gone.
        """
        self._watch.sent(frame, self._clock())
        try:
            self._channel.send(frame, meanwhile=meanwhile)
        except ChannelClosed as exc:
            raise self._exited() from exc

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data`, read from `socket`, completes.

        At the end of the stream, pass `b""`. Do so after an OSError, too, because the socket of a
        killed trainer is reset. With `b""`, this call blocks until the processes have ended.

        Raises:
            TrainerExited: `data` is empty: the trainer ended.
            TrainerError: the trainer sent something that is not a frame.
        """
        if not data:
            raise self._exited()
        try:
            arrived = self._reader.feed(data)
        except RemoteProtocolError as exc:
            raise TrainerError(f"the trainer sent an invalid message: {exc.what}") from exc
        for frame in arrived:
            self._watch.received(frame, self._clock())
            if isinstance(frame, Hello):
                self.hello = frame
                self.micro_batch = frame.micro_batch  # On a GPU it may be less than configured.
        return arrived

    def check(self) -> None:
        """Raise TrainerExited if the trainer has ended, or TrainerStalled if it counts as stuck. A
        stuck trainer still runs: `kill` it.

        Call this about every second, in a thread: if the trainer has ended, the call blocks until
        all ranks are gone, or for KILL_LIMIT_S. The last frames of an ended trainer may still be
        unread in the socket.
        """
        if self.poll() is not None:
            raise self._exited()
        if reason := self._watch.check_overdue(self._clock()):
            evidence = self._tail.text().splitlines()[-12:]
            raise TrainerStalled(f"the trainer is {reason}", evidence=evidence)

    def poll(self) -> int | None:
        """Return the exit status of the rank that ended first (negative: a signal), or None."""
        return self._first_exit

    def stop(self, deadline_s: float, *, again: bool = False) -> int:
        """Ask the trainer to end after its inner step; kill it after `deadline_s`. With `again`,
        the trainer has failed, and the next start counts as a restart.

        Return the exit status: 0 if the trainer ended by itself. The trainer may have ended before
        this call.
        """
        self.dismissed = not again
        if self._first_exit is None:
            with suppress(ChannelClosed):  # The trainer may already be ending.
                self._channel.send(Stop(), deadline_s=deadline_s)
            self._join(deadline_s)
        return self.kill()

    def kill(self) -> int:
        """End all ranks now, close the node's ends of their socket and pipe, and return the exit
        status. Later calls only return the status."""
        self._kill_all()
        self._join(KILL_LIMIT_S)
        self.socket.close()
        if self._lifeline_fd is not None:
            os.close(self._lifeline_fd)
            self._lifeline_fd = None
        return self._exit_code()

    def _exited(self) -> TrainerExited:
        self._join(EXIT_LIMIT_S)
        self._kill_all()
        self._join(KILL_LIMIT_S)
        code, tail = self._exit_code(), self._tail.finish(EXIT_LIMIT_S)
        if code == OUT_OF_MEMORY_EXIT_CODE:
            return TrainerOutOfMemory(code, tail, self.micro_batch)
        return (TrainerUnfit if code == UNFIT_EXIT_CODE else TrainerExited)(code, tail)

    def _exit_code(self) -> int:
        """Return the status of the rank that ended first; -SIGKILL if none has ended yet."""
        return -signal.SIGKILL if self._first_exit is None else self._first_exit

    def _join(self, limit_s: float) -> None:
        give_up_at = time.monotonic() + limit_s
        for reaper in self._reapers:
            reaper.join(max(0.0, give_up_at - time.monotonic()))

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for one rank. If its status is not 0, kill all ranks."""
        code = process.wait()
        with self._exit_lock:
            if self._first_exit is None or (self._first_exit == 0 and code != 0):
                self._first_exit = code
        if code != 0:
            self._kill_all()

    def _kill_all(self) -> None:
        for process in self._processes:
            process.kill()


@dataclass(slots=True)
class Supervisor:
    """Starts this node's trainer, and restarts it as often as `budget` allows.

    `theta_fd` and `local_fd` are shared memory in the canonical layout; the trainer's processes
    inherit them. One Supervisor serves all starts; only one trainer may run at a time.

    If memory ran out, each rank of the next start computes half as many sequences at a time. Such
    a start does not count as a restart, because the number can be halved only a few times.
    `on_halving` is called with the new limit.
    """

    config: TrainerConfig
    theta_fd: int
    local_fd: int
    ranks: int = 1
    budget: RestartBudget = field(default_factory=RestartBudget)
    patience: AnswerTimeout = field(default_factory=AnswerTimeout)
    on_halving: OnHalving = ignore_halving
    launch: Callable[[TrainerConfig, int, int, int], LaunchedRanks] = launch
    """The function that starts the ranks: `launch`, except in tests."""
    clock: Callable[[], float] = time.monotonic
    _last: LocalTrainer | None = field(default=None, init=False)

    def use_limits(self, threads: int, gpu_bytes: int) -> None:
        """Use these limits from the next start on; see `TrainerConfig`."""
        self.config = replace(self.config, threads=threads, gpu_bytes=gpu_bytes)

    def start(self) -> LocalTrainer:
        """Start all ranks. The first frame is Hello, a few seconds later.

        Raises TrainerError: the trainer has ended too often; the restart budget is spent.
        """
        if self._last is not None and not self._last.dismissed and not self._fits_better():
            spend(self.budget, self.clock(), useful=self._last.useful)
        launched = self.launch(self.config, self.theta_fd, self.local_fd, self.ranks)
        watch = StallWatch(self.clock(), self.patience, StepCost.of(self.config))
        self._last = LocalTrainer(launched, watch, at_once(self.config, self.ranks), self.clock)
        return self._last

    def _fits_better(self) -> bool:
        """If the last trainer ran out of memory and its micro-batch can be halved, halve the
        micro-batch and return True."""
        assert self._last is not None
        tried = replace(self.config, micro_batch=self._last.micro_batch)
        smaller = halved(tried, self.ranks)
        if self._last.poll() != OUT_OF_MEMORY_EXIT_CODE or smaller is None:
            return False
        self.config = smaller
        report_halving(self.on_halving, self._last.hello, smaller)
        return True


def spend(budget: RestartBudget, now: float, *, useful: bool) -> None:
    """Count a restart. `useful` says whether the last trainer's work was offered to other peers.

    Raises TrainerError: the budget allows no restart now.
    """
    if budget.spend(now, useful=useful):
        return
    how_often = f"within {budget.window_s:.0f} s"
    if budget.in_vain > budget.restarts_max:
        how_often = "without ever finishing the inner steps of an outer step"
    raise TrainerError(
        f"the trainer was restarted {budget.restarts_max} times {how_often} and ended again",
        code="TRAINER-RESTARTS",
        likely="a problem with this machine's memory, driver or installation",
        do="read the messages above, remove the cause, and start the node again",
    )


def failure(frame: Failed) -> TrainerError:
    """Return the error for `frame`, with which the node ends if it gives up."""
    error = TrainerDiverged if frame.code == "NAN" else TrainerError
    return error(frame.text, code=frame.code)
