"""Keep ports open on a router: which request is due when, and what each reply changes.

    searching ──granted──► held ──half of the lifetime──► renewing ──granted──► held
        ▲  │                 │                               │
        │  └─ nobody grants: wait, then search again         └─ lifetime over: searching
        └──── the router restarted or has a new address: map all ports again at once

The search tries the protocols in order with the first port. A protocol that the router does not
have is not tried again; if none is left, the lease has given up. The other ports follow by the
protocol that granted the first.

This module is sans-IO: requests go out as values, replies and the time come in. It does not know
which ports are worth mapping, and it believes nothing: a router that lies can only make us offer
an address at which nobody reaches us, and such an address is not announced (see `verdict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2ptrain.portmap.restart import RouterClock
from p2ptrain.portmap.values import (
    Checked,
    CheckRequest,
    Granted,
    IPAddress,
    MapRequest,
    Protocol,
    Refusal,
    Refused,
    Reply,
    Request,
    Silent,
    UnmapRequest,
)

LIFETIME_S = 3600
"""Seconds for which a port is requested. A port that was left open by a crash closes after an hour.
Longer grants count as an hour, so that a lying router cannot stop the renewals."""

LIFETIME_MIN_S = 120
"""Shorter grants are refused: we would renew them more than once a minute. RFC 6887, section 15,
tells routers to grant at least this."""

CHECK_S: Mapping[Protocol, float] = {
    Protocol.PCP: 60.0,
    Protocol.NAT_PMP: 60.0,
    Protocol.UPNP: 600.0,
}
"""Seconds between checks for a restarted router or a new address. A check by UPnP costs several TCP
connections and a process; the other two cost one datagram."""

MAP_AGAIN_S = 60.0
"""Minimum seconds between two times at which all ports are mapped again. A lying router that
pretends to restart with each answer would otherwise keep us asking without a pause."""

RENEW_AGAIN_S = 4.0
"""Pause after a first failed renewal, as in RFC 6887, section 11.2.1. It doubles each time."""

SEARCH_AGAIN_S = 60.0
"""Pause after a first search in which no protocol opened the port. It doubles each time."""

SEARCH_AGAIN_MAX_S = 3600.0


@dataclass(frozen=True, slots=True)
class OpenPort:
    """The router passes TCP connections to `port` of `address` on to our port `internal_port`."""

    internal_port: int
    address: IPAddress
    port: int
    protocol: Protocol
    renewed_every_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of a lease so far. `reason` says why ports of `wanted` are not open. It continues
    the sentence "Your router did not open the port: …", and is empty if all are open."""

    wanted: tuple[int, ...]
    open_ports: tuple[OpenPort, ...] = ()
    reason: str = ""
    no_address: bool = False
    """Whether the router refused because it has no public address."""
    asking: bool = False
    """Whether the router's replies for some ports are still missing."""

    @property
    def closed(self) -> tuple[int, ...]:
        """The wanted ports that are not open."""
        opened = {each.internal_port for each in self.open_ports}
        return tuple(port for port in self.wanted if port not in opened)


@dataclass(slots=True)
class _Port:
    """One port. `due_s` is when it must be requested again."""

    nonce: bytes
    due_s: float
    pause_s: float = 0.0
    granted: Granted | None = None
    expires_s: float = 0.0
    reason: str = ""
    """Why the last request for this port failed; empty if it succeeded."""

    def lifetime_s(self) -> float:
        assert self.granted is not None
        return min(self.granted.lifetime_s, LIFETIME_S)


