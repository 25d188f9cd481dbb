"""Send newcomers the base for a checkpoint of our chain.

The base is made by replaying the chain up to the checkpoint. That takes 25 µs per entry, or 2.5 s
for a run of 50,000 outer steps. So a separate thread makes it, finished bases are kept, and rate
limits apply to each peer, each address and all peers together. Only admitted peers get an answer;
newcomers ask after their admission (`main.opened`), so this does not exclude any of them. The
newcomer does not have to trust the answer, since it compares it with the digest that its user has
entered.
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
"""Limits on the finished bases that are kept. The least recently requested one is dropped first.
Users name one of the newest checkpoints, so a few bases are enough for almost everybody. The second
limit matters in runs of thousands of peers."""

WAITING_MAX = 8
"""Maximum number of requests that wait for the thread. A replay of 100,000 entries takes 2.5 s, so
the last of nine is still answered before its deadline of 30 s."""

PEER_BURST, PEER_PER_S = 8, 1 / 15
"""Rate limit for requests of one peer. A newcomer needs one base for each start, and a service
manager may restart it every few seconds."""

SITE_BURST, SITE_PER_S = 16, 1 / 4
"""Rate limit for requests from one address in an open run, where anybody can have many identities
behind it. It is enough for all machines of a laboratory that start together; a newcomer also asks
other peers."""

ENTRIES_BURST, ENTRIES_PER_S = 250_000, 1_000
"""Rate limit for replayed entries, shared by all peers: on average 2.5 % of a core."""

BYTES_BURST, BYTES_PER_S = 32 << 20, 100_000
"""Rate limit for bytes of answers, shared by all peers. A slow connection can spare this much
during a reduce."""

LATER = "too many requests for the base of the ledger: ask another peer, or try again in a minute"


def serve_bases(parts: Parts) -> None:
    """From now on, send admitted peers the base for any checkpoint of our chain."""
    parts.network.handle(BASE_PROTOCOL, _bases(parts), bytes_max=REQUEST_BYTES_MAX)


def encode_named(named: Checkpoint) -> bytes:
    """Return the request for the base at `named`."""
    return pack({"height": named.height, "digest": named.digest})


def decode_named(payload: bytes) -> Checkpoint:
    """Decode a request. Raises RemoteProtocolError if it is malformed."""
    wire = fields(unpack(payload, bytes_max=REQUEST_BYTES_MAX), height=int, digest=str)
    try:
        return Checkpoint.parse(f"{wire['height']}:{wire['digest']}")
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc


@dataclass(slots=True)
class Kept:
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
class Allowances:
    """Rate limits on the time and bandwidth that peers may use."""

    by_peer: Allowance = field(default_factory=lambda: Allowance(PEER_BURST, PEER_PER_S))
    by_site: Allowance = field(default_factory=lambda: Allowance(SITE_BURST, SITE_PER_S))
    entries: Allowance = field(default_factory=lambda: Allowance(ENTRIES_BURST, ENTRIES_PER_S))
    bytes: Allowance = field(default_factory=lambda: Allowance(BYTES_BURST, BYTES_PER_S))

    def asks(self, peer: PeerId, site: str | None, now: float) -> None:
        """Count a request of `peer`. Raises TryLater if it has asked too often."""
        if not self.by_peer.take(peer, 1, now):
            raise TryLater(LATER)
        if site is not None and not self.by_site.take(site, 1, now):
            raise TryLater(LATER)

    def replays(self, count: int, now: float) -> None:
        """Count entries to be replayed. Raises TryLater if too many were replayed recently."""
        if not self.entries.take("", min(count, ENTRIES_BURST), now):
            raise TryLater(LATER)

    def sends(self, count: int, now: float) -> None:
        """Count bytes to be sent. Raises TryLater if too many were sent recently."""
        if not self.bytes.take("", min(count, BYTES_BURST), now):
            raise TryLater(LATER)


def _bases(parts: Parts) -> Handler:
    maker, allowed = Maker(parts), Allowances()

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


class Maker:
    """Makes one base at a time, in a separate thread.

    Replays do not use the threads that the node's other work shares.
    """

    def __init__(self, parts: Parts) -> None:
        self.kept = Kept()
        self._ledger = parts.ledger
        self._now = parts.now
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)

    async def make(self, named: Checkpoint, allowed: Allowances) -> bytes:
        """Return the encoded base for `named`; empty if that entry cannot be a base's Commit.

        Raises TryLater: too many requests are waiting, or too much was replayed recently.
        """
        if self._turn.statistics().tasks_waiting >= WAITING_MAX:
            raise TryLater(LATER)
        async with self._turn:
            if (base := self.kept.get(named)) is not None:
                return base  # It was made for another request in the meantime.
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
