"""Answer newcomers: the run, the allowlist and, if they are admitted, where the others are.

A question of a hundred bytes may draw half a megabyte. So each peer gets so many answers, and
strangers of one address together, for identities cost nothing.
"""

from __future__ import annotations

from collections import Counter

from p2ptrain.allowance import Allowance
from p2ptrain.errors import TryLater
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.node.hello import (
    PEERS_TOLD_MAX,
    REQUEST_BYTES_MAX,
    HelloReply,
    decode_request,
    encode_reply,
)
from p2ptrain.node.parts import Asking, Parts
from p2ptrain.node.topics import HELLO_PROTOCOL, Handler
from p2ptrain.pasting import to_paste
from p2ptrain.run import JoinRequest, Run

PENDING_MAX = 256
"""Requests to join that are remembered; more when others are settled, or not asked any more."""

FORGET_S = 60.0
"""A newcomer asks every 15 s: who has asked once from each of many identities makes room."""

PEER_PER_S = 0.5
PEER_BURST = 16
"""A newcomer asks every 15 s, a member that lacks something every two."""

SITE_PER_S = 1.0
SITE_BURST = 64
"""Fifteen newcomers that wait behind one address; and more that start there at the same time."""


def answer_hellos(parts: Parts, run: Run) -> None:
    """From now on serve `run` to whoever asks."""
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
            raise TryLater("too many hellos from here: ask again in a minute")
        request = decode_request(payload)
        if request.join and not admitted:
            _note_request(parts, peer, JoinRequest.from_bytes(request.join))
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


def _note_request(parts: Parts, peer: PeerId, request: JoinRequest) -> None:
    """Keep a request for the organiser to see. What is not this peer's own is ignored."""
    for settled in [known for known in parts.pending if parts.admission.admits(known)]:
        del parts.pending[settled]
    if request.peer != peer or request.run != parts.run:
        return
    site = parts.network.site_of(peer)
    if peer not in parts.pending:
        if not _has_room(parts, site):
            return
        parts.complain("join-request", peer, note=request.note)
    parts.pending.pop(peer, None)
    parts.pending[peer] = Asking(parts.now(), site)
    parts.changes.ring()


def _has_room(parts: Parts, site: str) -> bool:
    """Whether one more of `site` can be remembered. Who has long ceased to ask is forgotten for it,
    or the eldest of the site that most others are of.
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
    """Who waits to be let in: told to the organiser alone, since nobody else can do it."""
    if parts.me != parts.manifest.organiser:
        return []
    return sorted(peer for peer in parts.pending if not parts.admission.admits(peer))


def asks(parts: Parts, peer: PeerId) -> str:
    """The same in words, with what to do."""
    admit = to_paste(parts.home.root, f"allow add {peer}")
    return f"{label(peer)} asks to be let in: {admit}"


def _told(parts: Parts) -> dict[PeerId, tuple[str, ...]]:
    """Peers that are connected here, and ourselves."""
    told = {parts.me: tuple(parts.network.addresses())}
    for peer in sorted(parts.network.connected()):
        addresses = parts.network.addresses_of(peer)
        if addresses and parts.admission.admits(peer) and len(told) < PEERS_TOLD_MAX:
            told[peer] = tuple(addresses)
    return told
