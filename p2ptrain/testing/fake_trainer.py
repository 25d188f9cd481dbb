"""A trainer without torch: a thread that exchanges frames and does arithmetic that tests can check.

Training on a block subtracts a vector that only this block produces. So θ − local is the sum of the
vectors of the trained blocks. From the bytes of an update, a test can tell whose work on which
blocks the update contains, and that no work is contained twice. As in real training, a part of each
vector is common to all blocks.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import TrainerError, TrainerExited
from p2ptrain.ids import Digest
from p2ptrain.ipc import frames
from p2ptrain.ipc.channel import Channel, ChannelClosed
from p2ptrain.ipc.wire import FrameReader
from p2ptrain.node.state.context import Context
from p2ptrain.sync.eager import Eager
from p2ptrain.sync.mixing import mix

STOP_S = 60.0
"""Seconds to wait for a thread to end. A thread cannot be killed, so the limit allows for a busy
machine."""

LOOK_S = 0.02
"""Seconds after which a held trainer checks again whether it can continue."""

SIZE = 0.01
"""Standard deviation of a block's vector, far above the rounding errors of float32 weights."""


SHARED_SIZE = SIZE / 2
"""Standard deviation of the part that all blocks have in common. It is large enough for the
contributions of honest peers to point in similar directions."""


def trace(block: Digest, numel: int) -> NDArray[np.float32]:
    """Return the vector that training on `block` subtracts."""
    return _noise(int(block[:16], 16), SIZE, numel) + _noise(0, SHARED_SIZE, numel)


def _noise(key: int, size: float, numel: int) -> NDArray[np.float32]:
    random = np.random.Generator(np.random.Philox(key=key))
    return random.standard_normal(numel, dtype=np.float32) * np.float32(size)


def token_of(theta: NDArray[np.float32], vocab: int) -> int:
    """Return the token that the fake model writes last. It depends on every bit of θ."""
    return crc32(theta.tobytes()) % vocab


def block_of(path: str) -> Digest:
    """Return the digest of the chunk that the store keeps at `path`."""
    return Digest(Path(path).parent.name + Path(path).name)


@dataclass(slots=True)
class TrainerRemote:
    """A test's control over the trainers of one node, across all their starts.

    `held` stops a trainer before the next inner step, and `stops_at` before the first inner step of
    that outer step. `stuck` stops it before it reads another frame, as a very long inner step
    would. A trainer is a thread, so these settings take effect at its next turn. `rests` is True
    while the trainer waits although it has a block to train on, and while it is stuck.

    `trained` lists the blocks in the order of training, and `obeyed` the frames. `dies` kills the
    current trainer; `dies_in_mid_lease` kills one that has trained on a block and has another one
    left. `fault`, a Failed frame, makes a trainer send this frame before its next inner step and
    end. `poison` overwrites the first weight that is published. An inner step takes `inner_step_s`;
    it reports 1,000 tokens per second, a wait of `data_wait_s`, and an MFU of `mfu`. `work` is
    called in each inner step, and may use the processor. `limits` are the threads and the bytes of
    GPU memory with which the newest trainer was started.
    """

    trained: list[Digest] = field(default_factory=list)
    obeyed: list[frames.Frame] = field(default_factory=list)
    starts: int = 0
    starts_max: int = 6
    held: bool = False
    stops_at: int | None = None
    stuck: bool = False
    rests: bool = False
    dies: bool = False
    dies_in_mid_lease: bool = False
    fault: frames.Failed | None = None
    poison: float | None = None
    inner_step_s: float = 0.0
    data_wait_s: float = 0.0
    mfu: float | None = None
    work: Callable[[], None] = lambda: None
    limits: tuple[int, int] = (1, 0)

    def waits_before(self, step: int) -> bool:
        """Return whether inner steps of this outer step have to wait."""
        return self.held or (self.stops_at is not None and step >= self.stops_at)

    def dies_now(self, blocks_done: int, *, more: bool) -> bool:
        """Return whether the trainer must die now. If so, reset the settings, so that the next one
        lives."""
        mid_lease = self.dies_in_mid_lease and blocks_done > 0 and more
        if not (self.dies or mid_lease):
            return False
        self.dies = self.dies_in_mid_lease = False
        return True


class TrainerKilled(Exception):
    """The trainer has been killed."""