class MappingLease:
    """Keeps all ports of `nonces` open on one router. The nonce of a port must be the same after a
    restart of the node: by it, PCP knows the owner of an older mapping.

    The caller repeats: at `next_deadline`, carry out `next_request`, and pass the reply to
    `handle`. Only one request may be under way."""

    def __init__(
        self, nonces: Mapping[int, bytes], now: float, protocols: tuple[Protocol, ...]
    ) -> None:
        assert nonces
        assert protocols
        self._ports = {port: _Port(nonce, now) for port, nonce in nonces.items()}
        self._first = next(iter(self._ports))
        self._supported = list(protocols)
        self._tried = 0
        """Number of the protocols in `_supported` that this search has already tried."""
        self._searched = False
        """Whether all protocols have been tried since the last port was open."""
        self._search_pause_s = SEARCH_AGAIN_S
        self._protocol: Protocol | None = None
        """The protocol that opened the first port; None while searching."""
        self._clock: RouterClock | None = None
        self._address: IPAddress | None = None
        self._check_s = float("inf")
        self._again_s = float("-inf")
        """When all ports are or were mapped again, because of the newest sign."""
        self._refusals: dict[Protocol, Refused | Silent] = {}

    @property
    def standing(self) -> Standing:
        opened = tuple(
            OpenPort(port, each.granted.address, each.granted.port, self._protocol, renewed_s)
            for port, each in self._ports.items()
            if each.granted is not None and self._protocol is not None
            for renewed_s in (each.lifetime_s() / 2,)
        )
        if len(opened) == len(self._ports):
            return Standing(tuple(self._ports), opened)
        if self._protocol is not None:
            reasons = {each.reason for each in self._ports.values() if each.granted is None}
            words = f"{self._protocol}: " + "; ".join(sorted(filter(None, reasons)))
            return Standing(tuple(self._ports), opened, words, asking="" in reasons)
        refusals = self._refusals.items()
        words = "; ".join(f"{protocol}: {each.reason}" for protocol, each in refusals)
        homeless = any(_is(Refusal.NO_ADDRESS, each) for _, each in refusals)
        return Standing(tuple(self._ports), opened, words, homeless, asking=not self._searched)

    def next_deadline(self) -> float | None:
        """Return when the next request is due. None: the router has none of the protocols, so the
        lease has given up."""
        if not self._supported:
            return None
        if self._protocol is None:
            return self._ports[self._first].due_s
        return min(self._check_s, *(each.due_s for each in self._ports.values()))

    def next_request(self, now: float) -> Request | None:
        """Return the request that is due, if any."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now:
            return None
        if self._protocol is None:
            return self._map_request(self._first, self._supported[self._tried])
        for port, each in self._ports.items():
            if each.due_s <= now:
                return self._map_request(port, self._protocol)
        return CheckRequest(self._protocol, tuple(opened.port for opened in self._held()))

    def removals(self) -> tuple[UnmapRequest, ...]:
        """Return the requests that close all open ports, for the end of the node."""
        return tuple(
            UnmapRequest(self._protocol, port, each.granted.port, each.nonce)
            for port, each in self._ports.items()
            if each.granted is not None and self._protocol is not None
        )

    def handle(self, request: Request, reply: Reply, now: float) -> None:
        """Take note of the reply to the request that `next_request` returned."""
        if isinstance(request, CheckRequest):
            self._handle_check(request, reply, now)
        elif isinstance(request, MapRequest):
            self._handle_map(request, reply, now)

    def _held(self) -> list[Granted]:
        return [each.granted for each in self._ports.values() if each.granted is not None]

    def _map_request(self, port: int, protocol: Protocol) -> MapRequest:
        each = self._ports[port]
        wished = port if each.granted is None else each.granted.port
        return MapRequest(protocol, port, wished, LIFETIME_S, each.nonce)

    def _handle_map(self, request: MapRequest, reply: Reply, now: float) -> None:
        if isinstance(reply, Granted) and reply.lifetime_s < LIFETIME_MIN_S:
            words = f"it opens ports for {reply.lifetime_s} s only"
            reply = Refused(Refusal.TEMPORARY, words)
        if isinstance(reply, Granted):
            self._note_granted(request, reply, now)
        else:
            assert isinstance(reply, Refused | Silent), "a request for a port has no other replies"
            self._note_refused(request, reply, now)

    def _note_granted(self, request: MapRequest, granted: Granted, now: float) -> None:
        each = self._ports[request.internal_port]
        if self._protocol is None:
            self._protocol = request.protocol
            self._check_s = now + CHECK_S[request.protocol]
            self._refusals.clear()
            for other in self._ports.values():
                other.due_s = now
        self._search_pause_s = SEARCH_AGAIN_S
        if self._note_signs(granted.uptime_s, granted.address, now):
            self._map_again(now)
        each.granted, each.pause_s, each.reason = granted, 0.0, ""
        each.due_s = now + each.lifetime_s() / 2
        each.expires_s = now + each.lifetime_s()

    def _note_refused(self, request: MapRequest, reply: Refused | Silent, now: float) -> None:
        if self._protocol is None:
            self._refusals[request.protocol] = reply
            self._search_on(request.protocol, now, unsupported=_is(Refusal.UNSUPPORTED, reply))
            return
        each = self._ports[request.internal_port]
        each.reason = reply.reason
        final = _is(Refusal.UNSUPPORTED, reply) or _is(Refusal.DENIED, reply)
        if final or now >= each.expires_s:
            each.granted = None
        if each.granted is None and not self._held():
            self._search_anew(request.protocol, reply, now)
        elif each.granted is None:
            each.pause_s = max(SEARCH_AGAIN_S, min(2 * each.pause_s, SEARCH_AGAIN_MAX_S))
            each.due_s = now + each.pause_s
        else:
            each.pause_s = max(RENEW_AGAIN_S, 2 * each.pause_s)
            each.due_s = min(now + each.pause_s, each.expires_s)

    def _search_on(self, protocol: Protocol, now: float, *, unsupported: bool) -> None:
        """Continue the search with the next protocol; after the last one, pause."""
        if unsupported:
            self._supported.remove(protocol)
        else:
            self._tried += 1
        first = self._ports[self._first]
        first.due_s = now
        if self._tried >= len(self._supported):
            self._tried, self._searched = 0, True
            first.due_s = now + self._search_pause_s
            self._search_pause_s = min(2 * self._search_pause_s, SEARCH_AGAIN_MAX_S)

    def _search_anew(self, lost: Protocol, reply: Refused | Silent, now: float) -> None:
        """Search from the first protocol on, because `lost` no longer opens any port."""
        self._protocol, self._tried, self._searched = None, 0, False
        self._check_s = float("inf")
        self._clock = self._address = None
        self._refusals = {lost: reply}
        if _is(Refusal.UNSUPPORTED, reply):
            self._supported.remove(lost)
        for each in self._ports.values():
            each.due_s, each.pause_s = now, 0.0

    def _handle_check(self, request: CheckRequest, reply: Reply, now: float) -> None:
        self._check_s = now + CHECK_S[request.protocol]
        if not isinstance(reply, Checked):
            return  # The next renewal shows whether the router still holds the ports.
        restarted = self._note_signs(reply.uptime_s, reply.address, now)
        if restarted or not reply.mapped:
            self._map_again(now)

    def _note_signs(self, uptime_s: int | None, address: IPAddress | None, now: float) -> bool:
        """Return whether the router has restarted or has a new external address since its last
        answer."""
        changed = False
        if uptime_s is not None:
            clock = RouterClock(uptime_s, now)
            changed = self._clock is not None and self._clock.restarted_before(clock)
            self._clock = clock
        if address is not None:
            changed |= self._address is not None and self._address != address
            self._address = address
        return changed

    def _map_again(self, now: float) -> None:
        """Request all ports at once. They stay listed as open until the router refuses or is
        silent until the old lifetime ends."""
        if self._again_s <= now:
            self._again_s = max(now, self._again_s + MAP_AGAIN_S)
        for each in self._ports.values():
            each.due_s, each.pause_s = min(each.due_s, self._again_s), 0.0


def _is(kind: Refusal, reply: Reply) -> bool:
    return isinstance(reply, Refused) and reply.kind is kind
