"""Open connections to one peer in several ways at once, and use the first that works.

A *way* opens the connections that are still missing, for instance by dialling or by hole punching.
The ways are tried in order. The next one starts 300 ms after the previous one, or at once if that
one has failed, and the earlier ones go on (as in `dataplane/racing` for the addresses of a peer).

The two ends must use the same connection. So each connection is *claimed* just before its hello is
sent, and only one way at a time may claim it. This module does not know any way.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import trio

from p2ptrain.dataplane import DialHandle, PeerSocket, SecureSocket, ShutDownHere
from p2ptrain.dataplane.racing import OVERLAP_S, together
from p2ptrain.errors import PeerError, PeerTooSlow, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.state.punching import Hello
from p2ptrain.node.state.threads import in_thread

THREADS = trio.CapacityLimiter(128)
"""Threads that open connections, for everything but reduces: two fetches with 64 sources each."""


class Claims(Protocol):
    """Decides whether a connection may still be used. Thread-safe."""

    def claim(self, number: int) -> bool: ...

    def release(self, number: int) -> None: ...


class NoClaims:
    """For connections that the peer cannot open itself."""

    def claim(self, number: int) -> bool:
        return True

    def release(self, number: int) -> None:
        pass


class Opening:
    """The connections with `peer` that are being opened, by number, with the hello of each.

    `about` says to the peer what they are for. They have to be open at `ends` (by `Context.now`).
    `keep(number, connection)` takes each connection; it is called in a thread. All methods except
    `settle` are thread-safe, and the events are not.
    """

    def __init__(
        self,
        peer: PeerId,
        about: str,
        hellos: Mapping[int, Hello],
        ends: float,
        keep: Callable[[int, SecureSocket], None],
        claims: Claims | None = None,
        limiter: trio.CapacityLimiter = THREADS,
    ) -> None:
        self.peer = peer
        self.about = about
        self.hellos = hellos
        self.ends = ends
        self.limiter = limiter
        self.complete = trio.Event()
        self.calling = trio.Event()
        """Set when both ends begin to call each other through their NATs."""
        self.met: list[str] = []
        """Why single tries failed, for the journal."""
        self._keep = keep
        self._claims = claims or NoClaims()
        self._lock = threading.Lock()
        self._holders: dict[int, object] = {}
        """The way's try that has claimed each connection."""
        self._open: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """The numbers of the connections that are not open yet."""
        with self._lock:
            return [number for number in self.hellos if number not in self._open]

    def claim(self, number: int, holder: object) -> bool:
        """Return whether `holder` may open this connection. It may claim it several times."""
        with self._lock:
            if number in self._open:
                return False
            if number not in self._holders and self._claims.claim(number):
                self._holders[number] = holder
            return self._holders.get(number) is holder

    def release(self, number: int, holder: object) -> None:
        """Withdraw the claim of `holder`, if it has one, because its connection failed."""
        with self._lock:
            if self._holders.get(number) is holder and number not in self._open:
                del self._holders[number]
                self._claims.release(number)

    def deliver(self, number: int, connection: SecureSocket) -> None:
        """Hand over an open connection. It is closed if another one is open already."""
        with self._lock:
            is_first = number not in self._open
            self._open.add(number)
        if is_first:
            self._keep(number, connection)
        else:
            connection.close()

    def settle(self) -> None:
        """Set `complete` if all connections are open. Call this after `deliver`."""
        if not self.missing:
            self.complete.set()


Once = Callable[[int, DialHandle], PeerSocket]
"""`once(number, handle)` opens one connection. It blocks."""

Way = Callable[[Opening], Awaitable[None]]
"""A way opens the connections that are missing, and delivers each of them. It ends when it has
nothing more to try.

Raises PeerError or RemoteProtocolError: this way does not lead to the peer."""


async def open_all(
    opening: Opening, ways: Sequence[Way], *, left_s: float, overlap_s: float = OVERLAP_S
) -> None:
    """Try the ways until all connections are open, for at most `left_s` seconds.

    Raises:
        PeerError, RemoteProtocolError: all ways have failed, or the time is up. If the errors of
            the ways have different types, PeerUnreachable is raised.
    """
    failures: list[PeerError | RemoteProtocolError] = []

    async def walk(way: Way, over: trio.Event) -> None:
        try:
            await way(opening)
        except (PeerError, RemoteProtocolError) as exc:
            failures.append(exc)
            opening.met.append(exc.what)
        opening.settle()
        over.set()

    async def walk_all(walkers: trio.Nursery) -> None:
        for way in ways:
            if opening.complete.is_set():
                return
            over = trio.Event()
            walkers.start_soon(walk, way, over)
            with trio.move_on_after(overlap_s):
                await over.wait()

    async def until_all_fail() -> None:
        async with trio.open_nursery() as walkers:
            await walk_all(walkers)
        nursery.cancel_scope.cancel()

    with trio.move_on_after(max(left_s, 0.0)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_all_fail)
            await opening.complete.wait()
            nursery.cancel_scope.cancel()
    opening.settle()  # A thread may have delivered the last connection after the cancellation.
    if not opening.complete.is_set():
        late = PeerTooSlow("it did not connect in time", peer=opening.peer)
        raise together(opening.peer, failures or [late])


async def open_each(opening: Opening, numbers: Sequence[int], once: Once) -> None:
    """Open these connections at the same time, each in a thread. Raises the first error, after all
    of them have ended."""
    faults: list[PeerError | RemoteProtocolError] = []

    async def one(number: int) -> None:
        handle = DialHandle()

        def work() -> None:
            try:
                connection = once(number, handle)
                if not handle.release():  # The connection is in use from now on.
                    connection.close()
                    raise ShutDownHere("this node gave up dialling", peer=opening.peer)
            except BaseException:
                opening.release(number, handle)
                raise
            # This runs in the thread, so that the connection is not lost if the task is cancelled.
            opening.deliver(number, connection)

        try:
            await in_thread(work, stop=handle.give_up, limiter=opening.limiter)
        except (PeerError, RemoteProtocolError) as exc:
            faults.append(exc)
        opening.settle()

    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(one, number)
    if faults:
        raise faults[0]


def claim_or_end(opening: Opening, number: int, handle: DialHandle) -> bool:
    """Return whether the connection may still be used. If not, end the way's further tries."""
    may = opening.claim(number, handle)
    if not may:
        handle.give_up()
    return may
