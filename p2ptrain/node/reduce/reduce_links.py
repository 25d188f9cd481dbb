"""Open this node's connections for one attempt of a reduce: one for each neighbour and stream.

Of two neighbours, the one that comes first in the roster dials. The second one dials instead if
heartbeats say that only the first can be dialled.

If a neighbour cannot be reached, this module reports it. It does not close the other connections:
the caller keeps them open for a while, since a neighbour whose connection ends would blame us.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product, repeat

import trio

from p2ptrain.dataplane import DialHandle, Endpoint, RingKey, SecureSocket, dial
from p2ptrain.errors import PeerError, PeerUnreachable, ReduceAborted, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.endpoint_exchange import introduced
from p2ptrain.node.gossip.reachability import is_dialable
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread
from p2ptrain.ring import NEIGHBOURS_MAX, Links, ReduceRequest

AGAIN_S = 0.3

LATE_S = 0.5
"""If opening a connection takes more than this many seconds (two round trips around the world), the
journal records it."""

THREADS_MAX = 128
"""Maximum number of threads that open connections: enough for NEIGHBOURS_MAX neighbours at once."""


@dataclass(slots=True)
class ReduceLinks:
    """Open connections by neighbour and stream. The creator must always call `close`."""

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


async def connect(context: Context, request: ReduceRequest, edges: ReduceLinks) -> Links:
    """Fill `edges` with a connection to each neighbour for each stream, and return them.
    Raises ReduceAborted: this node has too many neighbours, or it cannot connect to one of them. In
    the second case, the suspect is that neighbour or, as in `dials`, nobody."""
    me, count = request.peers[request.me], len(request.neighbours)
    if count > NEIGHBOURS_MAX:
        what = f"with the {request.schedule} schedule this node would have {count} neighbours"
        raise ReduceAborted(request.step, request.attempt, (), what)
    dialled = {peer: dials(context, request, peer) for peer in request.neighbours}
    faults: list[ReduceAborted] = []

    async def ensure_open(peer: PeerId, stream: int) -> None:
        open_one, dialler = (reach, me) if dialled[peer] else (_accept, peer)
        key = RingKey(request.run, request.step, request.attempt, stream, dialler)
        try:
            await open_one(context, peer, key, edges)
        except (PeerError, RemoteProtocolError) as exc:
            # Blame the neighbour that we failed to reach, even if the error names another peer: the
            # neighbour may have chosen that name.
            faults.append(ReduceAborted(request.step, request.attempt, (peer,), exc.what))
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for peer, stream in product(request.neighbours, range(request.streams)):
            nursery.start_soon(ensure_open, peer, stream)
    if faults:
        raise faults[0]  # The first fault is the cause: it cancelled the other connections.
    return edges.links(request)


def dials(context: Context, request: ReduceRequest, peer: PeerId) -> bool:
    """Return whether we dial `peer` rather than accept its connection, according to the newest
    heartbeats of both.

    Raises:
        ReduceAborted: neither of the two nodes can be dialled. Both notice this immediately, and
            choose the same one of them to sit out. The other one accuses it, and it accuses nobody.
            The two take turns from step to step, since both have work to contribute.
    """
    me, mine = request.peers[request.me], context.own_heartbeat.dialable
    first = request.me < request.peers.index(peer)
    if mine != is_dialable(context, peer):
        first = mine is False
    elif not mine:
        pair = sorted((me, peer))
        other = (peer,) if pair[request.step % 2] == peer else ()
        what = f"neither {me} nor {peer} can be dialled, and they are neighbours"
        raise ReduceAborted(request.step, request.attempt, other, what)
    return first


async def _accept(context: Context, peer: PeerId, key: RingKey, edges: ReduceLinks) -> None:
    def take() -> None:
        # This runs in the thread, so that the connection is not lost if the task is cancelled.
        edges.open[peer, key.stream] = context.plane.ring_inbox.wait_for_socket(
            key, deadline_s=context.timing.edge_s
        )

    give_up = partial(
        context.plane.ring_inbox.give_up, run=key.run, step=key.step, attempt=key.attempt
    )
    with _told_if_late(context, peer, key) as met:
        met.append("waiting for the peer to dial")
        await in_thread(take, stop=give_up, limiter=edges.threads)


async def reach(context: Context, peer: PeerId, key: RingKey, edges: ReduceLinks) -> None:
    """Dial the neighbour until it answers. Before each further try, exchange endpoints with it: if
    one of the two nodes was restarted, the other one does not know its new certificate yet.

    This takes at most `edge_s` and one last try. After a longer wait, the whole reduce would fail
    before we could report which neighbour is at fault.
    """
    ends = context.now() + context.timing.edge_s
    endpoint = context.peers.table.endpoint(peer)
    with _told_if_late(context, peer, key) as met:
        for wait_s in chain([0.0], repeat(AGAIN_S)):
            dialling = DialHandle()
            deadline_s = min(context.timing.reduce.dial_s, max(ends - context.now(), AGAIN_S))
            work = partial(_dial, context, peer, endpoint, key, edges, dialling, deadline_s)
            try:
                if endpoint is not None and not context.peers.may_be_at(endpoint):
                    raise PeerUnreachable("its data plane is on a loopback address", peer=peer)
                seconds = await in_thread(work, stop=dialling.give_up, limiter=edges.threads)
                return context.peers.paths.connected(peer, seconds)
            except (PeerError, RemoteProtocolError) as exc:
                met.append(exc.what)
                if context.now() + AGAIN_S >= ends:
                    raise
            await trio.sleep(wait_s)
            with trio.move_on_after(max(ends - context.now(), 0.0)):
                endpoint = await introduced(context, peer) or context.peers.table.endpoint(peer)


@contextmanager
def _told_if_late(context: Context, peer: PeerId, key: RingKey) -> Iterator[list[str]]:
    """Write a journal line if the `with` block takes longer than LATE_S. The line contains what the
    block has appended to the yielded list."""
    began, met = context.now(), list[str]()
    try:
        yield met
    finally:
        if (seconds := context.now() - began) > LATE_S:
            where = {"step": key.step, "attempt": key.attempt, "stream": key.stream}
            context.journal.write("edge-late", peer=peer, **where, seconds=seconds, met=met)


def _dial(
    context: Context,
    peer: PeerId,
    endpoint: Endpoint | None,
    key: RingKey,
    edges: ReduceLinks,
    dialling: DialHandle,
    deadline_s: float,
) -> float:
    """Dial, and return how many seconds it took."""
    if endpoint is None:
        raise PeerUnreachable("it has not announced its data plane's address", peer=peer)
    began = time.monotonic()
    connection = dial(
        context.plane.credentials,
        endpoint,
        key.to_hello(),
        deadline_s=deadline_s,
        encrypted=context.manifest.encrypted,
        dialling=dialling,
    )
    edges.open[peer, key.stream] = connection
    return time.monotonic() - began
