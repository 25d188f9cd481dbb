"""Our two sides of the ring: connections taken from the peer before us, dialled to the one after.

It opens what one attempt needs, or says who could not be had. It does not close them: when an
attempt fails, a connection that ends too early looks to the neighbour like our fault.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from p2ptrain.dataplane import RingKey, SecureSocket, dial
from p2ptrain.errors import PeerError, PeerUnreachable, ReduceAborted, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.parts import Parts
from p2ptrain.node.threads import in_thread
from p2ptrain.ring import ReduceRequest

EDGE_S = 10.0
"""Longer than a heartbeat and a gossip hop: by then a live neighbour has heard of the roster."""

DIAL_S = 5.0
"""One try. A thread that dials cannot be called back, and the attempt may lose its point."""

AGAIN_S = 0.3


Opener = Callable[["Parts", ReduceRequest, int, "Edges"], Awaitable[None]]


@dataclass(slots=True)
class Edges:
    """Connections by stream, as they come. Whoever makes one closes it, whatever happened."""

    previous: dict[int, SecureSocket] = field(default_factory=dict)
    next: dict[int, SecureSocket] = field(default_factory=dict)

    def in_order(self) -> tuple[list[SecureSocket], list[SecureSocket]]:
        """Both sides, each sorted by stream."""
        return _sorted(self.previous), _sorted(self.next)

    def close(self) -> None:
        for connection in (*self.previous.values(), *self.next.values()):
            connection.close()


async def connect(parts: Parts, request: ReduceRequest, edges: Edges) -> None:
    """Fill `edges` with a connection to each neighbour for each stream.

    Raises:
        ReduceAborted: a neighbour cannot be had; it is the suspect.
    """
    if len(request.peers) == 1:
        return
    faults: list[PeerError | RemoteProtocolError] = []

    async def have(open_one: Opener, stream: int) -> None:
        try:
            await open_one(parts, request, stream, edges)
        except (PeerError, RemoteProtocolError) as exc:
            faults.append(exc)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for stream in range(request.streams):
            nursery.start_soon(have, _accept, stream)
            nursery.start_soon(have, _reach, stream)
    if faults:
        # The first is the cause; the others were only given up because of it.
        suspect = PeerId(faults[0].peer)
        raise ReduceAborted(request.step, request.attempt, (suspect,), faults[0].what)


async def _accept(parts: Parts, request: ReduceRequest, stream: int, edges: Edges) -> None:
    key = RingKey(request.run, request.step, request.attempt, stream, request.previous)

    def take() -> None:
        # In the thread, so that no connection is lost if the task is cancelled meanwhile.
        edges.previous[stream] = parts.ring_inbox.take(key, deadline_s=EDGE_S)

    give_up = partial(
        parts.ring_inbox.give_up, run=request.run, step=request.step, attempt=request.attempt
    )
    await in_thread(take, stop=give_up)


async def _reach(parts: Parts, request: ReduceRequest, stream: int, edges: Edges) -> None:
    """Dial until somebody answers: the neighbour may have been restarted, and we have yet to hear
    where its data plane is now; or it has yet to hear our new certificate."""
    ends = parts.now() + EDGE_S
    while True:
        try:
            return await in_thread(
                partial(_dial, parts, request, stream, edges), stop=_dials_to_its_end
            )
        except (PeerError, RemoteProtocolError):
            if parts.now() + AGAIN_S >= ends:
                raise
        await trio.sleep(AGAIN_S)


def _dial(parts: Parts, request: ReduceRequest, stream: int, edges: Edges) -> None:
    endpoint = parts.peers.endpoint(request.next)
    if endpoint is None:
        raise PeerUnreachable("it has not said where its data plane listens", peer=request.next)
    key = RingKey(request.run, request.step, request.attempt, stream, parts.me)
    edges.next[stream] = dial(parts.credentials, endpoint, key.to_hello(), deadline_s=DIAL_S)


def _dials_to_its_end() -> None:
    """There is nothing to close yet."""


def _sorted(side: dict[int, SecureSocket]) -> list[SecureSocket]:
    return [side[stream] for stream in sorted(side)]
