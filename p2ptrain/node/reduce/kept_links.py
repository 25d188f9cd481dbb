"""The connections that are kept after a complete reduce, and their use in the next one.

`kept_edges` decides which edges are kept, and `second_hello` says which messages make both ends use
a connection again. While an edge is kept, this node waits for the neighbour's hello or for the end
of each of its connections. It waits on a copy of the descriptor, because the listener's thread may
close the original at any time.

If a kept connection turns out to be dead, nobody is blamed. It has cost `reuse_s` at most, and both
ends connect in the usual ways.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from p2ptrain.dataplane import PeerSocket, RingKey, SecureSocket
from p2ptrain.errors import PeerError, PeerUnreachable, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.node.connecting.opening import Opening
from p2ptrain.node.reduce import second_hello
from p2ptrain.node.reduce.kept_edges import Closing, KeptEdge, KeptEdges, StepOnLine
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread
from p2ptrain.ring import ReduceRequest

ACCEPTING = trio.CapacityLimiter(64)
"""Threads that answer hellos on kept connections: those of twice the usual maximum of a reduce.
Each takes `BEGUN_S` and `edge_s` at most."""

PARKED_S = 60.0
"""Seconds for which an accepted connection waits for our reduce, as in the ring's inbox."""


@dataclass(slots=True, eq=False)
class _Held:
    """A kept connection. `waiting` ends when our own reduce takes the connection; `is_asked` is set
    once the neighbour has begun its hello. `lost` is set when the connection is closed."""

    stream: int
    connection: PeerSocket
    waiting: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_asked: bool = False
    lost: trio.Event = field(default_factory=trio.Event)


