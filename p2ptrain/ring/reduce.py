"""Average one vector with the other members: the ring's threads, from start to join.

It does not decide who takes part, or what follows a failure: the ledger does both. It opens no
connections, and does not close them: a socket that is closed too soon can lose what was sent last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from p2ptrain.dataplane import SecureSocket
from p2ptrain.errors import LocalProtocolError, ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blame, Blamed, Verdict
from p2ptrain.ring.bucket import TokenBucket
from p2ptrain.ring.outbox import Outbox
from p2ptrain.ring.receiver import Receiver
from p2ptrain.ring.request import ReduceReport, ReduceRequest
from p2ptrain.ring.sender import Sender

GRACE_S = 1.0
"""How long an abort may take to go round before all sockets are shut down."""


class Reduce:
    """One attempt at one reduce. `run` it once, in a thread that may block.

    `previous` and `next` hold one connection for each stream, in the order of the streams; in a
    ring of one, none. θ and `local` are read while it runs and never written. `out` receives the
    payload of Σ weight · (θ − local) ÷ Σ weight, the same bytes on every peer; it holds nothing of
    use unless `run` returns.
    """

    def __init__(
        self,
        request: ReduceRequest,
        previous: Sequence[SecureSocket],
        next: Sequence[SecureSocket],
        theta: NDArray[np.float32],
        local: NDArray[np.float32],
        out: bytearray | memoryview | NDArray[np.uint8],
        rate_limit: TokenBucket | None = None,
    ) -> None:
        self._request = request
        self._check_neighbours(previous, next)
        self._sockets = (*previous, *next)
        self._ended = threading.Event()
        self._verdict = Verdict(self._stop)
        plan = request.plan()
        self._bytes_total = plan.bytes_moved
        arithmetic = Arithmetic(request, theta, local, out)
        attempt = Attempt(request, plan, request.tag(), arithmetic, self._verdict, rate_limit)
        self._arithmetic = arithmetic
        self._outboxes = [Outbox(stream.sends) for stream in plan.streams[: len(next)]]
        self._receivers = [
            Receiver(attempt, stream, previous[stream], outbox)
            for stream, outbox in enumerate(self._outboxes)
        ]
        self._senders = [
            Sender(attempt, stream, next[stream], outbox)
            for stream, outbox in enumerate(self._outboxes)
        ]

    def progress(self) -> tuple[int, int]:
        """Bytes sent and received so far, and in all; from any thread."""
        received = sum(thread.payload_bytes for thread in self._receivers)
        sent = sum(thread.payload_bytes for thread in self._senders)
        return received + sent, self._bytes_total

    def abort(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """Make `run` raise soon, here and on the other peers. From any thread; does not block."""
        self._verdict.settle(Blame(suspects, reason))

    def run(self) -> ReduceReport:
        """Block until the payload is complete. All threads have ended when it returns or raises.

        Raises:
            ReduceAborted: a peer is at fault, the deadline has passed, or `abort` was called. All
                connections are shut down.
        """
        begun = time.monotonic()
        cpu_s = self._run_streams() if self._outboxes else self._run_alone()
        blame = self._verdict.blame
        if blame is not None:
            raise ReduceAborted(
                self._request.step, self._request.attempt, blame.suspects, blame.reason
            )
        return self._report(begun, cpu_s)

    def _run_alone(self) -> float:
        begun_s = time.thread_time()
        try:
            self._arithmetic.alone()
        except Blamed as exc:
            self._verdict.settle(exc.blame)
        return time.thread_time() - begun_s

    def _run_streams(self) -> float:
        """Start and join the threads; the CPU seconds that they took."""
        bodies = [thread.run for thread in self._receivers]
        bodies += [thread.run for thread in self._senders]
        with ThreadPoolExecutor(len(bodies), thread_name_prefix="ring") as pool:
            threads = [pool.submit(_cpu_s_of, body) for body in bodies]
            for thread in threads:
                thread.add_done_callback(lambda _: self._look(threads))
            try:
                if not self._ended.wait(self._request.deadline_s):
                    self._verdict.settle(Blame((), "it was not complete by its deadline"))
                if self._verdict.settled:
                    wait(threads, GRACE_S)
            finally:
                if self._verdict.settled or not self._ended.is_set():
                    self._shut_down()
        return sum(thread.result() for thread in threads)

    def _look(self, threads: Sequence[Future[float]]) -> None:
        """Wake `run` when all threads are done, or one has ended by a bug of ours."""
        if all(thread.done() for thread in threads):
            self._ended.set()
        elif any(thread.done() and thread.exception() is not None for thread in threads):
            self._verdict.settle(Blame((), "a thread of the ring failed"))

    def _stop(self) -> None:
        for outbox in self._outboxes:
            outbox.stop()
        self._ended.set()

    def _shut_down(self) -> None:
        for sock in self._sockets:
            sock.shutdown()

    def _report(self, begun: float, cpu_s: float) -> ReduceReport:
        receivers, senders = self._receivers, self._senders
        streams, ended = max(1, len(self._outboxes)), time.monotonic()
        scattered_at = max((thread.scattered_at for thread in receivers), default=ended)
        return ReduceReport(
            seconds=ended - begun,
            scatter_s=scattered_at - begun,
            sending_s=sum(thread.sending_s for thread in senders) / streams,
            receiving_s=sum(thread.waiting_s for thread in receivers) / streams,
            cpu_s=cpu_s,
            sent_bytes=sum(thread.wire_bytes for thread in senders),
            received_bytes=sum(thread.wire_bytes for thread in receivers),
        )

    def _check_neighbours(
        self, previous: Sequence[SecureSocket], next_: Sequence[SecureSocket]
    ) -> None:
        request = self._request
        expected = request.streams if len(request.peers) > 1 else 0
        if len(previous) != expected or len(next_) != expected:
            raise LocalProtocolError(f"a ring needs {expected} connections to each neighbour")
        if any(sock.peer != request.previous for sock in previous) or any(
            sock.peer != request.next for sock in next_
        ):
            raise LocalProtocolError("a connection is not to the neighbour that it is given for")


def _cpu_s_of(body: Callable[[], None]) -> float:
    begun_s = time.thread_time()
    body()
    return time.thread_time() - begun_s
