"""Open ports and learn their external addresses from a member that can be dialled."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

import trio

from p2ptrain.dataplane import DialHandle, Endpoint, LocalPort, Observation, observe
from p2ptrain.errors import PeerError, PeerUnreachable, RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.punching import ObservedAhead
from p2ptrain.node.state.threads import in_thread

OBSERVE_S = 1.5
"""Deadline in seconds of one member's observation: three round trips and its computing time. The
peer waits for our ports meanwhile, and a whole agreement takes at most four seconds."""

OBSERVERS_MAX = 2
"""Maximum number of members that are asked, one after the other."""

THREADS = trio.CapacityLimiter(64)
"""Threads that observe ports: those of eight agreements at once."""


async def observe_ports(context: Context, peer: PeerId, count: int) -> list[Observation]:
    """Return `count` ports from which `peer` can be called, with their external addresses. The
    caller has to close them.

    Raises:
        PeerUnreachable: no member other than `peer` tells us their addresses.
    """
    why: list[str] = []
    for observer in observers(context, peer)[:OBSERVERS_MAX]:
        try:
            return await _observe_at(context, observer, count)
        except (PeerError, RemoteProtocolError, TryLater) as exc:
            why.append(f"{observer.peer}: {exc.what}")
    told = "; ".join(why) or "no other member can be dialled"
    raise PeerUnreachable(f"no member observes this node's ports: {told}", peer=peer)


async def observe_ahead(context: Context, peer: PeerId, about: str, count: int) -> None:
    """Observe `count` ports now, since `peer` will offer an agreement about this soon: both ends of
    an edge learn at the same time that they need one. Keep them until an agreement takes them, or
    this task is cancelled."""
    ahead, key = ObservedAhead(), (peer, about)
    context.peers.punching.ahead[key] = ahead
    try:
        with suppress(PeerUnreachable):
            ahead.ports.extend(await observe_ports(context, peer, count))
        ahead.done.set()
        await trio.sleep_forever()
    finally:
        ahead.done.set()
        if context.peers.punching.ahead.get(key) is ahead:
            del context.peers.punching.ahead[key]
        close(ahead.ports)


async def take_ports(context: Context, peer: PeerId, about: str, count: int) -> list[Observation]:
    """Return the ports that were observed ahead for this agreement. If there are none, observe
    them. Raises as `observe_ports` does."""
    ahead = context.peers.punching.ahead.get((peer, about))
    if ahead is not None:
        await ahead.done.wait()
        ports = list(ahead.ports)
        ahead.ports.clear()
        if len(ports) == count:
            return ports
        close(ports)
    return await observe_ports(context, peer, count)


def observers(context: Context, peer: PeerId) -> list[Endpoint]:
    """Return the data planes of the members that may be asked, in random order. Members that are
    connected come first, since they are certainly up.

    A lying member can name a wrong address. Then this agreement fails, and the next one probably
    asks another member."""
    state, peers = context.ledger.snapshot, context.peers
    found = [
        record.endpoint
        for record in peers.table
        if record.endpoint is not None
        and state.is_member(record.peer)
        and record.peer not in (context.me, peer)
        and record.heartbeat.dialable  # An observer that is dialled by IPv6 sees no IPv4 port.
        and not peers.is_down(record.peer)
        and peers.may_be_at(record.endpoint)
    ]
    context.draw.shuffle(found)
    connected = context.network.connected()
    return sorted(found, key=lambda each: each.peer not in connected)


async def _observe_at(context: Context, observer: Endpoint, count: int) -> list[Observation]:
    """Observe all ports at the same time. Raises the first error; then no port stays open."""
    found: list[Observation] = []
    faults: list[PeerError | RemoteProtocolError | TryLater] = []

    async def one() -> None:
        dialling = DialHandle()
        work = partial(_observe, context, observer, found, dialling)
        try:
            await in_thread(work, stop=dialling.give_up, limiter=THREADS)
        except (PeerError, RemoteProtocolError, TryLater) as exc:
            faults.append(exc)
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(one)
        if faults:
            raise faults[0]
    except BaseException:
        close(found)
        raise
    return found


def _observe(
    context: Context, observer: Endpoint, found: list[Observation], dialling: DialHandle
) -> None:
    port = LocalPort(own_host(context, observer))
    try:
        observe_port(context, observer, port, found, dialling)
    except BaseException:
        port.close()
        raise


def observe_port(
    context: Context,
    observer: Endpoint,
    port: LocalPort,
    found: list[Observation],
    dialling: DialHandle,
) -> None:
    """Append what `observer` sees of `port`. This blocks. It appends in its own thread, so that the
    connection is not lost if the waiting task is cancelled.

    Raises PeerError, RemoteProtocolError, TryLater: the observer does not answer properly."""
    found.append(
        observe(
            context.plane.credentials,
            observer,
            port,
            deadline_s=OBSERVE_S,
            encrypted=context.manifest.encrypted,
            dialling=dialling,
        )
    )


def close(ports: Iterable[Observation]) -> None:
    for each in ports:
        each.close()


def own_host(context: Context, observer: Endpoint) -> str:
    """Return the address of this machine to call from: that of our listener, or any address of the
    observer's version of IP."""
    host = context.plane.listener.address[0]
    own, theirs = ip_address(host), ip_address(observer.host)
    if own.is_unspecified or own.version != theirs.version or own.is_loopback != theirs.is_loopback:
        return "::" if theirs.version == 6 else "0.0.0.0"
    return host  # A machine with several addresses stays in the network that its user has chosen.
