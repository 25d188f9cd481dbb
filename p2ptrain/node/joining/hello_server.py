"""Answer newcomers with the run, the allowlist and, if they are admitted, other peers' addresses.

A newcomer sends its request to join to any nodes that it has found. They forward the request to the
organiser's node when it is connected to them: only the organiser can admit a peer.

A request of a hundred bytes can get a reply of half a megabyte. So each peer has a rate limit, and
all strangers at one address share a rate limit, since identities cost nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import trio

from p2ptrain.errors import PeerError, RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.node.gossip.hello_client import ask
from p2ptrain.node.state.context import Asking, Parts
from p2ptrain.peers.hello_messages import (
    PEERS_TOLD_MAX,
    REQUEST_BYTES_MAX,
    HelloReply,
    HelloRequest,
    decode_request,
    encode_reply,
)
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL, Handler
from p2ptrain.rate_limit import Allowance
from p2ptrain.run import JoinRequest, Run
from p2ptrain.suggested_command import to_paste

PENDING_MAX = 256
"""Maximum number of requests to join that are remembered. Requests that have been settled, or are
no longer repeated, are dropped."""

FORGET_S = 60.0
"""Seconds after which a request that is not repeated may be dropped: anybody can ask once with each
of many identities. A newcomer repeats its request every 15 s."""

PASS_ON_S = 10.0
"""Seconds between two forwarded requests. This uses a fifth of the node's rate limit at the
organiser."""

PASS_AGAIN_S = 60.0
"""Seconds after which a request that its newcomer still repeats is forwarded again: the organiser's
node keeps requests only in memory."""

PEER_PER_S = 0.5
PEER_BURST = 16
"""Rate limit for one peer. A newcomer asks every 15 s, and a member that lacks a document every 2
s. """

SITE_PER_S = 1.0
SITE_BURST = 64
"""Rate limit for strangers at one address: enough for fifteen waiting newcomers, and for more that
start at the same time."""


def answer_hellos(parts: Parts, run: Run) -> None:
    """From now on, send `run` to every peer that asks."""
    parts.network.handle(
        HELLO_PROTOCOL, _hello(parts, run), bytes_max=REQUEST_BYTES_MAX, anyone=True
    )


def _hello(parts: Parts, run: Run) -> Handler:
    by_peer = Allowance(PEER_BURST, PEER_PER_S)
    by_site = Allowance(SITE_BURST, SITE_PER_S)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        admitted, site = parts.admission.admits(peer), parts.network.site_of(peer)
        now = parts.now()
        if not by_peer.take(peer, 1, now) or not (admitted or by_site.take(site, 1, now)):
            raise TryLater("too many requests from your address: try again in a minute")
        request = decode_request(payload)
        if request.join and _note_request(parts, peer, request.join):
            return encode_reply(HelloReply(run.to_bytes(), b"", b"", admitted, {}))
        allowlist = parts.admission.allowlist
        return encode_reply(
            HelloReply(
                manifest=run.to_bytes(),
                allowlist=allowlist.to_bytes() if allowlist else b"",
                amendments=parts.amendments.to_bytes(),
                admitted=admitted,
                peers=_told(parts) if admitted else {},
            )
        )

    return answer


def _note_request(parts: Parts, teller: PeerId, signed: bytes) -> bool:
    """Remember a request to join for the organiser. Return whether `teller` forwarded it for
    another peer. Only admitted peers may forward requests, and only to the organiser; other
    forwarded requests are ignored.

    Raises RemoteProtocolError: the request is malformed, or its signature is wrong.
    """
    for settled in [known for known in parts.pending if parts.admission.admits(known)]:
        del parts.pending[settled]
    is_admitted, is_organiser = parts.admission.admits(teller), parts.me == parts.manifest.organiser
    if is_admitted and not is_organiser:
        return False
    request = JoinRequest.from_bytes(signed)
    is_passed_on = request.peer != teller
    if is_passed_on != is_admitted or request.run != parts.run:
        return False
    if parts.admission.admits(request.peer):
        return is_passed_on
    site = f"through {teller}" if is_passed_on else parts.network.site_of(teller)
    if request.peer not in parts.pending:
        if not _has_room(parts, site):
            return is_passed_on
        parts.complain("join-request", request.peer, note=request.note, told_by=teller)
    parts.pending.pop(request.peer, None)
    parts.pending[request.peer] = Asking(parts.now(), site, signed)
    parts.changes.ring()
    return is_passed_on


async def pass_requests_on(parts: Parts) -> None:
    """Forward requests to join to the organiser's node whenever it is connected, until cancelled.

    Forward one request at a time, with pauses, so that strangers cannot make members flood the
    organiser.
    """
    organiser, told_s = parts.manifest.organiser, dict[PeerId, float]()
    if parts.me == organiser:
        return
    while True:
        told_s = {peer: told for peer, told in told_s.items() if peer in parts.pending}
        peer = _to_pass_on(parts, told_s)
        if peer is None or organiser not in parts.network.connected():
            await parts.changes.wait()
            continue
        told_s[peer] = parts.now()
        try:
            await ask(parts.network, organiser, HelloRequest(parts.run, parts.pending[peer].signed))
        except (PeerError, RemoteProtocolError) as exc:
            parts.journal.write("not-passed-on", peer=peer, code=exc.code, reason=exc.what)
        await trio.sleep(PASS_ON_S)


def _to_pass_on(parts: Parts, told_s: Mapping[PeerId, float]) -> PeerId | None:
    """Return the peer with the next request to forward: it still asks, and its request has not been
    forwarded recently. Of several, return the one that was forwarded longest ago, or never.
    """
    now, never = parts.now(), -math.inf
    due = [
        peer
        for peer, each in parts.pending.items()
        if now < each.asked_s + FORGET_S
        and told_s.get(peer, never) + PASS_AGAIN_S <= now
        and not parts.admission.admits(peer)
    ]
    return min(due, key=lambda peer: told_s.get(peer, never), default=None)


def _has_room(parts: Parts, site: str) -> bool:
    """Return whether one more request from `site` can be remembered, and make room for it. Drop the
    oldest request if it has not been repeated recently, otherwise the oldest one of the site with
    the most requests.
    """
    if len(parts.pending) < PENDING_MAX:
        return True
    eldest = next(iter(parts.pending))
    if parts.now() < parts.pending[eldest].asked_s + FORGET_S:
        of = Counter(each.site for each in parts.pending.values())
        most = max(of.values())
        if of[site] + 1 >= most:
            return False
        eldest = next(peer for peer, each in parts.pending.items() if of[each.site] == most)
    del parts.pending[eldest]
    return True


def asking(parts: Parts) -> list[PeerId]:
    """Return the peers that wait for admission; empty except on the organiser's node."""
    if parts.me != parts.manifest.organiser:
        return []
    return sorted(peer for peer in parts.pending if not parts.admission.admits(peer))


def asks(parts: Parts, peer: PeerId) -> str:
    """Return the line that shows this request, with the command that admits the peer."""
    admit = to_paste(parts.home.root, f"allow add {peer}")
    return f"{label(peer)} asks to join; to admit it, run: {admit}"


def _told(parts: Parts) -> dict[PeerId, tuple[str, ...]]:
    """Return the addresses of this node and of the admitted peers connected to it."""
    told = {parts.me: tuple(parts.network.addresses())}
    for peer in sorted(parts.network.connected()):
        addresses = parts.network.addresses_of(peer)
        if addresses and parts.admission.admits(peer) and len(told) < PEERS_TOLD_MAX:
            told[peer] = tuple(addresses)
    return told
