"""Average one vector with the other members: start the threads of a reduce, and wait for them.

The ledger decides who takes part and what follows a failure. This module does not open connections,
and it shuts them down only when a reduce fails. Their owner closes them: closing a socket too early
can lose the last bytes sent.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from p2ptrain.dataplane import SecureSocket, SendPriority, Uplink
from p2ptrain.errors import LocalProtocolError, ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.attempt import GRACE_S, Attempt
from p2ptrain.ring.blame import Blame, Blamed, SharedVerdict
from p2ptrain.ring.hop_signatures import SignedRun, Signing
from p2ptrain.ring.lane import Lane
from p2ptrain.ring.request import ReduceRequest, ReduceStatistics, Traffic
from p2ptrain.ring.source import Source

Links = Mapping[PeerId, Sequence[SecureSocket]]
"""For each neighbour, one connection per stream, in the order of the streams."""


class Reduce:
    """One attempt at one reduce. Call `run` once, in a thread that may block.

    `links` are the connections to `request.neighbours`; either end may have dialled. `source` is
    what this peer contributes: a `Difference` or a `Contribution`. It is read during the reduce but
    never written. `out` receives the payload of Σ weight · contribution ÷ Σ weight, the same bytes
    on every peer. Its content is undefined unless `run` returns. Simultaneous reduces get equal
    shares of a rate-limited `uplink`.

    With error feedback of a `Difference`, `residual` holds this peer's rounding errors of committed
    reduces, which are added to the contribution. `residual_out` receives the rounding errors of
    this reduce, and replaces `residual` when the result is committed. Both are scaled like the sum:
    the mean times the number of peers. A `Contribution` already includes its residual, so it has no
    `residual` here, but may have a `residual_out`.

    If `signing` is given, peers sign their sums and means (see `hop_signatures`). Then `signed`
    returns what was signed, once `run` has returned.

    After a failure, the other peers have `grace_s` to learn of the failure and to name suspects.
    """

    def __init__(
        self,
        request: ReduceRequest,
        links: Links,
        source: Source,
        out: bytearray | memoryview | NDArray[np.uint8],
        uplink: Uplink | None = None,
        *,
        residual: NDArray[np.float32] | None = None,
        residual_out: NDArray[np.float32] | None = None,
        grace_s: float = GRACE_S,
        signing: Signing | None = None,
    ) -> None:
        self._request = request
        self._links = links
        self._ended = threading.Event()
        self._verdict = SharedVerdict(self._stop)
        self._waker: socket.socket | None = None
        plan = request.plan()
        self._bytes_total = plan.bytes_moved
        arithmetic = Arithmetic(request, source, out, residual, residual_out)
        share = None if uplink is None else uplink.share(SendPriority.RING)
        self._attempt = Attempt(
            request, plan, request.tag(), arithmetic, self._verdict, share, grace_s, signing
        )
        if request.signed != (signing is not None):
            raise LocalProtocolError("the request must say whether sums are signed")
        self._check_links()
        self._lanes: list[Lane] = []
        if len(request.peers) > 1:
            self._lanes = [self._lane(number) for number in range(request.lanes)]

    def progress(self) -> tuple[int, int]:
        """Return the bytes sent and received so far, and the total of the whole reduce. Call from
        any thread.
        """
        return sum(lane.payload_bytes for lane in self._lanes), self._bytes_total

    def traffic(self) -> tuple[Traffic, ...]:
        """Return the traffic with each neighbour so far. Call from any thread."""
        return _by_peer([each for lane in self._lanes for each in lane.traffic()])

    def signed(self) -> tuple[SignedRun, ...]:
        """Return what this peer and others have signed, after `run` has returned."""
        return tuple(each for lane in self._lanes for each in lane.kept)

    def abort(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """Make `run` raise soon, here and on other peers. Call from any thread. Does not block."""
        self._verdict.settle(Blame(suspects, reason))

    def run(self) -> ReduceStatistics:
        """Block until the payload is complete. All threads have ended when it returns or raises.

        Raises:
            ReduceAborted: a peer is at fault, the deadline has passed, or `abort` was called. All
                connections are shut down.
        """
        begun = time.monotonic()
        cpu_s = self._run_lanes() if self._lanes else self._run_alone()
        blame = self._verdict.blame
        if blame is not None:
            request = self._request
            suspects = blame.reported_by(request.peers[request.me])
            where = (request.step, request.attempt)
            raise ReduceAborted(*where, suspects, blame.reason, heard=blame.heard)
        return self._report(begun, cpu_s)

    def _lane(self, number: int) -> Lane:
        numbers = {peer: at for at, peer in enumerate(self._request.peers)}
        streams = range(number, self._request.streams, self._request.lanes)
        sockets = {
            numbers[peer]: {stream: sockets[stream] for stream in streams}
            for peer, sockets in self._links.items()
        }
        return Lane(self._attempt, number, sockets)

    def _run_alone(self) -> float:
        begun_s = time.thread_time()
        try:
            self._attempt.arithmetic.alone()
        except Blamed as exc:
            self._verdict.settle(exc.blame)
        return time.thread_time() - begun_s

    def _run_lanes(self) -> float:
        """Start and join the threads; return the CPU seconds that they took."""
        woken, self._waker = socket.socketpair()
        with (
            woken,
            self._waker,
            ThreadPoolExecutor(len(self._lanes), thread_name_prefix="ring") as pool,
        ):
            threads = [pool.submit(_cpu_s_of, lane.run, woken.fileno()) for lane in self._lanes]
            for thread in threads:
                thread.add_done_callback(lambda _: self._look(threads))
            try:
                if not self._ended.wait(self._request.deadline_s):
                    self._run_over()
                if self._verdict.settled:
                    wait(threads, 2 * self._attempt.grace_s)
            finally:
                if self._attempt.share is not None:
                    self._attempt.share.close()
                if self._verdict.settled or not self._ended.is_set():
                    for each in (each for sockets in self._links.values() for each in sockets):
                        each.shutdown()
            return sum(thread.result() for thread in threads)

    def _run_over(self) -> None:
        """Handle a missed deadline. If we do not have a suspect, give other peers a moment to name
        one.
        """
        blame = self._late()
        if blame.suspects or not self._ended.wait(self._attempt.grace_s):
            self._verdict.settle(blame)

    def _late(self) -> Blame:
        """Return a Blame of the peers at the ends of the lanes' chains of waits (see `wait_for`).
        It names nobody if one of these peers is unknown or a lane could still send.
        """
        awaited = {lane.watch.late for lane in self._lanes if not lane.finished}
        late = tuple(number for number in awaited if number is not None)
        if not late or None in awaited:
            return Blame((), "it was not complete at its deadline")
        what = "other peers were still waiting for their data at the deadline"
        return self._attempt.blame_all(late, what)

    def _look(self, threads: Sequence[Future[float]]) -> None:
        """Wake `run` when all threads are done, or when one has failed because of a bug."""
        if all(thread.done() for thread in threads):
            self._ended.set()
        elif any(thread.done() and thread.exception() is not None for thread in threads):
            self._verdict.settle(Blame((), "a thread of the exchange failed"))

    def _stop(self) -> None:
        self._ended.set()
        if self._waker is not None:
            with suppress(OSError):  # the lanes have already ended
                self._waker.send(b"x")

    def _report(self, begun: float, cpu_s: float) -> ReduceStatistics:
        lanes, count, ended = self._lanes, max(1, len(self._lanes)), time.monotonic()
        scattered_at = max((lane.scattered_at or ended for lane in lanes), default=ended)
        arithmetic_s = sum(lane.arithmetic_s for lane in lanes) / count
        waiting_s = sum(lane.waiting_s for lane in lanes) / count
        return ReduceStatistics(
            seconds=ended - begun,
            scatter_s=scattered_at - begun,
            arithmetic_s=arithmetic_s if lanes else cpu_s,
            moving_s=max(0.0, ended - begun - arithmetic_s - waiting_s) if lanes else 0.0,
            waiting_s=waiting_s,
            cpu_s=cpu_s,
            traffic=self.traffic(),
        )

    def _check_links(self) -> None:
        request, neighbours = self._request, set(self._request.neighbours)
        if set(self._links) != neighbours:
            raise LocalProtocolError("the connections do not match this node's neighbours")
        for peer, sockets in self._links.items():
            if len(sockets) != request.streams:
                raise LocalProtocolError(f"a neighbour must have {request.streams} connections")
            if any(each.peer != peer for each in sockets):
                raise LocalProtocolError("a connection is assigned to the wrong neighbour")


def _by_peer(traffic: Sequence[Traffic]) -> tuple[Traffic, ...]:
    """Add up the traffic of all lanes by neighbour. `sending_s` is the longest of the lanes'
    times.
    """
    total: dict[PeerId, Traffic] = {}
    for each in traffic:
        known = total.get(each.peer, Traffic(each.peer, 0, 0, 0.0))
        total[each.peer] = Traffic(
            each.peer,
            known.sent_bytes + each.sent_bytes,
            known.received_bytes + each.received_bytes,
            max(known.sending_s, each.sending_s),
        )
    return tuple(total.values())


def _cpu_s_of(body: Callable[[int], None], wake_fd: int) -> float:
    begun_s = time.thread_time()
    body(wake_fd)
    return time.thread_time() - begun_s
