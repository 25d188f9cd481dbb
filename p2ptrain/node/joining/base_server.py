"""Serve newcomers the base that a checkpoint of our chain names.

The base is made by replaying the chain up to the checkpoint. That takes 25 µs an entry, or 2.5 s
for a run of 50,000 outer steps. So it is made in a thread of its own, finished bases are kept, and
rate limits apply to each peer, each address and the whole network. Only admitted peers are
answered; a newcomer asks after its admission (`main.open_node`), so none is excluded. The answer
need not be trusted, since the newcomer compares it with the digest that its user has named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.history.base import Checkpoint, encode_base
from p2ptrain.ledger.history.pruning import base_after, entries_up_to
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.threads import in_thread
from p2ptrain.peers.protocol_names import BASE_PROTOCOL, Handler
from p2ptrain.rate_limit import Allowance

REQUEST_BYTES_MAX = 256

KEPT_MAX = 32
KEPT_BYTES_MAX = 32 << 20
"""Finished bases are kept, and the least recently requested is dropped first. People name one of
the newest checkpoints, so a few bases serve nearly everybody. The second bound is for runs of
thousands of peers."""

WAITING_MAX = 8
"""Requests that may wait for the one thread. A replay of 100,000 entries takes 2.5 s, so the last
of nine is still answered before its deadline of 30 s."""

PEER_BURST, PEER_PER_S = 8, 1 / 15
"""A newcomer needs one base for each start, and a service starts again every few seconds."""

SITE_BURST, SITE_PER_S = 16, 1 / 4
"""In an open run anybody can have many identities behind one address. This suffices for as many
machines as start together in a laboratory; a newcomer asks other peers too."""

ENTRIES_BURST, ENTRIES_PER_S = 250_000, 1_000
"""Rate limit for replayed entries, shared by all peers: 2.5 % of a core in the long run."""

BYTES_BURST, BYTES_PER_S = 32 << 20, 100_000
"""Rate limit for bytes of answers, shared by all peers: what a slow line can spare beside a
reduce."""

LATER = (
    "too many requests for the beginning of the ledger: ask another peer, or try again in a minute"
)


def serve_bases(parts: Parts) -> None:
    """Serve admitted peers the base that a checkpoint of our chain names, from now on."""
    parts.network.handle(BASE_PROTOCOL, _bases(parts), bytes_max=REQUEST_BYTES_MAX)


def encode_named(named: Checkpoint) -> bytes:
    """Return the request for the base at `named`."""
    return pack({"height": named.height, "digest": named.digest})


def decode_named(payload: bytes) -> Checkpoint:
    """Decode a request. Raises RemoteProtocolError: it is malformed."""
    wire = fields(unpack(payload, bytes_max=REQUEST_BYTES_MAX), height=int, digest=str)
    try:
        return Checkpoint.parse(f"{wire['height']}:{wire['digest']}")
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc


@dataclass(slots=True)
class BaseCache:
    """Encoded bases by checkpoint, the least recently requested first."""

    bases: dict[Checkpoint, bytes] = field(default_factory=dict)

    def get(self, named: Checkpoint) -> bytes | None:
        base = self.bases.pop(named, None)
        if base is not None:
            self.bases[named] = base
        return base

    def put(self, named: Checkpoint, base: bytes) -> None:
        self.bases[named] = base
        while len(self.bases) > KEPT_MAX or self._bytes() > KEPT_BYTES_MAX:
            del self.bases[next(iter(self.bases))]

    def _bytes(self) -> int:
        return sum(map(len, self.bases.values()))


@dataclass(slots=True)
class BaseRateLimits:
    """Rate limits on the time and bandwidth that peers may use."""

    by_peer: Allowance = field(default_factory=lambda: Allowance(PEER_BURST, PEER_PER_S))
    by_site: Allowance = field(default_factory=lambda: Allowance(SITE_BURST, SITE_PER_S))
    entries: Allowance = field(default_factory=lambda: Allowance(ENTRIES_BURST, ENTRIES_PER_S))
    bytes: Allowance = field(default_factory=lambda: Allowance(BYTES_BURST, BYTES_PER_S))

    def asks(self, peer: PeerId, site: str | None, now: float) -> None:
        """Count a request of `peer`. Raises TryLater: it has asked too often."""
        if not self.by_peer.consume(peer, 1, now):
            raise TryLater(LATER)
        if site is not None and not self.by_site.consume(site, 1, now):
            raise TryLater(LATER)

    def replays(self, count: int, now: float) -> None:
        """Count entries to be replayed. Raises TryLater: too many were replayed of late."""
        if not self.entries.consume("", min(count, ENTRIES_BURST), now):
            raise TryLater(LATER)

    def sends(self, count: int, now: float) -> None:
        """Count bytes to be sent. Raises TryLater: too many were sent of late."""
        if not self.bytes.consume("", min(count, BYTES_BURST), now):
            raise TryLater(LATER)


def _bases(parts: Parts) -> Handler:
    maker, allowed = BaseMaker(parts), BaseRateLimits()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        named = decode_named(payload)
        site = parts.network.site_of(peer) if parts.admission.is_open else None
        allowed.asks(peer, site, parts.now())
        held = parts.ledger.kept.at(named.height)
        if held is None or held.entry.digest != named.digest:
            return b""
        base = maker.kept.get(named) or await maker.make(named, allowed)
        allowed.sends(len(base), parts.now())
        return base

    return answer


class BaseMaker:
    """Makes one base at a time, in a thread of its own.

    Replays take none of the threads that the node's other work shares.
    """

    def __init__(self, parts: Parts) -> None:
        self.kept = BaseCache()
        self._ledger = parts.ledger
        self._now = parts.now
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)

    async def make(self, named: Checkpoint, allowed: BaseRateLimits) -> bytes:
        """Return the encoded base at `named`; empty if that entry can end no base.

        Raises TryLater: too many requests wait, or too much was replayed of late.
        """
        if self._turn.statistics().tasks_waiting >= WAITING_MAX:
            raise TryLater(LATER)
        async with self._turn:
            if (base := self.kept.get(named)) is not None:
                return base  # It was made for another request meanwhile.
            if (found := entries_up_to(self._ledger.kept, named.height)) is None:
                return b""
            allowed.replays(len(found[0]), self._now())
            stopped = threading.Event()
            work = partial(
                _replayed, self._ledger.rules, self._ledger.kept.start, *found, stopped.is_set
            )
            base = await in_thread(work, stop=stopped.set, limiter=self._thread)
            self.kept.put(named, base)
            return base


def _replayed(
    rules: Rules,
    start: LedgerState,
    entries: Sequence[Certified],
    commit: Certified,
    stopped: Callable[[], bool],
) -> bytes:
    base = base_after(rules, start, entries, commit, stopped)
    return b"" if base is None else encode_base(base)
