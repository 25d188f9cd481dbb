"""A trainer whose ranks (processes) are started by torchrun, on this host or on several.

Use this if a peer trains on more machines than the one on which its node runs. The node binds an
address in a private network and waits for the configured number of ranks. If one rank ends, all
ranks end, and the node waits until they connect again. The first wait has no limit, because
torchrun may be started much later than the node. Later waits last at most `RETURN_LIMIT_S`, because
the other peers expect this peer to train.

The classes have the same interface as those of `supervisor`; `rank_server` serves the connections.
This module does not load torch.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from p2ptrain.errors import (
    RemoteProtocolError,
    TrainerError,
    TrainerOutOfMemory,
    TrainerStalled,
    counted,
)
from p2ptrain.ipc.channel import Channel, ChannelClosed
from p2ptrain.ipc.frames import Evaluate, Frame, Hello, Stop, ToTrainer, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.ipc.wire import FrameReader
from p2ptrain.trainer.host.micro_batch import OnHalving, halved, ignore_halving, report_halving
from p2ptrain.trainer.host.rank_server import RankGathering, WriteEvent
from p2ptrain.trainer.host.stall_watch import AnswerTimeout, RestartBudget, StallWatch, StepCost
from p2ptrain.trainer.host.supervisor import spend

RETURN_LIMIT_S = 600.0
"""Time limit for ranks to connect again. A host that restarts is up within that time."""
AWAY = "TRAINER-AWAY"
CLOSE_LIMIT_S = 10.0
"""Time limit for the threads of the connections to end. A thread ends when its socket is shut down,
but it may still be reading a block from a slow disk."""


@dataclass(eq=False, repr=False)
class ExternalRanks:
    """The ranks of one start, from the first connection to the end. Created by
    `ExternalTrainers.start`."""

    _gathering: RankGathering
    _address: str
    _limit_s: float | None
    """Time limit for all ranks to connect."""
    _patience: AnswerTimeout
    _config: TrainerConfig
    hello: Hello | None = field(default=None, init=False)
    useful: bool = field(default=False, init=False)
    pids: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.socket = self._gathering.socket
        self._began_s = time.monotonic()
        self._watch: StallWatch | None = None
        self._watch_lock = threading.Lock()
        self._channel = Channel(self.socket)
        self._reader = FrameReader()
        self.dismissed = False
        """Whether the node has stopped these ranks without a fault. Their owner starts torchrun
        again when the node should train again."""

    @property
    def micro_batch(self) -> int:
        """The number of sequences that a rank computes at a time."""
        return self._gathering.micro_batch

    @property
    def error(self) -> TrainerError | None:
        """Why the ranks' connections have ended; None before that."""
        return self._gathering.error

    @property
    def waits_for(self) -> str:
        """How many ranks have not connected yet, as a phrase; empty if all have connected."""
        gathering = self._gathering
        if gathering.complete_s is not None:
            return ""
        missing = gathering.ranks - gathering.here
        return f"for {missing} of {counted(gathering.ranks, 'rank')} to connect at {self._address}"

    def send(self, frame: ToTrainer, meanwhile: Callable[[], None] | None = None) -> None:
        """Send a frame, like `RunningTrainer.send`. Raises TrainerError: a rank is gone."""
        if isinstance(frame, Train | Evaluate):
            self._gathering.allow(frame.block_paths)
        if (watch := self._watching()) is not None:
            watch.sent(frame, time.monotonic())
        try:
            self._channel.send(frame, meanwhile=meanwhile)
        except ChannelClosed as exc:
            raise self._over("rank 0 does not accept frames") from exc

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data`, read from `socket`, completes.

        Raises TrainerError: a rank is gone, or rank 0 sent something that is not a frame.
        """
        if not data:
            raise self._over("rank 0 has disconnected")
        try:
            arrived = self._reader.feed(data)
        except RemoteProtocolError as exc:
            raise self._over(f"rank 0 sent an invalid message: {exc.what}") from exc
        for frame in arrived:
            if (watch := self._watching()) is not None:
                watch.received(frame, time.monotonic())
            if isinstance(frame, Hello):
                self.hello = frame
                self._gathering.micro_batch = frame.micro_batch
        return arrived

    def check(self) -> None:
        """Raise TrainerError if a rank is gone, counts as stuck, or did not connect in time. Call
        this about every second."""
        now, complete_s = time.monotonic(), self._gathering.complete_s
        if self.error is not None:
            raise self.error
        if complete_s is None:
            if self._limit_s is not None and now - self._began_s > self._limit_s:
                raise self._over(
                    f"gave up after waiting {self._limit_s:.0f} s {self.waits_for}", AWAY
                )
            return
        watch = self._watching()
        if watch is not None and (reason := watch.check_overdue(now)):
            raise TrainerStalled(f"the trainer is {reason}")

    def _watching(self) -> StallWatch | None:
        """Return the stall watch, or None until all ranks are connected. The first call after that,
        in any thread, creates the watch."""
        complete_s = self._gathering.complete_s
        with self._watch_lock:
            if self._watch is None and complete_s is not None:
                self._watch = StallWatch(complete_s, self._patience, StepCost.of(self._config))
            return self._watch

    def stop(self, deadline_s: float, *, again: bool = False) -> int:
        """End all ranks. With `again`, cut their connections, so that the ranks exit non-zero and
        torchrun restarts them. Otherwise ask them to stop first, so that torchrun ends, too.

        Return 0 if all ranks stopped when asked, else 1. Later calls change nothing.
        """
        self.dismissed, kindly = not again, False
        if not again and self.error is None and self._gathering.complete_s is not None:
            self._gathering.expect_leaving()
            with suppress(ChannelClosed):
                self._channel.send(Stop(), deadline_s=deadline_s)
                kindly = self._gathering.wait_empty(deadline_s)
        self._gathering.end(TrainerError("the node has ended its trainer"))
        self._gathering.close(CLOSE_LIMIT_S)
        return 0 if kindly else 1

    def _over(self, what: str, code: str = "TRAINER-RANKS") -> TrainerError:
        """End the connections. Return the error that ended them earlier, or a new one: `what`."""
        self._gathering.end(TrainerError(what, code=code))
        assert self._gathering.error is not None
        return self._gathering.error


def open_door(host: str, port: int) -> socket.socket:
    """Return a listening socket for ranks. Raises TrainerError: the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as exc:
        raise TrainerError(
            f"the node cannot listen for ranks at {host}:{port}: {exc.strerror}",
            code="RANKS-LISTEN",
            likely="the address is not this machine's, or another program has the port",
            do="give --ranks-listen an address of this machine and a free port",
        ) from exc


@dataclass(slots=True)
class ExternalTrainers:
    """Waits for `ranks` ranks at `host` and `port`, once per start.

    `theta` and `local` are the bytes of the node's vectors.
    """

    config: TrainerConfig
    theta: memoryview
    local: memoryview
    secret: bytes = field(repr=False)
    host: str
    port: int
    ranks: int
    write_event: WriteEvent
    budget: RestartBudget = field(default_factory=RestartBudget)
    patience: AnswerTimeout = field(default_factory=AnswerTimeout)
    return_limit_s: float = RETURN_LIMIT_S
    on_halving: OnHalving = ignore_halving
    listen: Callable[[str, int], socket.socket] = open_door
    """Returns a listening socket for a host and a port."""
    _were_here: bool = field(default=False, init=False)
    _last: ExternalRanks | None = field(default=None, init=False)

    def use_limits(self, threads: int, gpu_bytes: int) -> None:
        """Use these limits from the next start on; see `TrainerConfig`."""
        self.config = replace(self.config, threads=threads, gpu_bytes=gpu_bytes)

    def start(self) -> ExternalRanks:
        """Listen for ranks. The first frame is Hello, a few seconds after the last rank connects.

        Raises:
            TrainerError: the address cannot be bound, the ranks ended too often, or they did not
                connect in time.
        """
        if self._last is not None:
            self._look_back(self._last)
        door = self.listen(self.host, self.port)
        self.port = door.getsockname()[1]
        gathering = RankGathering(
            door,
            self.secret,
            self.config,
            self.ranks,
            self.theta,
            self.local,
            # A random number never repeats. So ranks do not mistake old entries in torchrun's store
            # for their own, even if torchrun has run for longer than this node's process.
            generation=secrets.randbits(48),
            write_event=self.write_event,
        )
        limit_s = self.return_limit_s if self._were_here else None
        self._last = ExternalRanks(gathering, self.address, limit_s, self.patience, self.config)
        return self._last

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _look_back(self, last: ExternalRanks) -> None:
        """Prepare the next start. If the last ranks ran out of memory, halve the number of
        sequences that a rank computes at a time, if possible. Otherwise count a restart.

        Raises TrainerError: the ranks did not connect in time, or the restart budget is spent.
        """
        if last.error is not None and last.error.code == AWAY:
            raise last.error
        if last.waits_for:
            return
        if last.dismissed:
            self._were_here = False  # There is no limit for the return of the owner.
            return
        self._were_here = True
        smaller = halved(replace(self.config, micro_batch=last.micro_batch), self.ranks)
        if isinstance(last.error, TrainerOutOfMemory) and smaller is not None:
            self.config = smaller
            report_halving(self.on_halving, last.hello, smaller)
        else:
            spend(self.budget, time.monotonic(), useful=last.useful)
