"""Answer newcomers: the run, the allowlist and, if they are admitted, the other peers' addresses.

A newcomer sends its request to join to any nodes that it has found. They pass the request on to the
organiser's own node while that is connected to them: only the organiser can admit a peer.

A request of a hundred bytes may get a reply of half a megabyte. So each peer has a rate limit, and
all strangers of one address share one, since identities cost nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import trio

from p2ptrain.errors import PeerError, RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.state.context import AdmissionRequest, Parts
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
"""How many requests to join are remembered. Requests that were settled or are not repeated make
room."""

FORGET_S = 60.0
"""A newcomer asks every 15 s. A request that was not repeated for this long may be dropped: anybody
can ask once from each of many identities."""

PASS_ON_S = 10.0
"""Pause between two requests that a node passes on. It uses a fifth of the node's rate limit at the
organiser."""

PASS_AGAIN_S = 60.0
"""A request is passed on again after this time while its newcomer still asks: the organiser's node
keeps requests in memory only."""

PEER_PER_S = 0.5
PEER_BURST = 16
"""A newcomer asks every 15 s; a member that lacks something asks every two seconds."""

SITE_PER_S = 1.0
SITE_BURST = 64
"""Enough for fifteen newcomers that wait behind one address, and for more that start at the same
time."""


def answer_hellos(parts: Parts, run: Run) -> None:
    """Serve `run` to every peer that asks, from now on."""
    parts.network.handle(
        HELLO_PROTOCOL, _hello(parts, run), bytes_max=REQUEST_BYTES_MAX, anyone=True
    )


def _hello(parts: Parts, run: Run) -> Handler:
    by_peer = Allowance(PEER_BURST, PEER_PER_S)
    by_site = Allowance(SITE_BURST, SITE_PER_S)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        admitted, site = parts.admission.admits(peer), parts.network.site_of(peer)
        now = parts.now()
        if not by_peer.consume(peer, 1, now) or not (admitted or by_site.consume(site, 1, now)):
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
                peers=_shared_addresses(parts) if admitted else {},
            )
        )

    return answer


def _note_request(parts: Parts, teller: PeerId, signed: bytes) -> bool:
    """Remember a request to join for the organiser. Return whether `teller` passed it on for
    another peer. Only admitted peers may do that, and only to the organiser; any other foreign
    request is ignored.

    Raises RemoteProtocolError: the request is malformed or wrongly signed.
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
        parts.report_misbehaviour("join-request", request.peer, note=request.note, told_by=teller)
    parts.pending.pop(request.peer, None)
    parts.pending[request.peer] = AdmissionRequest(parts.now(), site, signed)
    parts.changes.notify_all()
    return is_passed_on


async def pass_requests_on(parts: Parts) -> None:
    """Pass requests to join on to the organiser's node whenever it is connected, until cancelled.

    One request at a time, with pauses, so that strangers cannot make members flood the organiser.
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
            await send_hello(
                parts.network, organiser, HelloRequest(parts.run, parts.pending[peer].signed)
            )
        except (PeerError, RemoteProtocolError) as exc:
            parts.journal.write("not-passed-on", peer=peer, code=exc.code, reason=exc.what)
        await trio.sleep(PASS_ON_S)


def _to_pass_on(parts: Parts, told_s: Mapping[PeerId, float]) -> PeerId | None:
    """Return the peer whose request is due: it still asks, and the organiser has not been told of
    it lately. Of several, return the one that was passed on longest ago, or never.
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
    """Return whether one more request from `site` can be remembered, and make room for it. The
    oldest request is dropped if it was not repeated lately; otherwise the oldest of the site with
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


def waiting_peers(parts: Parts) -> list[PeerId]:
    """Return the peers that wait for admission; empty except on the organiser's node."""
    if parts.me != parts.manifest.organiser:
        return []
    return sorted(peer for peer in parts.pending if not parts.admission.admits(peer))


def request_line(parts: Parts, peer: PeerId) -> str:
    """Return the line that shows this request, with the command that admits the peer."""
    admit = to_paste(parts.home.root, f"allow add {peer}")
    return f"{label(peer)} asks to join; to admit it, run: {admit}"


def _shared_addresses(parts: Parts) -> dict[PeerId, tuple[str, ...]]:
    """Return the addresses of this node and of the admitted peers connected to it."""
    told = {parts.me: tuple(parts.network.addresses())}
    for peer in sorted(parts.network.connected()):
        addresses = parts.network.addresses_of(peer)
        if addresses and parts.admission.admits(peer) and len(told) < PEERS_TOLD_MAX:
            told[peer] = tuple(addresses)
    return told
