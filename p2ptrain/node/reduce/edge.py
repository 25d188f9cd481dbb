"""Open all streams between this node and one neighbour in a reduce.

Both neighbours try to connect, but only one of them, the *opener*, decides which connection a
stream uses: the one that comes first in the roster. It claims a stream just before it sends its
hello, and its inbox then refuses the neighbour's hello for this stream (`dataplane/inbox`).

Both compute the same sequence of steps (`connecting/sequence`), in which the opener is the client.
They know from heartbeats who says that it can be dialled, by IPv4, or by IPv6 if both have it.

    can be dialled     opener                      the other one
    the other one      dials, then punches         waits, and dials too if the opener can be dialled
    the opener only    waits, dials, punches       dials
    neither            punches, then uses relays   waits for the call, then uses relays

If the two have kept the connections of the last reduce (`kept_links`), the opener first offers to
use them again, and the other one waits for that, for a second at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat

import outcome
import trio

from p2ptrain.dataplane import RingInbox, RingKey, SecureSocket, SocketWait
from p2ptrain.dataplane.inbox import PURPOSE, SECOND_PURPOSE
from p2ptrain.dataplane.relaying import EdgeKey
from p2ptrain.dataplane.sockets import RelayFault
from p2ptrain.errors import PeerError, PeerUnreachable, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.connecting.opening import Opening, Way, open_all
from p2ptrain.node.connecting.relays import dial_edge, serve_edge
from p2ptrain.node.connecting.sequence import Ends, Step, sequence
from p2ptrain.node.connecting.ways import (
    AGAIN_S,
    NEAR_S,
    can_punch,
    dial_at,
    dial_once,
    in_order,
    punch,
)
from p2ptrain.node.gossip.endpoint_exchange import introduced
from p2ptrain.node.gossip.reachability import changes_ports, is_dialable, shares_site
from p2ptrain.node.punching.observed_ports import observe_ahead
from p2ptrain.node.punching.purposes import reduce_purpose
from p2ptrain.node.reduce.kept_links import KeptLinks
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread
from p2ptrain.ring import ReduceRequest

LATE_S = 0.5
"""If opening the streams takes more than this many seconds (two round trips around the world), the
journal records it."""

WAITING = trio.CapacityLimiter(256)
"""Threads that wait for a neighbour to connect: those of 62 neighbours with four streams each."""

Keep = Callable[[int, SecureSocket], None]


class InboxClaims:
    """The opener's claims. The inbox refuses the neighbour's hello for a claimed stream."""

    def __init__(self, inbox: RingInbox, keys: dict[int, RingKey]) -> None:
        self._inbox = inbox
        self._keys = keys

    def claim(self, number: int) -> bool:
        return self._inbox.claim(self._keys[number])

    def release(self, number: int) -> None:
        self._inbox.release(self._keys[number])


async def open_edge(
    context: Context,
    request: ReduceRequest,
    peer: PeerId,
    keep: Keep,
    threads: trio.CapacityLimiter,
    kept: KeptLinks | None = None,
) -> None:
    """Open each stream with `peer`, and pass it to `keep`, which is called in a thread. `threads`
    limits the threads that dial and punch. This takes at most `edge_s` and one last try. After a
    longer wait, the whole reduce would fail before we could report which neighbour is at fault.
    `kept` has the connections of the last reduce, which are used first.

    Raises:
        RelayFault: the two had to use a relay, and no relay worked.
        PeerError, RemoteProtocolError: the neighbour is not reached, and does not reach us.
    """
    is_opener = request.me < request.peers.index(peer)
    inbox, theirs = context.plane.ring_inbox, keys(request, peer)
    claims = InboxClaims(inbox, theirs) if is_opener else None
    is_asked = is_opener or not is_dialable(context, context.me, by=peer)
    purpose = PURPOSE if is_asked else SECOND_PURPOSE
    ours = keys(request, request.peers[request.me])
    opening = Opening(
        peer,
        reduce_purpose(ours[0]),
        {stream: key.to_hello(purpose) for stream, key in ours.items()},
        context.now() + context.timing.edge_s,
        keep,
        claims,
        threads,
    )
    opener = request.peers[request.me] if is_opener else peer

    def key_of(stream: int) -> EdgeKey:
        return EdgeKey(context.run, request.step, request.attempt, stream, opener)

    of_relays = list[RelayFault]()
    relayed = partial(dial_edge if is_opener else serve_edge, context, key_of, of_relays)
    ways = (ways_of_opener if is_opener else ways_of_other)(context, opening, relayed)
    faults = list[PeerError]()
    with _told_if_late(context, request, opening):
        async with trio.open_nursery() as nursery:
            for key in theirs.values():
                nursery.start_soon(_receive, context, opening, key, claims, faults, nursery)
            opened = await outcome.acapture(_open, context, request, opening, ways, kept)
            nursery.cancel_scope.cancel()
    if opening.missing:
        for fault in (*of_relays[-1:], *faults):
            raise fault
        opened.unwrap()
    elif kept is not None:
        kept.edge_open(peer)


async def _open(
    context: Context,
    request: ReduceRequest,
    opening: Opening,
    ways: list[Way],
    kept: KeptLinks | None,
) -> None:
    """Use the kept connections, and then the `ways`. Raises what `open_all` raises."""
    if kept is not None:
        is_opener = request.me < request.peers.index(opening.peer)
        await kept.reuse(opening, request, is_opener=is_opener)
    if opening.missing:
        await open_all(opening, ways, left_s=opening.ends + AGAIN_S - context.now())


def keys(request: ReduceRequest, dialler: PeerId) -> dict[int, RingKey]:
    """Return the key of each stream that `dialler` opens."""
    return {
        stream: RingKey(request.run, request.step, request.attempt, stream, dialler)
        for stream in range(request.streams)
    }


def ways_of_opener(context: Context, opening: Opening, relayed: Way) -> list[Way]:
    """Return the ways of the client."""
    ends = ends_of(context, opening.peer, is_opener=True)
    ways: dict[Step, Way] = {
        Step.DIAL: partial(dial_persistently, context),
        Step.REVERSE_DIAL: await_peer,
        Step.PUNCH: partial(punch, context),
        Step.RELAY: relayed,
    }
    near = partial(dial_once, context, deadline_s=NEAR_S)
    return in_order(context, sequence(ends), ways, near=near)


def ways_of_other(context: Context, opening: Opening, relayed: Way) -> list[Way]:
    """Return the ways of the server. If only the opener can be dialled, it relies on us. If neither
    can, it is useless to wait once its call has failed."""
    ends = ends_of(context, opening.peer, is_opener=False)
    ways: dict[Step, Way] = {Step.PUNCH: partial(await_call, context), Step.RELAY: relayed}
    if ends.client_is_dialable or ends.server_is_dialable:
        dials = dial_once if ends.server_is_dialable else dial_persistently
        ways = {Step.DIAL: await_peer, Step.REVERSE_DIAL: partial(dials, context)}
    return in_order(context, sequence(ends), ways, near=ways.get(Step.DIAL))


def ends_of(context: Context, peer: PeerId, *, is_opener: bool) -> Ends:
    """Return what both neighbours know about the opener, the client, and the other one."""
    client, server = (context.me, peer) if is_opener else (peer, context.me)
    return Ends(
        client_is_dialable=is_dialable(context, client, by=server),
        server_is_dialable=is_dialable(context, server, by=client),
        may_punch=can_punch(context, peer),
        is_edge=True,
        client_changes_ports=changes_ports(context, client),
        server_changes_ports=changes_ports(context, server),
        share_site=shares_site(context, peer),
        punching_failed_s=context.peers.punching.failed_ago_s(peer, context.now()),
    )


async def dial_persistently(context: Context, opening: Opening) -> None:
    """Dial the peer until it answers. Before each further try, exchange endpoints with it: if one
    of the two nodes was restarted, the other one does not know its new certificate yet.

    This takes until the opening's deadline and one last try."""
    endpoint = context.peers.table.endpoint(opening.peer)
    for wait_s in chain([0.0], repeat(AGAIN_S)):
        try:
            return await dial_at(context, opening, endpoint, context.timing.reduce.dial_s)
        except (PeerError, RemoteProtocolError) as exc:
            opening.met.append(exc.what)
            if context.now() + AGAIN_S >= opening.ends:
                raise
        await trio.sleep(wait_s)
        with trio.move_on_after(max(opening.ends - context.now(), 0.0)):
            found = await introduced(context, opening.peer)
            endpoint = found or context.peers.table.endpoint(opening.peer)