class KeptLinks:
    """Holds the kept connections. Use it in the event loop only. Make it with `kept_links`."""

    def __init__(
        self, context: Context, nursery: trio.Nursery, edges: KeptEdges | None = None
    ) -> None:
        self._context = context
        self._nursery = nursery
        self._edges = edges or KeptEdges()
        self._held: dict[PeerId, dict[int, _Held]] = {}
        self._parked: dict[RingKey, tuple[PeerSocket, float]] = {}
        """The connections that the inbox got from here, and when to withdraw them."""

    @property
    def peers(self) -> frozenset[PeerId]:
        """The neighbours with which connections are kept now."""
        return frozenset(self._held)

    def keep(
        self, request: ReduceRequest, links: Mapping[tuple[PeerId, int], SecureSocket]
    ) -> None:
        """Keep the connections of a complete reduce, by neighbour and stream. They belong to this
        object from now on."""
        self._withdraw(request)
        streams: dict[PeerId, int] = {}
        for peer, _ in links:
            streams[peer] = streams.get(peer, 0) + 1
        now = self._context.now()
        after = StepOnLine(request.run, request.step)
        self._close(self._edges.reduce_complete(after, streams, now))
        for (peer, stream), connection in links.items():
            assert isinstance(connection, PeerSocket)
            held = _Held(stream, connection)
            self._held.setdefault(peer, {})[stream] = held
            self._nursery.start_soon(self._await_hello, held)
        self._context.changes.notify_all()  # The deadline of `watch` is a different one now.

    def begin(self, request: ReduceRequest) -> None:
        """Close what the attempt that begins now cannot use."""
        at = StepOnLine(request.run, request.step)
        self._close(self._edges.attempt_begun(at, request.streams, request.neighbours))

    def attempt_failed(self, failed: ReduceRequest | Roster) -> None:
        """Close everything: an attempt has failed."""
        self._withdraw(failed)
        self._close(self._edges.attempt_failed())

    async def reuse(self, opening: Opening, request: ReduceRequest, *, is_opener: bool) -> None:
        """Use the kept connections with the peer of `opening` again, if there are any. The opener
        offers them, and the other end waits for the offer, for `reuse_s` at most."""
        peer, began_s = opening.peer, self._context.now()
        if not self._has(peer, request):
            return
        if not is_opener:
            return await self._await_offer(opening)
        await self._offer_all(opening, request)
        punching = self._context.peers.punching
        if peer in punching.reached(self._context.now()) and not opening.missing:
            punching.note_reached(peer, self._context.now())  # The holes are still used.
        what = {"reason": opening.met[-1]} if opening.missing and opening.met else {}
        self._context.journal.write(
            "edge-not-reused" if opening.missing else "edge-reused",
            peer=peer,
            step=request.step,
            attempt=request.attempt,
            seconds=self._context.now() - began_s,
            **what,
        )

    def edge_open(self, peer: PeerId) -> None:
        """Close what is still kept for `peer`, since all connections of the attempt are open."""
        self._close(self._edges.broken(peer, "another connection was used"))

    async def watch(self) -> None:
        """Close the connections with peers that may not take part any more, and those that were
        kept for too long."""
        context = self._context
        while True:
            now = context.now()
            self._close(self._edges.reviewed(self._unwelcome, now))
            for key, (connection, until) in list(self._parked.items()):
                if now >= until:
                    del self._parked[key]
                    context.plane.ring_inbox.withdraw(key, connection)
            ends = [until for _, until in self._parked.values()]
            with trio.move_on_after(max(min([*ends, self._edges.deadline]) - now, 0.0)):
                await context.changes.wait()

    def close(self) -> None:
        """Close everything, because the node stops."""
        for key, (connection, _) in self._parked.items():
            self._context.plane.ring_inbox.withdraw(key, connection)
        for held in list(self._held.values()):
            for each in held.values():
                each.connection.close()

    def _has(self, peer: PeerId, request: ReduceRequest) -> bool:
        """Return whether connections with `peer` are kept, or were already accepted for this
        attempt."""
        attempt = request.step, request.attempt
        parked = any((it.step, it.attempt) == attempt and it.peer == peer for it in self._parked)
        return parked or peer in self._held

    async def _offer_all(self, opening: Opening, request: ReduceRequest) -> None:
        held = self._held.get(opening.peer, {})
        if any(each.is_asked for each in held.values()):
            return  # The neighbour believes that it is the opener of another attempt.
        for each in held.values():
            each.waiting.cancel()
        self._held.pop(opening.peer, None)
        self._edges.taken(opening.peer)
        async with trio.open_nursery() as nursery:
            for each in held.values():
                nursery.start_soon(self._offer, opening, request, each)

    async def _offer(self, opening: Opening, request: ReduceRequest, held: _Held) -> None:
        stream, connection, used = held.stream, held.connection, list[bool]()
        me = request.peers[request.me]
        key = RingKey(request.run, request.step, request.attempt, stream, me)

        def work() -> None:
            if not opening.claim(stream, held):
                raise PeerUnreachable("another connection is used", peer=connection.peer)
            try:
                second_hello.offer(connection, key, self._context.timing.reduce.reuse_s)
            except BaseException:
                opening.release(stream, held)
                raise
            used.append(True)
            opening.deliver(stream, connection)

        try:
            await in_thread(work, stop=connection.shutdown, limiter=opening.limiter)
        except (PeerError, RemoteProtocolError) as exc:
            opening.met.append(f"a kept connection: {exc.what}")
        finally:
            if not used:
                connection.close()
        opening.settle()

    async def _await_offer(self, opening: Opening) -> None:
        """Wait until the neighbour has used its kept connections, or one of them has ended."""

        async def end_if_lost(held: _Held) -> None:
            await held.lost.wait()
            nursery.cancel_scope.cancel()

        with trio.move_on_after(self._context.timing.reduce.reuse_s):
            async with trio.open_nursery() as nursery:
                for each in self._held.get(opening.peer, {}).values():
                    nursery.start_soon(end_if_lost, each)
                await opening.complete.wait()
                nursery.cancel_scope.cancel()

    async def _await_hello(self, held: _Held) -> None:
        """Wait for the neighbour's hello, and pass the connection to the inbox."""
        connection = held.connection
        try:
            with held.waiting:
                await _until_readable(connection)
                # Our own reduce may have taken the connection after the bytes arrived, and before
                # this task ran again.
                held.is_asked = not held.waiting.cancel_called
            if not held.is_asked:
                return  # Our own reduce uses the connection.
            edge = self._edges.find(connection.peer)
            accept = partial(
                second_hello.accept,
                connection,
                partial(self._refusal, edge, held),
                self._context.timing.edge_s,
            )
            key = await in_thread(accept, stop=connection.shutdown, limiter=ACCEPTING)
            self._pass_on(held, key)
        except (PeerError, RemoteProtocolError, OSError) as exc:
            if self._is_held(held):
                self._close(self._edges.broken(connection.peer, _reason_of(exc)))
            self._drop(held)

    def _refusal(self, edge: KeptEdge | None, held: _Held, key: RingKey) -> str:
        """Return why a hello is refused; "" if it is accepted. May be called from any thread."""
        if edge is None:
            return "this connection is not kept any more"
        refusal = self._context.plane.ring_inbox.refusal
        return edge.refusal(key, held.stream) or refusal(key.peer, key.to_hello())

    def _pass_on(self, held: _Held, key: RingKey) -> None:
        """Give the connection to the inbox. Raises RemoteProtocolError: the inbox is full. Raises
        PeerUnreachable: the edge was closed in the meantime."""
        peer, connection = key.peer, held.connection
        if not self._is_held(held):
            raise PeerUnreachable("its connections were closed", peer=peer)
        self._context.plane.ring_inbox.admit(key, connection)
        self._parked[key] = connection, self._context.now() + PARKED_S
        del self._held[peer][held.stream]
        if not self._held[peer]:
            del self._held[peer]
            self._edges.taken(peer)

    def _is_held(self, held: _Held) -> bool:
        return self._held.get(held.connection.peer, {}).get(held.stream) is held

    def _drop(self, held: _Held) -> None:
        """Close one connection, whether or not it is still held."""
        held.lost.set()
        held.connection.close()

    def _close(self, closing: Closing) -> None:
        for peer, why in closing.items():
            held = self._held.pop(peer, {})
            for each in held.values():
                each.waiting.cancel()
                self._drop(each)
            if held:
                self._context.journal.write("edge-closed", peer=peer, reason=why)

    def _withdraw(self, last: ReduceRequest | Roster) -> None:
        """Close the accepted connections of attempts up to this one that no reduce has taken."""
        until = last.step, last.attempt
        for key in [it for it in self._parked if (it.step, it.attempt) <= until]:
            connection, _ = self._parked.pop(key)
            self._context.plane.ring_inbox.withdraw(key, connection)

    def _unwelcome(self, peer: PeerId) -> str:
        """Return why no connection with `peer` may be kept; "" if it may."""
        context = self._context
        if not context.may_train or context.state.leaving:
            return "this node does not train now"
        if not context.ledger.snapshot.is_member(peer):
            return "it is not a member any more"
        if not context.admission.admits(peer):
            return "it was removed from the run"
        return "it is down" if context.peers.is_down(peer) else ""


@asynccontextmanager
async def kept_links(context: Context) -> AsyncIterator[KeptLinks]:
    """Keep connections until the block ends. Then all of them are closed."""
    async with trio.open_nursery() as nursery:
        kept = KeptLinks(context, nursery)
        nursery.start_soon(kept.watch)
        try:
            yield kept
        finally:
            nursery.cancel_scope.cancel()
            kept.close()


async def _until_readable(connection: PeerSocket) -> None:
    """Wait until bytes have arrived, or the connection has ended. Raises OSError: it was closed
    here."""
    if connection.has_unread:
        return
    descriptor = os.dup(connection.fileno())
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def _reason_of(exc: Exception) -> str:
    return exc.what if isinstance(exc, (PeerError, RemoteProtocolError)) else "it was closed here"
