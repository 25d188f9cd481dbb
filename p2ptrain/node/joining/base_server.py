"""Send newcomers the base (the ledger's state) at a checkpoint that they name.

A newcomer needs a base if no peer keeps the beginning of the ledger; see `trusted_checkpoint`. The
base is made by replaying the chain up to the checkpoint. That takes 25 µs per entry: 2.5 s for the
100,000 entries of a run of 50,000 outer steps. So replays run in a separate thread, finished bases
are kept, and rate limits apply to each peer, to each address in an open run, and to all peers
together. A newcomer asks after its admission (`startup.open_node`), and compares the base with the
digest that its user has entered. Peers that are not admitted are answered only in a run whose
manifest lets strangers watch it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.history.base import Base, Checkpoint, encode_base
from p2ptrain.ledger.history.pruning import base_after, entries_up_to
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread
from p2ptrain.peers.protocol_names import BASE_PROTOCOL
from p2ptrain.rate_limit import Allowance

REQUEST_BYTES_MAX = 256

KEPT_MAX = 32
KEPT_BYTES_MAX = 32 << 20
"""Maximum number and total bytes of the finished bases that are kept. The least recently requested
one is dropped first. Users enter one of the newest checkpoints, so a few bases are enough for
almost everybody. In runs of thousands of peers, whose bases are large, the limit on bytes is
reached first."""

WAITING_MAX = 8
"""Maximum number of requests that wait for the thread. A replay of 100,000 entries takes 2.5 s, so
the last of nine requests is answered after 9 × 2.5 s = 22.5 s, before its deadline of 30 s."""

PEER_BURST, PEER_PER_S = 8, 1 / 15
"""Rate limit for requests of one peer. A newcomer needs one base for each start, and a service
manager may restart it every few seconds."""

SITE_BURST, SITE_PER_S = 16, 1 / 4
"""Rate limit for requests of strangers at one address, and of all peers at one address in an open
run, where anybody can use many identities. It is enough for all machines of a laboratory that start
together. A newcomer that is refused asks other peers."""

ENTRIES_BURST, ENTRIES_PER_S = 250_000, 1_000
"""Rate limit for replayed entries, shared by all peers: on average 2.5 % of a core."""

BYTES_BURST, BYTES_PER_S = 32 << 20, 100_000
"""Rate limit for bytes of answers, shared by all peers. A slow connection can spare this much
during a reduce."""

LATER = "too many requests for the base of the ledger: ask another peer, or try again in a minute"


def serve_bases(
    context: Context, maker: BaseMaker | None = None, allowed: BaseRateLimits | None = None
) -> None:
    """From now on, send admitted peers the base at any checkpoint of our chain; in a run that
    strangers may watch, send it to them too. By default, `maker` and `allowed` have the limits
    above."""
    maker, allowed = maker or BaseMaker(context), allowed or BaseRateLimits()
    public = context.manifest.public.telemetry

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        named = decode_named(payload)
        is_stranger = public and not context.admission.admits(peer)
        is_crowd = context.admission.is_open or is_stranger
        site = context.network.site_of(peer) if is_crowd else None
        allowed.asks(peer, site, context.now())
        held = context.ledger.kept.at(named.height)
        if held is None or held.entry.digest != named.digest:
            return b""
        base = maker.kept.get(named) or await maker.make(named, allowed)
        allowed.sends(len(base), context.now())
        return base

    context.network.handle(BASE_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX, anyone=public)


def encode_named(named: Checkpoint) -> bytes:
    """Return the request for the base at checkpoint `named`."""
    return pack({"height": named.height, "digest": named.digest})


def decode_named(payload: bytes) -> Checkpoint:
    """Decode a request. Raises RemoteProtocolError if it is malformed."""
    wire = fields(unpack(payload, bytes_max=REQUEST_BYTES_MAX), height=int, digest=str)
    try:
        return Checkpoint.parse(f"{wire['height']}:{wire['digest']}")
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc


Replay = Callable[
    [Rules, LedgerState, Sequence[Certified], Certified, Callable[[], bool]], Base | None
]


@dataclass(slots=True)
class BaseCache:
    """Keeps encoded bases by checkpoint, the least recently requested one first."""

    number_max: int = KEPT_MAX
    bytes_max: int = KEPT_BYTES_MAX
    bases: dict[Checkpoint, bytes] = field(default_factory=dict)

    def get(self, named: Checkpoint) -> bytes | None:
        base = self.bases.pop(named, None)
        if base is not None:
            self.bases[named] = base
        return base

    def put(self, named: Checkpoint, base: bytes) -> None:
        self.bases[named] = base
        while len(self.bases) > self.number_max or self._bytes() > self.bytes_max:
            del self.bases[next(iter(self.bases))]

    def _bytes(self) -> int:
        return sum(map(len, self.bases.values()))


@dataclass(slots=True)
class BaseRateLimits:
    """Limits the computing time and bandwidth that requests for bases may use."""

    entries_burst: int = ENTRIES_BURST
    bytes_burst: int = BYTES_BURST
    by_peer: Allowance = field(default_factory=lambda: Allowance(PEER_BURST, PEER_PER_S))
    by_site: Allowance = field(default_factory=lambda: Allowance(SITE_BURST, SITE_PER_S))
    entries: Allowance = field(init=False)
    bytes: Allowance = field(init=False)

    def __post_init__(self) -> None:
        self.entries = Allowance(self.entries_burst, ENTRIES_PER_S)
        self.bytes = Allowance(self.bytes_burst, BYTES_PER_S)

    def asks(self, peer: PeerId, site: str | None, now: float) -> None:
        """Count a request of `peer`. Raises TryLater if it has asked too often."""
        if not self.by_peer.consume(peer, 1, now):
            raise TryLater(LATER)
        if site is not None and not self.by_site.consume(site, 1, now):
            raise TryLater(LATER)

    def replays(self, count: int, now: float) -> None:
        """Count entries to replay. Raises TryLater if too many were replayed recently."""
        if not self.entries.consume("", min(count, self.entries_burst), now):
            raise TryLater(LATER)

    def sends(self, count: int, now: float) -> None:
        """Count bytes that must be sent. Raises TryLater if too many were sent recently."""
        if not self.bytes.consume("", min(count, self.bytes_burst), now):
            raise TryLater(LATER)


class BaseMaker:
    """Makes bases, one at a time, in a separate thread.

    The thread is not one of those that the node's other work shares, so replays do not delay that
    work. `replay` computes a base from the chain's oldest kept state and the entries after it."""

    def __init__(
        self, context: Context, *, replay: Replay = base_after, waiting_max: int = WAITING_MAX
    ) -> None:
        self.kept = BaseCache()
        self._replay = replay
        self._waiting_max = waiting_max
        self._ledger = context.ledger.core
        self._now = context.now
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)

    async def make(self, named: Checkpoint, allowed: BaseRateLimits) -> bytes:
        """Return the encoded base at `named`; empty if there cannot be a base at that entry, for
        instance because it is not a Commit.

        Raises TryLater: too many requests are waiting, or too much was replayed recently."""
        if self._turn.statistics().tasks_waiting >= self._waiting_max:
            raise TryLater(LATER)
        async with self._turn:
            if (base := self.kept.get(named)) is not None:
                return base  # Another request for the same base was answered while this one waited.
            if (found := entries_up_to(self._ledger.kept, named.height)) is None:
                return b""
            allowed.replays(len(found[0]), self._now())
            stopped, rules, start = threading.Event(), self._ledger.rules, self._ledger.kept.start

            def work() -> bytes:
                made = self._replay(rules, start, *found, stopped.is_set)
                return b"" if made is None else encode_base(made)

            base = await in_thread(work, stop=stopped.set, limiter=self._thread)
            self.kept.put(named, base)
            return base
