"""Open our connections in a reduce: one for each neighbour and stream, dialled or accepted.

Of two neighbours, the first one in the roster dials. The second one dials instead if heartbeats say
that only the first can be dialled.

This module opens the connections of one attempt, or reports the neighbour that could not be
connected. It does not close them: if an attempt fails and a connection ends early, the neighbour
would blame us.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product, repeat

import trio

from p2ptrain.dataplane import Dialling, Endpoint, RingKey, SecureSocket, dial
from p2ptrain.errors import PeerError, PeerUnreachable, ReduceAborted, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.endpoint_exchange import introduced
from p2ptrain.node.gossip.reachability import is_dialable, may_be_at
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.threads import in_thread
from p2ptrain.ring import NEIGHBOURS_MAX, SILENCE_S, Links, ReduceRequest

EDGE_S = 0.75 * SILENCE_S
"""Deadline for a connection: 6 s. This is longer than a heartbeat and a gossip hop, so by then a
live neighbour has received the roster. It is shorter than the silence after which neighbours that
are already connected would blame us, because nothing is sent before all connections are open. With
10 s, a participant that did not open one connection could get an honest peer blamed for silence.
"""

DIAL_S = 4.0
"""Deadline for one dial: several times what a busy machine on the other side of the world needs."""

AGAIN_S = 0.3

LATE_S = 0.5
"""Two round trips around the world. A slower connection is written to the journal."""

THREADS_MAX = 128
"""Maximum number of threads that open connections: enough for NEIGHBOURS_MAX neighbours at once."""

Opener = Callable[["Parts", PeerId, RingKey, "Edges"], Awaitable[None]]


@dataclass(slots=True)
class Edges:
    """Open connections by neighbour and stream. The caller that creates an `Edges` must always
    close it.
    """

    open: dict[tuple[PeerId, int], SecureSocket] = field(default_factory=dict)
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS_MAX))

    def links(self, request: ReduceRequest) -> Links:
        """Return the connections of a reduce. All of them must be open."""
        return {
            peer: [self.open[peer, stream] for stream in range(request.streams)]
            for peer in request.neighbours
        }

    def close(self) -> None:
        for connection in self.open.values():
            connection.close()


async def connect(parts: Parts, request: ReduceRequest, edges: Edges) -> Links:
    """Fill `edges` with a connection to each neighbour for each stream, and return them.

    Raises:
        ReduceAborted: a neighbour cannot be connected. It is the suspect.
    """
    me, count = request.peers[request.me], len(request.neighbours)
    if count > NEIGHBOURS_MAX:
        what = f"with the {request.schedule} schedule this node would have {count} neighbours"
        raise ReduceAborted(request.step, request.attempt, (), what)
    openers = {peer: _opener(parts, request, peer) for peer in request.neighbours}
    faults: list[ReduceAborted] = []

    async def have(open_one: Opener, peer: PeerId, stream: int) -> None:
        dialler = me if open_one is _reach else peer
        key = RingKey(request.run, request.step, request.attempt, stream, dialler)
        try:
            await open_one(parts, peer, key, edges)
        except (PeerError, RemoteProtocolError) as exc:
            # Blame the neighbour that we failed to reach. The error may name another peer, but the
            # neighbour's bytes may have determined that name.
            faults.append(ReduceAborted(request.step, request.attempt, (peer,), exc.what))
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for peer, stream in product(request.neighbours, range(request.streams)):
            nursery.start_soon(have, openers[peer], peer, stream)
    if faults:
        raise faults[0]  # This is the cause; the other attempts were cancelled because of it.
    return edges.links(request)


def _opener(parts: Parts, request: ReduceRequest, peer: PeerId) -> Opener:
    """Return the function that dials `peer` or accepts its connection, depending on both peers'
    newest heartbeats.

    Raises:
        ReduceAborted: neither of the two can be dialled. Both notice this immediately and blame the
            same one of them, so that the other can average. The blame alternates with the step,
            since both have work to contribute.
    """
    me, mine = request.peers[request.me], parts.standing.dialable
    first = request.me < request.peers.index(peer)
    if mine != is_dialable(parts, peer):
        first = mine is False
    elif not mine:
        pair = sorted((me, peer))
        other = (peer,) if pair[request.step % 2] == peer else ()
        what = f"neither {me} nor {peer} can be dialled, and they are neighbours"
        raise ReduceAborted(request.step, request.attempt, other, what)
    return _reach if first else _accept


async def _accept(parts: Parts, peer: PeerId, key: RingKey, edges: Edges) -> None:
    def take() -> None:
        # This runs in the thread, so that the connection is not lost if the task is cancelled.
        edges.open[peer, key.stream] = parts.ring_inbox.take(key, deadline_s=EDGE_S)

    give_up = partial(parts.ring_inbox.give_up, run=key.run, step=key.step, attempt=key.attempt)
    with _told_if_late(parts, peer, key) as met:
        met.append("waiting for the peer to dial")
        await in_thread(take, stop=give_up, limiter=edges.threads)


async def _reach(parts: Parts, peer: PeerId, key: RingKey, edges: Edges) -> None:
    """Dial until the neighbour answers. If one of us was restarted, we may not know its new
    endpoint, or it may not know our new certificate: then exchange them. This takes at most EDGE_S
    and one last try; after a longer wait, the reduce would fail before we could name the neighbour.
    """
    ends = parts.now() + EDGE_S
    endpoint = parts.peers.endpoint(peer)
    with _told_if_late(parts, peer, key) as met:
        for wait_s in chain([0.0], repeat(AGAIN_S)):
            dialling = Dialling()
            deadline_s = min(DIAL_S, max(ends - parts.now(), AGAIN_S))
            work = partial(_dial, parts, peer, endpoint, key, edges, dialling, deadline_s)
            try:
                if endpoint is not None and not may_be_at(parts, endpoint):
                    raise PeerUnreachable("its data plane is on a loopback address", peer=peer)
                seconds = await in_thread(work, stop=dialling.give_up, limiter=edges.threads)
                return parts.paths.connected(peer, seconds)
            except (PeerError, RemoteProtocolError) as exc:
                met.append(exc.what)
                if parts.now() + AGAIN_S >= ends:
                    raise
            await trio.sleep(wait_s)
            with trio.move_on_after(max(ends - parts.now(), 0.0)):
                endpoint = await introduced(parts, peer) or parts.peers.endpoint(peer)


@contextmanager
def _told_if_late(parts: Parts, peer: PeerId, key: RingKey) -> Iterator[list[str]]:
    """Write a journal line if the block takes long. The block appends what happened to the list."""
    began, met = parts.now(), list[str]()
    try:
        yield met
    finally:
        if (seconds := parts.now() - began) > LATE_S:
            where = {"step": key.step, "attempt": key.attempt, "stream": key.stream}
            parts.journal.write("edge-late", peer=peer, **where, seconds=seconds, met=met)


def _dial(
    parts: Parts,
    peer: PeerId,
    endpoint: Endpoint | None,
    key: RingKey,
    edges: Edges,
    dialling: Dialling,
    deadline_s: float,
) -> float:
    """Dial, and return how many seconds it took."""
    if endpoint is None:
        raise PeerUnreachable("it has not announced its data plane's address", peer=peer)
    began = time.monotonic()
    connection = dial(
        parts.credentials,
        endpoint,
        key.to_hello(),
        deadline_s=deadline_s,
        encrypted=parts.manifest.encrypted,
        dialling=dialling,
    )
    edges.open[peer, key.stream] = connection
    return time.monotonic() - began
