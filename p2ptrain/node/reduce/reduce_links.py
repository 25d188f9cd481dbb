"""Open this node's connections for one attempt of a reduce: one for each neighbour and stream.

If a neighbour cannot be reached, this module reports it. It does not close the other connections:
the caller keeps them open for a while, since a neighbour whose connection ends would blame us.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from p2ptrain.dataplane import SecureSocket
from p2ptrain.dataplane.sockets import RelayFault
from p2ptrain.errors import PeerError, ReduceAborted, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.reachability import are_apart
from p2ptrain.node.reduce.edge import open_edge
from p2ptrain.node.reduce.kept_links import KeptLinks
from p2ptrain.node.relaying.relayed_links import blamable, relay_offers, relays_to
from p2ptrain.node.state.context import Context
from p2ptrain.ring import NEIGHBOURS_MAX, Links, ReduceRequest

THREADS_MAX = 256
"""Maximum number of threads that open connections: enough for NEIGHBOURS_MAX neighbours at once,
each of which is dialled and called through its NAT."""


@dataclass(slots=True)
class ReduceLinks:
    """Open connections by neighbour and stream. The creator must always call `close`. `kept` has
    the connections of the last reduce, and gets these after a complete reduce."""

    kept: KeptLinks | None = None
    request: ReduceRequest | None = None
    """The reduce that the connections are for; None before `connect`."""
    open: dict[tuple[PeerId, int], SecureSocket] = field(default_factory=dict)
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS_MAX))

    def links(self, request: ReduceRequest) -> Links:
        """Return the connections of a reduce. All of them must be open."""
        return {
            peer: [self.open[peer, stream] for stream in range(request.streams)]
            for peer in request.neighbours
        }

    def keep(self) -> None:
        """Keep the connections for the next reduce, because this one is complete."""
        if self.kept is not None and self.request is not None:
            links, self.open = self.open, {}
            self.kept.keep(self.request, links)

    def close(self) -> None:
        for connection in self.open.values():
            connection.close()


async def connect(context: Context, request: ReduceRequest, edges: ReduceLinks) -> Links:
    """Fill `edges` with a connection to each neighbour for each stream, and return them.
    Raises ReduceAborted: this node has too many neighbours, or it cannot connect to one of them. In
    the second case, the suspect is as in `fault`."""
    count = len(request.neighbours)
    if count > NEIGHBOURS_MAX:
        what = f"with the {request.schedule} schedule this node would have {count} neighbours"
        raise ReduceAborted(request.step, request.attempt, (), what)
    faults: list[ReduceAborted] = []
    edges.request = request
    if edges.kept is not None:
        edges.kept.begin(request)

    async def ensure_open(peer: PeerId) -> None:
        def keep(stream: int, connection: SecureSocket) -> None:
            edges.open[peer, stream] = connection

        try:
            await open_edge(context, request, peer, keep, edges.threads, edges.kept)
        except (PeerError, RemoteProtocolError) as exc:
            blamed, what = fault(context, request, peer, exc)
            faults.append(ReduceAborted(request.step, request.attempt, blamed, what))
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for peer in request.neighbours:
                nursery.start_soon(ensure_open, peer)
        if faults:
            raise faults[0]  # The first fault is the cause: it cancelled the other connections.
        _note_relayed(context, request, edges)
    except BaseException:
        context.plane.ring_inbox.give_up(
            run=request.run, step=request.step, attempt=request.attempt
        )
        raise
    return edges.links(request)


def _note_relayed(context: Context, request: ReduceRequest, edges: ReduceLinks) -> None:
    for peer in request.neighbours:
        if relays := sorted(relays_to(peer, edges.open)):
            context.peers.relaying.note_reached(peer, context.now())
            where = {"step": request.step, "attempt": request.attempt}
            context.journal.write("relayed", peer=peer, relays=relays, about="reduce", **where)


def without_relayed(
    context: Context, request: ReduceRequest, exc: ReduceAborted, edges: ReduceLinks
) -> ReduceAborted:
    """Return `exc`, which this node's own reduce raised, without the suspects behind a relay: the
    relay may be at fault. A suspect remains if the relays are no excuse any more, since attempts
    with it have failed through different relays."""
    if exc.heard:
        return exc
    relaying, offers = context.peers.relaying, relay_offers(context)
    for peer in exc.suspects:
        for relay in sorted(relays_to(peer, edges.open)):
            relaying.note_fault(peer, relay)
    innocent = blamable(exc.suspects, edges.open)
    suspects = tuple(
        it for it in exc.suspects if it in innocent or relaying.is_exhausted(it, offers)
    )
    if suspects == exc.suspects:
        return exc
    what = f"{exc.reason}; a relay may be at fault"
    return ReduceAborted(request.step, request.attempt, suspects, what)


def fault(
    context: Context, request: ReduceRequest, peer: PeerId, exc: PeerError | RemoteProtocolError
) -> tuple[tuple[PeerId, ...], str]:
    """Return whom to blame because we cannot connect to `peer`, and why: that neighbour, even if
    the error names another peer, since the neighbour may have chosen that name.

    If neither of the two nodes can be dialled, their NATs are at fault. Then both choose the same
    one of them to sit out. The other one accuses it, and it accuses nobody. The two take turns from
    step to step, since both have work to contribute.

    If relays failed, nobody is blamed as long as the next attempt begins with another relay."""
    me, reason = request.peers[request.me], exc.what
    if not are_apart(context, context.me, peer):
        return (peer,), reason
    if isinstance(exc, RelayFault):
        relaying = context.peers.relaying
        relaying.note_fault(peer, PeerId(exc.peer))
        if not relaying.were_all_tried(peer, relay_offers(context)):
            return (), f"no relay connects {me} and {peer}: {reason}"
    blamed = (peer,) if sorted((me, peer))[request.step % 2] == peer else ()
    what = f"neither {me} nor {peer} can be dialled, and they are neighbours: {reason}"
    return blamed, what
