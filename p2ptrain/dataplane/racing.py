"""Try several addresses of one peer, and use the first that works.

The addresses are tried in order. The next one is tried 300 ms after the previous one, or at once if
that one has failed, and the earlier tries go on (RFC 8305 calls this Happy Eyeballs). Each try runs
in its own thread up to the end of its handshake, because an address may belong to another machine:
192.168.1.5 exists in many homes.

This module does not know what an address or a connection is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from p2ptrain.dataplane.dialling import DialHandle
from p2ptrain.errors import PeerError, PeerTooSlow, PeerUnreachable, RemoteProtocolError
from p2ptrain.ids import PeerId

OVERLAP_S = 0.3
"""Seconds after which the next address is tried too: longer than most round trips, and short
enough that a dead first address does not matter."""

JOIN_S = 2.0
"""Maximum seconds to wait for the threads of the other tries. Their sockets are shut down, so they
end at once."""

Result = TypeVar("Result")

Failure = PeerError | RemoteProtocolError

Try = Callable[[DialHandle], Result]
"""A try connects, registers its socket with the handle, and returns or raises PeerError or
RemoteProtocolError."""


class Race(Generic[Result]):
    """Runs `tries` of connecting to `peer`. `discard` closes a result that is not needed because
    another try was faster."""

    def __init__(
        self,
        peer: PeerId,
        tries: Sequence[Try[Result]],
        discard: Callable[[Result], None],
        dialling: DialHandle,
    ) -> None:
        self._peer = peer
        self._tries = tries
        self._discard = discard
        self._handles = [dialling.branch() for _ in tries]
        self._threads: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[tuple[int, Result | Failure]] = queue.SimpleQueue()

    def run(self, ends: float) -> Result:
        """Return the first result. `ends` is a time of `time.monotonic`.

        Raises:
            PeerError, RemoteProtocolError: no try succeeded before `ends`. If their errors have
                different types, PeerUnreachable is raised.
        """
        failures: list[Failure] = []
        next_s, winner = time.monotonic(), -1
        try:
            while len(failures) < len(self._tries):
                idle = len(failures) == len(self._threads)
                if self._untried and (idle or time.monotonic() >= next_s):
                    next_s = time.monotonic() + OVERLAP_S
                    self._start()
                until = min(next_s, ends) if self._untried else ends
                try:
                    number, found = self._ended.get(timeout=max(until - time.monotonic(), 0.001))
                except queue.Empty:
                    if time.monotonic() >= ends:
                        raise PeerTooSlow("no address answered in time", peer=self._peer) from None
                    continue
                if not isinstance(found, Failure):
                    winner = number
                    return found
                failures.append(found)
        finally:
            self._end_others(winner)
        raise together(self._peer, failures)

    @property
    def _untried(self) -> bool:
        return len(self._threads) < len(self._tries)

    def _start(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(
            target=self._try, args=(number,), name="dataplane-dial", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _try(self, number: int) -> None:
        try:
            self._ended.put((number, self._tries[number](self._handles[number])))
        except (PeerError, RemoteProtocolError) as exc:
            self._ended.put((number, exc))

    def _end_others(self, winner: int) -> None:
        """End all tries except number `winner`, and discard results that came too late."""
        for number, handle in enumerate(self._handles):
            if number != winner:
                handle.give_up()
        until = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        while not self._ended.empty():
            _, found = self._ended.get()
            if not isinstance(found, Failure):
                self._discard(found)


def together(peer: PeerId, failures: Sequence[Failure]) -> Failure:
    """Return one error for all tries. An address of another machine is not the peer's fault, so
    different errors count as unreachable."""
    words = "; ".join(dict.fromkeys(each.what for each in failures))
    kinds = {type(each) for each in failures}
    kind = kinds.pop() if len(kinds) == 1 else PeerUnreachable
    return kind(words, peer=peer)
