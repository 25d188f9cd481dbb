"""Connect to peers: probe each address, then dial it, a few at a time and with a deadline.

This module turns libp2p's dial errors into a code, evidence and advice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import trio
from libp2p.abc import IHost
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.errors import (
    ConfigError,
    NetworkUnreachable,
    P2PTrainError,
    PeerTooSlow,
    PeerUnreachable,
    reason_of,
)
from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.net.addresses import Address, parse_with_peer
from p2ptrain.net.book import AddressBook
from p2ptrain.net.faults import DialFailed, none_answered
from p2ptrain.net.host.identity_check import prove_identity
from p2ptrain.net.lookup_time import LookupTime
from p2ptrain.net.names import Resolver
from p2ptrain.net.prober import probe

PROBE_S_MAX = 6.0
"""Maximum seconds for a probe: enough for three SYN packets. The rest of the deadline is for the
handshake."""

AT_ONCE = 16
"""Number of addresses tried at the same time. After a restart, most saved addresses may be dead."""
IPV4_FIRST_S = 0.3
"""Seconds by which IPv4 addresses of a list are tried before the IPv6 addresses of the same peers.
Most nodes are behind a router that translates IPv4 addresses, and need members that see them from
outside (`reach_task`). So a connection uses IPv6 only if IPv4 does not work, or is slow."""
ADDRESS_S_MIN = 3.0
"""Minimum seconds for each address: the handshake takes several round trips."""

GIVEN_LOOKUPS = 4
MEMBERS_LOOKUPS = 8
OTHERS_LOOKUPS = 2
"""Maximum numbers of simultaneous DNS lookups, by the source of the name: our user, a member, or
any other peer. A DNS server that never answers blocks a thread for half a minute, but only a thread
reserved for that source. In addition, the names of one peer have a budget; see `lookup_time`."""
MEMBERS_DIALS = 64
OTHERS_DIALS = 16
"""Maximum numbers of simultaneous dials to addresses that peers announced. In an open run anybody
can invent 2,048 peers with eight addresses each, none of which answers. Each dial holds a socket
for up to six seconds."""

Accept = Callable[[PeerId, str], Awaitable[None]]
"""`await accept(peer, address)` returns if the caller can use the peer that answered. Otherwise it
raises a P2PTrainError that says why not."""

_WHO_ANSWERED = re.compile(r"remote_peer_id_from_pubkey=(\w+)")


async def anybody(peer: PeerId, address: str) -> None:
    """Accept every peer that answers."""


class _Budget:
    """Limits on simultaneous DNS lookups and dials for one source of addresses: our user, members,
    or other peers. If `dials` is None, the number of dials is not limited here."""

    def __init__(self, lookups: int, dials: int | None, time: LookupTime | None = None) -> None:
        self.resolver = Resolver(lookups, time)
        self._dials = None if dials is None else trio.CapacityLimiter(dials)

    @asynccontextmanager
    async def dial(self, address: Address, ends: float) -> AsyncIterator[None]:
        if self._dials is None:
            yield
            return
        with trio.move_on_at(ends) as waiting:
            await self._dials.acquire()
        if waiting.cancelled_caught:
            raise DialFailed(address, "NET-TIMEOUT", "too many other dials are in progress")
        try:
            yield
        finally:
            self._dials.release()


class Probe(Protocol):
    """Returns an IP address of `address` at which libp2p answers, or raises DialFailed."""

    async def __call__(self, address: Address, resolver: Resolver, *, deadline_s: float) -> str: ...


class Dialler:
    def __init__(
        self,
        host: IHost,
        me: PeerId,
        book: AddressBook,
        connected: Callable[[], set[PeerId]],
        is_member: IsMember,
        probe: Probe = probe,
    ) -> None:
        self._host = host
        self._probe = probe
        self._me = me
        self._book = book
        self._connected = connected
        self._is_member = is_member
        self._locks: dict[PeerId, trio.Lock] = {}
        self._given = _Budget(GIVEN_LOOKUPS, None)
        time = LookupTime()
        self._members = _Budget(MEMBERS_LOOKUPS, MEMBERS_DIALS, time)
        self._others = _Budget(OTHERS_LOOKUPS, OTHERS_DIALS, time)

    async def connect(self, text: str, *, deadline_s: float) -> PeerId:
        """Connect to an address that comes from our user, with the errors of `Network.connect`."""
        return await self._connect(text, self._given, deadline_s)

    async def _connect(self, text: str, budget: _Budget, deadline_s: float) -> PeerId:
        address, peer = parse_with_peer(text)
        if peer == self._me:
            raise ConfigError(
                f"{text} is this node's own address",
                code="ADDR-SELF",
                likely=(
                    "the address was copied from this machine, or another machine uses a copy of "
                    "this node's key"
                ),
                do="give the address of another peer",
            )
        if peer not in self._connected():
            await self._dial(address, peer, budget, trio.current_time() + deadline_s)
        return peer

    async def connect_any(
        self,
        texts: Sequence[str],
        *,
        or_else: Sequence[str] = (),
        deadline_s: float,
        accept: Accept = anybody,
    ) -> PeerId:
        """See `Network.connect_any`. Up to AT_ONCE addresses are tried at a time."""
        if not texts and not or_else:
            raise ConfigError(
                "there is no address to connect to",
                code="ADDR-NONE",
                do="give the address of a peer of the run",
            )
        return await self._connect_any((texts, or_else), self._given, deadline_s, accept)

    async def _connect_any(
        self,
        groups: Sequence[Sequence[str]],
        budget: _Budget,
        deadline_s: float,
        accept: Accept = anybody,
    ) -> PeerId:
        failures: list[tuple[str, P2PTrainError]] = []
        for texts in groups:
            ends = trio.current_time() + deadline_s
            peer, failed = await self._first_of(texts, budget, ends, accept)
            if peer is not None:
                return peer
            failures += failed
        raise none_answered(failures, untried=sum(map(len, groups)) - len(failures))

    async def _first_of(
        self, texts: Sequence[str], budget: _Budget, ends: float, accept: Accept
    ) -> tuple[PeerId | None, list[tuple[str, P2PTrainError]]]:
        """Return the first peer that `accept` accepts, or None; and the errors, in the order of
        `texts`. Addresses that were not tried before `ends` have no error."""
        found: list[PeerId] = []
        failed: dict[int, P2PTrainError] = {}
        queue, later = iter(enumerate(texts)), _ipv6_beside_ipv4(texts)

        async def try_one_after_the_other() -> None:
            for number, text in queue:
                await trio.sleep(IPV4_FIRST_S if text in later else 0.0)
                left_s = ends - trio.current_time()
                if left_s <= 0:
                    return
                share_s = max(left_s * AT_ONCE / (len(texts) - number), ADDRESS_S_MIN)
                try:
                    peer = await self._connect(text, budget, min(share_s, left_s))
                    await accept(peer, text)
                except P2PTrainError as exc:
                    failed[number] = exc
                else:
                    found.append(peer)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in texts[:AT_ONCE]:
                nursery.start_soon(try_one_after_the_other)
        return (found[0] if found else None), [(texts[n], failed[n]) for n in sorted(failed)]

    async def connect_peer(self, peer: PeerId, *, deadline_s: float) -> None:
        """Connect to `peer` at any known or reported address. Raises PeerUnreachable or
        PeerTooSlow."""
        if peer in self._connected():
            return
        addresses = [str(address) for address in self._book.addresses_of(peer, trio.current_time())]
        if not addresses:
            raise PeerUnreachable("its address is not known", peer=peer)
        budget = self._members if self._is_member(peer) else self._others
        try:
            await self._connect_any([addresses], budget, deadline_s)
        except (ConfigError, NetworkUnreachable) as exc:
            slow = exc.code in ("NET-TIMEOUT", "NET-SILENT")
            kind = PeerTooSlow if slow else PeerUnreachable
            raise kind("; ".join(exc.evidence) or exc.what, peer=peer, code=exc.code) from exc

    async def prove(self, peer: PeerId, host: str, port: int, *, deadline_s: float) -> None:
        """See `Network.prove`."""
        address = Address("ip6" if ":" in host else "ip4", host, port, peer)
        ends = trio.current_time() + deadline_s
        async with self._members.dial(address, ends):
            left_s = max(ends - trio.current_time(), 0.0)
            await self._probe(address, self._members.resolver, deadline_s=left_s * 0.6)
            with trio.move_on_at(ends) as scope:
                try:
                    await prove_identity(self._host, peer, address.transport)
                except Exception as exc:
                    raise _dial_failed(address, exc) from exc
            if scope.cancelled_caught:
                raise DialFailed(address, "NET-SILENT", "it did not finish the handshake in time")

    @asynccontextmanager
    async def _one_at_a_time(
        self, address: Address, peer: PeerId, ends: float
    ) -> AsyncIterator[None]:
        """Serialise the dials of one peer: two simultaneous dials would leave two connections."""
        lock = self._locks.setdefault(peer, trio.Lock())
        with trio.move_on_at(ends):
            await lock.acquire()
        if lock.statistics().owner is not trio.lowlevel.current_task():
            raise DialFailed(address, "NET-TIMEOUT", "another dial of this peer is in progress")
        try:
            yield
        finally:
            lock.release()
            if not lock.statistics().tasks_waiting:
                self._locks.pop(peer, None)

    async def _dial(self, address: Address, peer: PeerId, budget: _Budget, ends: float) -> None:
        async with budget.dial(address, ends):
            left_s = max(ends - trio.current_time(), 0.0)
            deadline_s = min(left_s * 0.6, PROBE_S_MAX)
            host = await self._probe(address, budget.resolver, deadline_s=deadline_s)
            async with self._one_at_a_time(address, peer, ends):
                if peer not in self._connected():
                    await self._shake_hands(address, host, peer, ends)

    async def _shake_hands(self, address: Address, host: str, peer: PeerId, ends: float) -> None:
        target = Multiaddr(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{address.port}")
        network: Any = self._host.get_network()
        with trio.move_on_at(ends) as scope:
            try:
                await network.dial_addr(target, ID.from_base58(peer))
            except SwarmException as exc:
                raise _dial_failed(address, exc) from exc
        if scope.cancelled_caught and peer not in self._connected():
            raise DialFailed(address, "NET-SILENT", "it did not finish the handshake in time")
        self._book.note_answer(peer, address)


def _ipv6_beside_ipv4(texts: Sequence[str]) -> set[str]:
    """Return the IPv6 addresses of peers that also have an IPv4 address in `texts`."""
    ends = {text.rpartition("/p2p/")[2] for text in texts if text.startswith("/ip4/")}
    return {
        text for text in texts if text.startswith("/ip6/") and text.rpartition("/p2p/")[2] in ends
    }


def _dial_failed(address: Address, exc: BaseException) -> DialFailed:
    reasons = list(_chain(exc))
    answered = _WHO_ANSWERED.search(" ".join(reasons))
    if answered:
        return DialFailed(
            address, "NET-WRONG-ID", f"a different peer, {answered[1]}, answers at that address"
        )
    return DialFailed(address, "NET-RESET", f"the handshake failed: {reasons[-1]}")


def _chain(exc: BaseException | None) -> list[str]:
    """Return the texts of `exc` and of its causes."""
    texts: list[str] = []
    while exc is not None and len(texts) < 10:
        texts.append(reason_of(exc))
        exc = exc.__cause__ or exc.__context__
    return texts