class FakeTrainer:
    """The node's side; implements `p2ptrain.node.training.trainer_processes.RunningTrainer`."""

    waits_for = ""

    def __init__(self, context: Context, remote: TrainerRemote) -> None:
        self.socket, theirs = socket.socketpair()
        self.pids = (os.getpid(),)
        self.useful = False
        self._channel = Channel(self.socket)
        self._reader = FrameReader()
        self._loop = FakeTrainerLoop(context, remote, theirs)
        self._thread = threading.Thread(target=self._loop.run, name="fake-trainer")
        self._thread.start()

    def send(self, frame: frames.ToTrainer, meanwhile: Callable[[], None] | None = None) -> None:
        try:
            self._channel.send(frame, meanwhile=meanwhile)
        except ChannelClosed as exc:
            raise TrainerExited(-9, "") from exc

    def feed(self, data: bytes) -> list[frames.Frame]:
        if not data:
            raise TrainerExited(-9, "")
        return self._reader.feed(data)

    def check(self) -> None:
        if not self._thread.is_alive():
            raise TrainerExited(-9, "")

    def await_end(self, limit_s: float) -> None:
        """Wait until the trainer has ended by itself."""
        self._thread.join(limit_s)
        assert not self._thread.is_alive()

    def stop(self, deadline_s: float, *, again: bool = False) -> int:
        with suppress(ChannelClosed):
            self._channel.send(frames.Stop(), deadline_s=deadline_s)
        self._loop.stopping = True
        self._thread.join(max(deadline_s, STOP_S))
        assert not self._thread.is_alive()
        self.socket.close()
        return 0


@dataclass
class FakeTrainers:
    """Starts fake trainers, at most `starts_max` of them, as the real supervisor does."""

    context: Context
    remote: TrainerRemote
    make: Callable[[Context, TrainerRemote], FakeTrainer] = FakeTrainer

    def use_limits(self, threads: int, gpu_bytes: int) -> None:
        self.remote.limits = (threads, gpu_bytes)

    def start(self) -> FakeTrainer:
        if self.remote.starts >= self.remote.starts_max:
            raise TrainerError("the trainer was restarted too often", code="TRAINER-RESTARTS")
        self.remote.starts += 1
        return self.make(self.context, self.remote)


