"""Answer hellos: send newcomers the run's manifest, the allowlist, the amendments and, if they are
admitted, other peers' addresses.

A hello may contain a newcomer's request to join. The newcomer sends it to any nodes that it has
found. Only organisers and their delegates can admit a peer, so these nodes forward the request to
the nodes of organisers and delegates that are connected to them.

A hello of a hundred bytes can get a reply of half a megabyte. So each peer has a rate limit. All
strangers at one address share another one, since anybody can create many identities.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import trio

from p2ptrain.config.node import NOTE_CHARACTERS_MAX
from p2ptrain.errors import PeerError, RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.node.gossip.hand_over_gossip import encoded_hand_overs
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.joining.decisions import denial_of
from p2ptrain.node.joining.stated_machine import known_device, known_reach
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.join_requests import Applicant
from p2ptrain.peers.hello_messages import (
    PEERS_TOLD_MAX,
    REQUEST_BYTES_MAX,
    HelloReply,
    HelloRequest,
    decode_request,
    encode_reply,
)
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL
from p2ptrain.rate_limit import Allowance
from p2ptrain.run import JoinRequest
from p2ptrain.run.grant import encode_grants
from p2ptrain.suggested_command import to_paste

PASS_ON_S = 10.0
"""Seconds between two forwarded requests. That is a fifth of the rate at which the organiser's node
accepts hellos from this node (PEER_PER_S)."""

PASS_AGAIN_S = 60.0
"""Seconds after which a request is forwarded again if its newcomer still repeats it: the
organiser's node keeps requests only in memory, so a restart loses them."""

PEER_PER_S = 0.5
PEER_BURST = 16
"""Rate limit for the hellos of one peer. A newcomer asks every 15 s, and a member that lacks an
amendment asks every 2 s."""

SITE_PER_S = 1.0
SITE_BURST = 64
"""Rate limit for all strangers at one address: enough for fifteen newcomers that wait, and for 64
that start at the same time."""


def answer_hellos(context: Context) -> None:
    """From now on, answer the hello of any peer."""
    run = context.around.run
    by_peer, by_site = Allowance(PEER_BURST, PEER_PER_S), Allowance(SITE_BURST, SITE_PER_S)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        admitted, site = context.admission.admits(peer), context.network.site_of(peer)
        now = context.now()
        if not by_peer.consume(peer, 1, now) or not (admitted or by_site.consume(site, 1, now)):
            raise TryLater("too many requests from your address: try again in a minute")
        request = decode_request(payload)
        if request.join and _note_request(context, peer, request.join):
            return encode_reply(HelloReply(run.to_bytes(), b"", b"", admitted, {}))
        allowlist = context.admission.allowlist
        return encode_reply(
            HelloReply(
                manifest=run.to_bytes(),
                allowlist=allowlist.to_bytes() if allowlist else b"",
                amendments=context.amendments.to_bytes(),
                admitted=admitted,
                peers=_shared_addresses(context) if admitted else {},
                grants=encode_grants(grants) if (grants := context.admission.grants) else b"",
                hand_overs=encoded_hand_overs(context),
            )
        )

    context.network.handle(HELLO_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX, anyone=True)


def _note_request(context: Context, teller: PeerId, signed: bytes) -> bool:
    """Remember a request to join, to show it to the organiser or to forward it. Return whether
    `teller` forwarded it for another peer. Only peers that may train forward requests, and only to
    the nodes of organisers and delegates; other forwarded requests are ignored.

    Raises RemoteProtocolError: the request is malformed, or its signature is wrong."""
    pending = context.join_requests.pending
    connected = context.network.connected()
    # `decisions` tells connected peers that they are admitted, and removes them.
    settled = [peer for peer in pending if context.admission.admits(peer)]
    for gone in [peer for peer in settled if peer not in connected]:
        del pending[gone]
    is_admitted = context.admission.may_train(teller)
    if is_admitted and not context.admission.decides(context.me):
        return False
    request = JoinRequest.from_bytes(signed)
    is_passed_on = request.peer != teller
    if is_passed_on != is_admitted or request.run != context.run:
        return False
    if context.admission.admits(request.peer):
        return is_passed_on
    site = f"through {teller}" if is_passed_on else context.network.site_of(teller)
    if request.peer not in pending:
        if not _has_room(context, site):
            return is_passed_on
        context.peers.report_misbehaviour(
            "join-request", request.peer, note=request.note, told_by=teller
        )
    now, known = context.now(), pending.pop(request.peer, None)
    pending[request.peer] = Applicant(
        asked_s=now,
        site=site,
        signed=signed,
        first_s=known.first_s if known else now,
        note=request.note[:NOTE_CHARACTERS_MAX],
        via=teller if is_passed_on else None,
        device=known_device(request.device),
        reach=known_reach(request.reach),
    )
    context.changes.notify_all()
    return is_passed_on


