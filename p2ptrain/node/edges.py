"""Our two sides of the ring: connections taken from the peer before us, dialled to the one after.

It opens what one attempt needs, or says who could not be had. It does not close them: when an
attempt fails, a connection that ends too early looks to the neighbour like our fault.
"""

from __future__ import annotations

from collections.abc import Callable
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

    async def have(
        side: dict[int, SecureSocket], stream: int, open_one: Callable[[], SecureSocket]
    ) -> None:
        try:
            side[stream] = await in_thread(open_one, stop=partial(_give_up, parts, request))
        except (PeerError, RemoteProtocolError) as exc:
            faults.append(exc)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for stream in range(request.streams):
            nursery.start_soon(have, edges.previous, stream, partial(_take, parts, request, stream))
            nursery.start_soon(have, edges.next, stream, partial(_dial, parts, request, stream))
    if faults:
        # The first is the cause; the others were only given up because of it.
        suspect = PeerId(faults[0].peer)
        raise ReduceAborted(request.step, request.attempt, (suspect,), faults[0].what)


def _give_up(parts: Parts, request: ReduceRequest) -> None:
    parts.ring_inbox.give_up(run=request.run, step=request.step, attempt=request.attempt)


def _take(parts: Parts, request: ReduceRequest, stream: int) -> SecureSocket:
    key = RingKey(request.run, request.step, request.attempt, stream, request.previous)
    return parts.ring_inbox.take(key, deadline_s=EDGE_S)


def _dial(parts: Parts, request: ReduceRequest, stream: int) -> SecureSocket:
    endpoint = parts.peers.endpoint(request.next)
    if endpoint is None:
        raise PeerUnreachable("it has not said where its data plane listens", peer=request.next)
    key = RingKey(request.run, request.step, request.attempt, stream, parts.me)
    return dial(parts.credentials, endpoint, key.to_hello(), deadline_s=EDGE_S)


def _sorted(side: dict[int, SecureSocket]) -> list[SecureSocket]:
    return [side[stream] for stream in sorted(side)]
