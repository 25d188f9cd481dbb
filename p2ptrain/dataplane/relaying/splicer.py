"""Move bytes between pairs of sockets inside the kernel: one thread serves all pairs.

For each direction of a pair there is a pipe. `splice` moves bytes from one socket into the pipe,
and from the pipe into the other socket, and the bytes never enter this process. If the receiver is
slow, its pipe fills up, and the sender's TCP window closes; other pairs are not affected. The end
of a stream is passed on after its last byte, while the other direction continues.

This module does not know peers, and only the kernel sees the bytes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from p2ptrain.dataplane.relaying.pace import Pace

PIPE_BYTES = 1 << 20
"""Size of a pipe. Larger pieces take less CPU time: 0.27 s per GB with this size, 0.4 s with a
quarter of it. If the user has too many pipes already, the kernel leaves them smaller."""
TICK_S = 0.25
IDLE_S = 30.0
"""A pair on which nothing moves is ended after this time. In a reduce, neighbours that are alive
are never silent for more than 8 s."""
CLOSED_WITHIN_S = 5.0
GATHER_S, GATHER_S_MAX = 0.004, 0.032
"""Shortest and longest pause between two rounds while many bytes arrive in small pieces. A pause
makes the next pieces larger; each piece costs 60 µs. It is short compared with a transfer."""
SMALL_BYTES, LARGE_BYTES, MUCH_BYTES = 128 << 10, 512 << 10, 256 << 10
"""There are no pauses if fewer than MUCH_BYTES arrived in TICK_S, or if the mean piece is larger
than LARGE_BYTES. Pauses get longer while the mean piece is smaller than SMALL_BYTES."""
_FLAGS = getattr(os, "SPLICE_F_MOVE", 0) | getattr(os, "SPLICE_F_NONBLOCK", 0)


def can_splice() -> bool:
    """Return whether this system has `splice` and `epoll`: Linux does."""
    return hasattr(os, "splice") and hasattr(select, "epoll")


class Spliced(Protocol):
    """A non-blocking socket that the splicer uses until the pair has ended."""

    def fileno(self) -> int: ...

    def finish_sending(self) -> None: ...

    def shutdown(self) -> None: ...


CountBytes = Callable[[int, int], bool]
"""`count(side, number)` counts bytes that came from `side` (0 or 1) and were passed on. It returns
whether the pair may continue."""


@dataclass(slots=True, eq=False)
class _Flow:
    """One direction of a pair. `held` is the number of bytes in its pipe."""

    side: int
    source: int
    sink: int
    read_end: int
    write_end: int
    held: int = 0
    is_full: bool = False
    """The pipe accepts no more. It has places for pieces, so it can also be full with few bytes."""
    is_blocked: bool = False
    """The sink did not accept more."""
    has_ended: bool = False
    is_closed: bool = False


@dataclass(slots=True, eq=False)
class SplicedPair:
    """Two sockets whose bytes are passed on. `reason` says why the pair ended. The sockets may be
    closed once `ended` is set."""

    sockets: tuple[Spliced, Spliced]
    count: CountBytes
    reason: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    moved_at: float = 0.0
    flows: tuple[_Flow, ...] = ()
    masks: dict[int, int] = field(default_factory=dict)
    """The events for which each descriptor is registered."""


class Splicer:
    """Splices pairs while its `with` block lasts. `pace` limits the rate of all pairs together."""

    def __init__(self, pace: Pace | None = None, *, idle_s: float = IDLE_S) -> None:
        self._pace = pace
        self._idle_s = idle_s
        self._credit = 0
        self._pieces = self._piece_bytes = 0
        """The pieces that have arrived since the last tick, and their bytes."""
        self._poll = select.epoll()
        self._wake, self._woken = os.pipe()[::-1]
        os.set_blocking(self._wake, False)
        self._poll.register(self._woken, select.EPOLLIN)
        self._orders: deque[Callable[[], None]] = deque()
        self._pairs: dict[int, tuple[SplicedPair, int]] = {}
        """For each descriptor, its pair and its side."""
        self._starved: dict[_Flow, SplicedPair] = {}
        """The flows that wait for `pace`, the longest waiting first."""
        self._lock = threading.Lock()
        self._closing = self._has_stopped = False
        self._thread = threading.Thread(target=self._run, name="relay-splice", daemon=True)

    def __enter__(self) -> Splicer:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """End all pairs, and the thread."""
        with self._lock:
            self._closing = True
        self._wake_up()
        self._thread.join(CLOSED_WITHIN_S)

    def join(self, left: Spliced, right: Spliced, count: CountBytes) -> SplicedPair:
        """Pass bytes on between the two sockets until both have ended, or `end` is called. Any
        thread may call this. Raises OSError if the system has no more pipes."""
        pair = SplicedPair((left, right), count)
        pair.flows = _flows(left.fileno(), right.fileno())
        with self._lock:
            if self._closing:
                _close_pipes(pair)
                pair.reason = "this node is stopping"
                pair.ended.set()
                return pair
            self._orders.append(lambda: self._begin(pair))
        self._wake_up()
        return pair

    def end(self, pair: SplicedPair, reason: str) -> None:
        """End a pair soon; `pair.ended` tells when. Any thread may call this."""
        self._order(lambda: self._end(pair, reason))

    def _wake_up(self) -> None:
        self._order(lambda: None)

    def _order(self, order: Callable[[], None]) -> None:
        with self._lock:
            if self._has_stopped:
                return
            self._orders.append(order)
            with suppress(BlockingIOError):  # The thread has many other reasons to wake up.
                os.write(self._wake, b"x")

    def _run(self) -> None:
        try:
            next_look = time.monotonic()
            wait_s = pause_s = 0.0
            while not self._closing:
                events = self._poll.poll(min(wait_s, TICK_S) if self._starved else TICK_S)
                now = time.monotonic()
                for descriptor, happened in events:
                    self._handle(descriptor, happened, now)
                self._obey()
                wait_s = self._feed(now)
                if now >= next_look:
                    next_look = now + TICK_S
                    self._end_idle(now)
                    pause_s = self._pause_s(pause_s)
                if pause_s:
                    time.sleep(pause_s)
        finally:
            with self._lock:
                self._closing = True
            self._obey()
            for pair in self._all():
                self._end(pair, "this node is stopping")
            with self._lock:
                self._has_stopped = True
            self._poll.close()
            for each in (self._wake, self._woken):
                os.close(each)

    def _pause_s(self, before_s: float) -> float:
        """Return how long to pause between the rounds of the next tick, after pauses of
        `before_s`."""
        pieces, piece_bytes = self._pieces, self._piece_bytes
        self._pieces = self._piece_bytes = 0
        if piece_bytes < MUCH_BYTES or piece_bytes > LARGE_BYTES * pieces:
            return 0.0
        if piece_bytes < SMALL_BYTES * pieces:
            return min(max(2 * before_s, GATHER_S), GATHER_S_MAX)
        return before_s

    def _obey(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _all(self) -> list[SplicedPair]:
        return list({id(pair): pair for pair, _ in self._pairs.values()}.values())

    def _begin(self, pair: SplicedPair) -> None:
        pair.moved_at = time.monotonic()
        for side, sock in enumerate(pair.sockets):
            self._pairs[sock.fileno()] = pair, side
            pair.masks[sock.fileno()] = 0
        self._await_events(pair)

    def _handle(self, descriptor: int, happened: int, now: float) -> None:
        if descriptor == self._woken:
            os.read(self._woken, 4096)
            return
        pair, side = self._pairs.get(descriptor, (None, 0))
        if pair is None:
            return  # It ended during this round.
        from_here, to_here = pair.flows[side], pair.flows[1 - side]
        try:
            if happened & ~select.EPOLLIN:
                self._push(pair, to_here, now)
            if happened & ~select.EPOLLOUT and not (from_here.has_ended or from_here.is_full):
                self._pull(pair, from_here, now)
        except OSError as exc:
            self._end(pair, pair.reason or f"a connection broke: {exc.strerror or exc}")
            return
        self._go_on(pair)

    def _go_on(self, pair: SplicedPair) -> None:
        """Pass on the ends of streams, and wait for the pair's next events."""
        for flow in pair.flows:
            if flow.has_ended and not flow.held and not flow.is_closed:
                flow.is_closed = True
                pair.sockets[1 - flow.side].finish_sending()
        if all(flow.is_closed for flow in pair.flows):
            self._end(pair, "")
        else:
            self._await_events(pair)

    def _pull(self, pair: SplicedPair, flow: _Flow, now: float) -> None:
        """Move bytes from the source into the pipe, and on into the sink. Raises OSError."""
        try:
            most = PIPE_BYTES - flow.held
            count = os.splice(flow.source, flow.write_end, most, flags=_FLAGS)
        except BlockingIOError:
            # Either the source has nothing, or the pipe has no place: then wait for the sink.
            flow.is_full = flow.held > 0
            return
        if count == 0:
            flow.has_ended = True
            return
        self._pieces += 1
        self._piece_bytes += count
        flow.held += count
        flow.is_full = flow.held >= PIPE_BYTES
        pair.moved_at = now
        if not flow.is_blocked:
            self._push(pair, flow, now)

    def _push(self, pair: SplicedPair, flow: _Flow, now: float) -> None:
        """Move bytes from the pipe into the sink. Raises OSError."""
        count = flow.held
        limited = self._pace is not None and self._pace.limited
        if limited and count > self._credit:
            self._starved.setdefault(flow, pair)
            count = self._credit
        if not count:
            flow.is_blocked = False
            return
        try:
            sent = os.splice(flow.read_end, flow.sink, count, flags=_FLAGS)
        except BlockingIOError:
            sent = 0
        flow.is_blocked = sent < count
        if flow.is_blocked:
            self._starved.pop(flow, None)  # It waits for the sink, and does not need bytes now.
        if not sent:
            return
        flow.held -= sent
        flow.is_full = False
        pair.moved_at = now
        if limited:
            self._credit -= sent
        elif self._pace is not None:
            self._pace.note_sent(sent)
        if not pair.count(flow.side, sent):
            pair.reason = "this relay has used up its bytes of today"
            raise OSError(errno.EDQUOT, pair.reason)

    def _feed(self, now: float) -> float:
        """Let starved flows send as much as `pace` grants, in turn. Return the seconds until it
        grants more."""
        if self._pace is None or not self._starved:
            return TICK_S
        wait_s = 0.0
        if not self._credit:
            self._credit, wait_s = self._pace.grant()
        for flow in list(self._starved):
            if not self._credit:
                break
            pair = self._starved.pop(flow, None)
            if pair is None:
                continue
            try:
                self._push(pair, flow, now)
            except OSError as exc:
                self._end(pair, pair.reason or f"a connection broke: {exc.strerror or exc}")
            else:
                self._go_on(pair)
        return wait_s

    def _await_events(self, pair: SplicedPair) -> None:
        """Register each descriptor for the events that the pair can use now. A descriptor without
        such events is not registered at all, because epoll always reports a connection that has
        broken, and this thread would not rest."""
        for side, descriptor in enumerate((pair.flows[0].source, pair.flows[1].source)):
            from_here, to_here = pair.flows[side], pair.flows[1 - side]
            reads = not (from_here.has_ended or from_here.is_full or from_here in self._starved)
            wanted = select.EPOLLIN * reads | select.EPOLLOUT * to_here.is_blocked
            known = pair.masks[descriptor]
            if wanted == known:
                continue
            if not wanted:
                self._poll.unregister(descriptor)
            elif known:
                self._poll.modify(descriptor, wanted)
            else:
                self._poll.register(descriptor, wanted)
            pair.masks[descriptor] = wanted

    def _end_idle(self, now: float) -> None:
        for pair in self._all():
            if now >= pair.moved_at + self._idle_s:
                self._end(pair, f"nothing moved for {self._idle_s:g} s")

    def _end(self, pair: SplicedPair, reason: str) -> None:
        if pair.ended.is_set():
            return
        for descriptor, mask in pair.masks.items():
            if mask:
                self._poll.unregister(descriptor)
            del self._pairs[descriptor]
        for flow in pair.flows:
            self._starved.pop(flow, None)
        for sock in pair.sockets:
            sock.shutdown()
        _close_pipes(pair)
        pair.reason = reason
        pair.ended.set()


def _flows(left: int, right: int) -> tuple[_Flow, _Flow]:
    made: list[_Flow] = []
    try:
        for side, (source, sink) in enumerate(((left, right), (right, left))):
            read_end, write_end = os.pipe()
            made.append(_Flow(side, source, sink, read_end, write_end))
            with suppress(OSError):  # The user has many large pipes: this one remains smaller.
                fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        for flow in made:
            os.close(flow.read_end)
            os.close(flow.write_end)
        raise
    return made[0], made[1]


def _close_pipes(pair: SplicedPair) -> None:
    for flow in pair.flows:
        os.close(flow.read_end)
        os.close(flow.write_end)