class FakeTrainerLoop:
    """The trainer's side, in its thread. The states are those of `trainer.rank.loop`."""

    def __init__(
        self,
        context: Context,
        remote: TrainerRemote,
        sock: socket.socket,
        channel: Channel | None = None,
    ) -> None:
        assert context.trainer.arena is not None
        self.stopping = False
        self._theta, self._local = context.trainer.arena.theta, context.trainer.arena.local
        self._layout = context.layout
        self._block_tokens = context.manifest.data.block_tokens
        self._vocab = context.manifest.model.vocab
        self._remote = remote
        self._socket = sock
        self._pause = threading.Event()
        self._channel = Channel(sock) if channel is None else channel
        self._anchor = np.zeros_like(self._theta)
        self._weights = np.zeros_like(self._theta)
        self._fragments, self._mixing = context.fragments, context.manifest.sync.mixing
        self._delayed = context.manifest.delayed
        self._aside = np.zeros_like(self._theta)
        self._eager = Eager(len(self._theta)) if context.manifest.sync.eager else None
        self._pull = (0.0, 0.0, 0.0)
        self._queue: deque[tuple[int, str]] = deque()
        self._step = 0
        self._trained: list[str] = []
        self._offered = 0
        self._loaded = self._ahead = self._ready = False

    def run(self) -> None:
        try:
            self._send(frames.Hello(0, 1, self._layout.digest, self._layout.numel, "cpu", 1))
            while not self.stopping and self._turn():
                pass
        except (ChannelClosed, TrainerKilled):
            pass
        finally:
            self._socket.close()

    @property
    def busy(self) -> bool:
        """Whether a block is left to train on."""
        return bool(self._queue)

    def _send(self, frame: frames.ToNode) -> None:
        self._channel.send(frame)

    def _turn(self) -> bool:
        """Obey a frame, or do an inner step. Return False after Stop."""
        if self._remote.dies_now(len(self._trained), more=self.busy):
            raise TrainerKilled
        waits = self.busy and self._remote.waits_before(self._step)
        self._remote.rests = waits or self._remote.stuck
        if self._remote.stuck:
            self._pause.wait(LOOK_S)
            return True
        trains = self.busy and not waits
        frame = self._channel.receive(0.0 if trains else LOOK_S)
        if isinstance(frame, frames.Stop):
            return False
        if frame is not None:
            self._remote.obeyed.append(frame)
            self.obey(frame)
        elif trains:
            self.inner_step()
        return True

    def obey(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Load(step):
                self._anchor[:] = self._theta
                self._weights[:] = self._anchor
                self._step, self._trained, self._loaded, self._ready = step, [], True, False
                self._offered = 0
                self._aside[:] = 0
                self._queue.clear()
                if self._eager is not None:
                    self._eager = Eager(len(self._theta))
            case frames.Train(step, paths, first_inner_step, ahead):
                assert self._loaded, "Train before Load"
                self._step, self._ahead, self._ready = step, ahead, False
                if not ahead:
                    self._take_back()
                self._pull = frame.share, frame.outer_lr, frame.outer_momentum
                self._queue.extend(enumerate(paths, first_inner_step))
                self._publish_if_done()
            case frames.Merge(step):
                assert self._offered, "Merge before any work was ready"
                if not self._delayed:
                    for start, stop in self._fragments[self._step % len(self._fragments)].ranges:
                        mix(self._weights[start:stop], self._theta[start:stop], self._mixing)
                        self._anchor[start:stop] = self._theta[start:stop]
                self._aside[:] = 0
                self._move_with_theta()
                del self._trained[: self._offered]
                self._step, self._offered, self._ready = step, 0, False
            case frames.Rebase(step):
                assert self._loaded, "Rebase before Load"
                self._take_back()
                self._move_with_theta()
                self._step = step
                if self._ready:
                    self._publish_if_done()
            case frames.Evaluate(request, paths):
                loss = float(np.abs(self._theta).mean())
                self._send(frames.Evaluated(request, loss, self._block_tokens * len(paths)))

            case frames.Generate(request, prompts, tokens_max):
                last = token_of(self._theta, self._vocab)
                texts = tuple((*(tokens_max - 1) * prompt[-1:], last) for prompt in prompts)
                self._send(frames.Generated(request, texts))

    def _take_back(self) -> None:
        self._weights += self._aside
        self._aside[:] = 0

    def _move_with_theta(self) -> None:
        """Add the change of θ to the weights. Leave unchanged elements alone, because x − a + a is
        not exactly x."""
        moved = self._theta != self._anchor
        self._weights[moved] += self._theta[moved] - self._anchor[moved]
        self._anchor[:] = self._theta

    def inner_step(self) -> None:
        if self._remote.fault is not None:
            fault, self._remote.fault = self._remote.fault, None
            self._send(fault)
            raise TrainerKilled
        self._pause.wait(self._remote.inner_step_s)
        self._remote.work()
        inner_step, path = self._queue.popleft()
        block = block_of(path)
        assert Path(path).exists(), "the node sent the path of a missing block"
        self._weights -= trace(block, len(self._weights))
        self._trained.append(path)
        self._remote.trained.append(block)
        tokens = len(self._trained) * self._block_tokens
        told = (self._remote.data_wait_s, self._remote.mfu, 0.001, 1.5)
        self._send(frames.Progress(self._step, inner_step, 2.0, 1000.0, tokens, *told))
        self._publish_if_done()

    def _publish_if_done(self) -> None:
        if self._queue or self._ahead:
            return
        offered = self._weights.copy()
        if self._eager is not None:
            offered -= self._eager.deviation
        for start, stop in self._fragments[self._step % len(self._fragments)].ranges:
            self._local[start:stop] = offered[start:stop]
        if self._remote.poison is not None:
            self._local[0], self._remote.poison = self._remote.poison, None
        if self._delayed:
            self._aside += offered - self._anchor
            self._weights[:] = self._anchor
            if self._eager is not None:
                self._eager.step(self._anchor - offered, *self._pull)
                self._weights += self._eager.deviation
        self._ready, self._offered = True, len(self._trained)
        tokens = len(self._trained) * self._block_tokens
        self._send(frames.FragmentReady(self._step, tokens, tuple(self._trained), 2.0))
