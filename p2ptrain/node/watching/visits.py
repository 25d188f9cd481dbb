"""Serve the run's weights to strangers, if its manifest makes them public.

A stranger shows the certificate with which it will connect to the data plane, and learns our
endpoint. It becomes a guest there (`dataplane/gate`): it may fetch chunks of the tokenizer and of
the newest certified snapshots, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from p2ptrain.dataplane.certificates import peer_of_certificate
from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError, StoreError, TryLater
from p2ptrain.ids import Digest, PeerId
from p2ptrain.node.gossip.own_endpoint import own_endpoint
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import ENDPOINT_BYTES_MAX, VISIT_PROTOCOL
from p2ptrain.rate_limit import Allowance
from p2ptrain.store import Store

SNAPSHOTS_PUBLIC = 2
"""Number of newest certified snapshots that strangers may fetch. While one of them is being
fetched, the next one may be certified."""

SITE_BURST, SITE_PER_S = 4, 1 / 15
ALL_BURST, ALL_PER_S = 16, 1 / 2
"""Rate limits for visits from one address, and for all. A visit costs about a millisecond, and the
next connection to the data plane then loads all certificates again, which takes up to 0.1 s."""

LOOK_S = 10.0
"""Seconds after which the store is searched again for a snapshot that it did not have."""


@dataclass(slots=True)
class VisitLimits:
    """The allowances for visits."""

    by_site: Allowance = field(default_factory=lambda: Allowance(SITE_BURST, SITE_PER_S))
    all: Allowance = field(default_factory=lambda: Allowance(ALL_BURST, ALL_PER_S))

    def comes(self, site: str, now: float) -> None:
        """Count a visit. Raises TryLater if there were too many."""
        if not (self.by_site.consume(site, 1, now) and self.all.consume("", 1, now)):
            raise TryLater("too many visitors: ask another peer, or try again in a minute")


async def serve_visitors(context: Context, limits: VisitLimits | None = None) -> None:
    """Let strangers fetch the weights until cancelled, if the run's manifest allows it."""
    public, allowed = context.plane.public, limits or VisitLimits()
    if public is None:
        return

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        allowed.comes(context.network.site_of(peer), context.now())
        if peer_of_certificate(payload) != peer:
            raise RemoteProtocolError("a visitor must show its own certificate", peer=peer)
        await trio.to_thread.run_sync(context.plane.listener.invite, payload)
        return pack(own_endpoint(context).to_wire())

    context.network.handle(VISIT_PROTOCOL, answer, bytes_max=ENDPOINT_BYTES_MAX, anyone=True)
    held = dict[Digest, frozenset[Digest]]()
    while True:
        wanted = _public_blobs(context, held)
        found = await trio.to_thread.run_sync(_chunks_of, context.store, wanted, held)
        if found != held:
            held = found
            public.name(digest for names in held.values() for digest in names)
        with trio.move_on_after(LOOK_S):
            while _public_blobs(context, held).keys() <= wanted.keys():
                await context.changes.wait()


def _public_blobs(context: Context, held: Iterable[Digest]) -> dict[Digest, None]:
    """Return the tokenizer and the newest snapshots: the one that the ledger certifies, and those
    of `held` that were public before it."""
    newest = context.ledger.snapshot.snapshot
    digest = context.manifest.genesis if newest is None else newest.digest
    before = [each for each in held if each not in (digest, context.manifest.tokenizer)]
    snapshots = [*before[-(SNAPSHOTS_PUBLIC - 1) :], digest]
    return dict.fromkeys([context.manifest.tokenizer, *snapshots])


def _chunks_of(
    store: Store, blobs: Iterable[Digest], known: Mapping[Digest, frozenset[Digest]]
) -> dict[Digest, frozenset[Digest]]:
    """Return the chunks of each blob in the store, and the blob's list of chunks itself. Leave out
    blobs that the store lacks. Blobs in `known` are not read again."""
    found = dict[Digest, frozenset[Digest]]()
    for blob in blobs:
        if blob in known:
            found[blob] = known[blob]
            continue
        with suppress(StoreError):
            found[blob] = frozenset((blob, *store.manifest(blob).chunks))
    return found
