"""Tell peers that wait for admission, within seconds, what the organiser has decided.

    organiser's node ── denial ──► member ── denial ──► volunteer
    any member with a newer allowlist ── "ask again" ──► volunteer

A volunteer may be connected to members only. So the organiser's node sends a denial to the member
that forwarded the request, and the member passes it on. Allowlists spread by gossip, so every
member can tell the volunteers that it knows.

A denial counts because of the organiser's signature, whoever delivers it. A member keeps it only
while the denied peer waits. "Ask again" does not prove anything: it is only a reason to ask.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial

import trio

from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import DECISION_PROTOCOL
from p2ptrain.run import SignedDenial, load_denials
from p2ptrain.run.denial import DENIAL_BYTES_MAX

TELL_S = 5.0
"""Deadline in seconds for one message. A volunteer that misses it asks again itself."""

AT_ONCE = 16
"""Maximum number of messages under way. The others wait in line: at most one for each waiting peer
and request, and strangers can only make a few requests per minute (`hello_server`)."""

ASK_AGAIN = b""

Told = tuple[float, bytes]
"""When the peer last asked, and what it was told since."""


def denial_of(context: Context, peer: PeerId) -> SignedDenial | None:
    """Return the denial of `peer` that holds now, if this node knows one."""
    found = context.join_requests.denials.get(peer)
    return found if found is not None and found.denial.holds(time.time()) else None


def reload_denials(context: Context) -> int:
    """Read the denials that `p2ptrain peers deny` has written into the organiser's home. Return
    their number.

    Raises ConfigError: the file is damaged."""
    found = load_denials(context.home.denials, context.admission.run)
    context.join_requests.denials = {each.denial.peer: each for each in found}
    context.changes.notify_all()
    return len(found)


def take_decisions(context: Context) -> None:
    """From now on, keep the denials that admitted peers send for peers that wait here."""

    async def take(peer: PeerId, payload: bytes) -> bytes:
        requests = context.join_requests
        if payload == ASK_AGAIN:
            return b""
        fresh = SignedDenial.from_bytes(payload, context.admission.run)
        waiting = {
            each: known
            for each, known in requests.denials.items()
            if each in requests.pending or known.signed.signer == context.me
        }
        denied = fresh.denial.peer
        known = waiting.get(denied)
        newer = known is None or known.denial.created_unix < fresh.denial.created_unix
        if denied in requests.pending and newer:
            waiting[denied] = fresh
        requests.denials = waiting
        context.changes.notify_all()
        return b""

    context.network.handle(DECISION_PROTOCOL, take, bytes_max=DENIAL_BYTES_MAX)


async def tell_decisions(context: Context) -> None:
    """Tell each waiting peer what the organiser has decided, once for each of its requests, until
    cancelled."""
    told: dict[PeerId, Told] = {}
    room = trio.Semaphore(AT_ONCE)
    if context.me in context.admission.organisers:
        reload_denials(context)
    async with trio.open_nursery() as nursery:
        while True:
            pending = context.join_requests.pending
            told = {peer: news for peer, news in told.items() if peer in pending}
            due = list(_due(context, told))
            for applicant, whom, news in due:
                told[applicant] = pending[applicant].asked_s, news
                if news == ASK_AGAIN:
                    del pending[applicant]
                nursery.start_soon(partial(_tell, context, whom, news, room))
            await context.changes.wait_calmly()


def _due(context: Context, told: Mapping[PeerId, Told]) -> Iterator[tuple[PeerId, PeerId, bytes]]:
    """Yield the applicants with news, the peer to send the news to, and the message."""
    connected = context.network.connected()
    for peer, applicant in context.join_requests.pending.items():
        denial = denial_of(context, peer)
        if context.admission.admits(peer):
            whom, news = peer, ASK_AGAIN
        elif denial is not None:
            whom = peer if applicant.via is None or peer in connected else applicant.via
            news = denial.to_bytes()
        else:
            continue
        if whom in connected and told.get(peer) != (applicant.asked_s, news):
            yield peer, whom, news


async def _tell(context: Context, whom: PeerId, news: bytes, room: trio.Semaphore) -> None:
    async with room:
        try:
            await context.network.request(
                whom, DECISION_PROTOCOL, news, deadline_s=TELL_S, bytes_max=DENIAL_BYTES_MAX
            )
        except (PeerError, RemoteProtocolError) as exc:
            context.journal.write("not-told", peer=whom, code=exc.code, reason=exc.what)