async def await_peer(opening: Opening) -> None:
    """Wait until the neighbour has opened the streams."""
    await opening.complete.wait()


async def await_call(context: Context, opening: Opening) -> None:
    """Wait until the neighbour has called us through our NATs. Raises PeerUnreachable: the calls
    have failed."""
    async with trio.open_nursery() as nursery:
        missing = len(opening.missing)
        nursery.start_soon(observe_ahead, context, opening.peer, opening.about, missing)
        while not (why := context.peers.punching.failure_of(opening.peer, opening.about)):
            if (opening.peer, opening.about) in context.peers.punching.calling:
                opening.calling.set()
            await context.changes.wait()
        nursery.cancel_scope.cancel()
    raise PeerUnreachable(why, peer=opening.peer)


async def _receive(
    context: Context,
    opening: Opening,
    key: RingKey,
    claims: InboxClaims | None,
    faults: list[PeerError],
    nursery: trio.Nursery,
) -> None:
    """Take the stream that the neighbour opens, if it does. If the opener does not open it, nobody
    else can: then add to `faults`, and end the `nursery`."""
    inbox, wait = context.plane.ring_inbox, SocketWait()
    limit_s = context.timing.edge_s + AGAIN_S

    def take() -> None:
        # This runs in the thread, so that the connection is not lost if the task is cancelled.
        found = inbox.wait_for_socket(key, deadline_s=limit_s, wait=wait)
        if claims is not None:
            claims.claim(key.stream)  # Further hellos for this stream are refused.
        opening.deliver(key.stream, found)

    try:
        await in_thread(take, stop=partial(inbox.end_wait, wait), limiter=WAITING)
    except PeerError as exc:
        opening.met.append(exc.what)
        if claims is None and not wait.over and key.stream in opening.missing:
            faults.append(exc)
            nursery.cancel_scope.cancel()
    opening.settle()


@contextmanager
def _told_if_late(context: Context, request: ReduceRequest, opening: Opening) -> Iterator[None]:
    """Write a journal line if the `with` block takes longer than LATE_S. The line says why tries
    failed in the meantime."""
    began_s = context.now()
    try:
        yield
    finally:
        if (seconds := context.now() - began_s) > LATE_S:
            context.journal.write(
                "edge-late",
                peer=opening.peer,
                step=request.step,
                attempt=request.attempt,
                seconds=seconds,
                met=opening.met,
            )