async def pass_requests_on(context: Context, *, pause_s: float = PASS_ON_S) -> None:
    """Forward requests to join to the connected nodes of organisers and delegates, until cancelled.
    A request that has reached this node through another one is not forwarded again. Pause after
    each round of requests, so that strangers cannot make members flood the organisers."""
    told_s = dict[tuple[PeerId, PeerId], float]()
    pending = context.join_requests.pending
    while True:
        told_s = {pair: told for pair, told in told_s.items() if pair[0] in pending}
        connected = sorted(context.network.connected())
        deciders = [peer for peer in connected if context.admission.decides(peer)]
        due = {other: _to_pass_on(context, told_s, other) for other in deciders}
        if not any(due.values()):
            await context.changes.wait()
            continue
        async with trio.open_nursery() as nursery:
            for other, peer in due.items():
                if peer is not None:
                    told_s[peer, other] = context.now()
                    nursery.start_soon(_pass_on, context, peer, pending[peer].signed, other)
        await trio.sleep(pause_s)


async def _pass_on(context: Context, peer: PeerId, signed: bytes, decider: PeerId) -> None:
    """Forward the request of `peer` to the node `decider`."""
    try:
        await send_hello(context.network, decider, HelloRequest(context.run, signed))
    except (PeerError, RemoteProtocolError) as exc:
        context.journal.write("not-passed-on", peer=peer, code=exc.code, reason=exc.what)


def _to_pass_on(
    context: Context, told_s: Mapping[tuple[PeerId, PeerId], float], decider: PeerId
) -> PeerId | None:
    """Return the peer whose request to join is forwarded to `decider` next, if any. It must still
    repeat its request, which must not have been forwarded recently. Of several such peers, return
    the one whose request was forwarded longest ago, or never."""
    now, never = context.now(), -math.inf
    due = [
        peer
        for peer, each in context.join_requests.pending.items()
        if now < each.asked_s + context.join_requests.forget_s
        and each.via is None
        and told_s.get((peer, decider), never) + PASS_AGAIN_S <= now
        and not context.admission.admits(peer)
        and denial_of(context, peer) is None
    ]
    return min(due, key=lambda peer: told_s.get((peer, decider), never), default=None)


def _has_room(context: Context, site: str) -> bool:
    """Return whether one more request from `site` (see `Applicant`) can be remembered. If there is
    no room, drop the oldest request, unless it has been repeated recently. In that case, drop the
    oldest request of the site with the most requests, unless `site` would then have as many."""
    requests, pending = context.join_requests, context.join_requests.pending
    if len(pending) < requests.pending_max:
        return True
    dropped = next(iter(pending))
    if context.now() < pending[dropped].asked_s + requests.forget_s:
        of = Counter(each.site for each in pending.values())
        most = max(of.values())
        if of[site] + 1 >= most:
            return False
        dropped = next(peer for peer, each in pending.items() if of[each.site] == most)
    del pending[dropped]
    return True


def open_requests(context: Context) -> list[PeerId]:
    """Return the peers whose requests the organiser has not decided yet, as far as this node
    knows. The peer that has waited longest comes first. A delegate cannot admit peers that an
    organiser has revoked, so its node leaves them out."""
    pending, admission = context.join_requests.pending, context.admission
    is_delegate = context.me in admission.delegations and context.me not in admission.organisers
    undecided = (
        peer
        for peer in pending
        if not admission.admits(peer)
        and denial_of(context, peer) is None
        and not (is_delegate and admission.is_revoked(peer))
    )
    return sorted(undecided, key=lambda peer: (pending[peer].first_s, peer))


def waiting_peers(context: Context) -> list[PeerId]:
    """Return the peers that wait for admission; none except on the nodes of organisers and
    delegates."""
    return open_requests(context) if context.admission.decides(context.me) else []


async def answer_requests(context: Context) -> dict[str, object]:
    """Return the answer for `p2ptrain peers`: each undecided request with its note, the seconds
    since its peer first asked, the peer that forwarded it, or "", and what its peer says about its
    device and its reach."""
    pending, now = context.join_requests.pending, context.now()
    told = [
        {
            "peer": peer,
            "note": pending[peer].note,
            "age_s": round(now - pending[peer].first_s, 1),
            "via": pending[peer].via or "",
            "device": pending[peer].device,
            "reach": pending[peer].reach,
        }
        for peer in open_requests(context)
    ]
    return {"requests": told}


def request_line(context: Context, peer: PeerId) -> str:
    """Return the line that shows this request and the command that admits the peer."""
    admit = to_paste(context.home.root, f"peers approve {peer}")
    return f"{label(peer)} asks to join; to admit it, run: {admit}"


def _shared_addresses(context: Context) -> dict[PeerId, tuple[str, ...]]:
    """Return the addresses of this node and of the admitted peers connected to it."""
    told = {context.me: tuple(context.network.addresses())}
    for peer in sorted(context.network.connected()):
        addresses = context.network.addresses_of(peer)
        if addresses and context.admission.admits(peer) and len(told) < PEERS_TOLD_MAX:
            told[peer] = tuple(addresses)
    return told
