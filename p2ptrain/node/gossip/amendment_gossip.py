"""Spread amendments: gossip for new ones, a hello for a peer that lacks an agreed one.

If this node lacks an agreed amendment, it asks until a peer sends it. A quorum has it (the ledger's
SPEC.md, S10). Until then no outer step under that amendment is trained, averaged or applied, so
only admitted peers are asked, voters first. Only the organiser's signature proves an amendment.
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.errors import PeerError, RemoteProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.terms import amendment_fault
from p2ptrain.ledger.chain.values import Terms
from p2ptrain.ledger.messages.peer_reports import KnownAmendments
from p2ptrain.node.gossip.ask_peers import ADMITTED, HELLO_PACE, first_good, whom_to_ask
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.peers.protocol_names import amendments_topic

GOSSIPED_MAX = 16
"""Only the newest are gossiped, some 8 kB for sixteen; a hello reply contains all."""

MISSING = Caution(
    "AMEND-MISSING",
    "this node does not have an amendment yet on which members have agreed; it is asking for it",
)

OFFER_S = 30.0
SHOWN_MAX = 4
ASK_AGAIN_S = 2.0


async def keep_amended(parts: Parts) -> None:
    """Offer our amendments at intervals, and ask for missing ones, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_offer, parts)
        nursery.start_soon(_ask_for_missing, parts)


async def take_amendments(parts: Parts, peer: PeerId, payload: bytes) -> None:
    """Handle amendments gossiped by a peer. Raises RemoteProtocolError, RunMismatch."""
    if parts.amendments.adopt_new(payload, parts.ledger.state.terms):
        await amendments_changed(parts)


async def amendments_changed(parts: Parts) -> None:
    """Tell the network and the ledger that this node has more amendments than before."""
    numbers = [each.amendment.number for each in parts.amendments.held]
    parts.journal.write("amendments", numbers=numbers)
    await _publish(parts)
    await parts.send_event(KnownAmendments(parts.amendments.terms))
    parts.changes.notify_all()


async def _offer(parts: Parts) -> None:
    while True:
        await _publish(parts)
        await trio.sleep(OFFER_S)


async def _publish(parts: Parts) -> None:
    if payload := parts.amendments.to_bytes(GOSSIPED_MAX):
        await parts.network.publish(amendments_topic(parts.run), payload)


async def _ask_for_missing(parts: Parts) -> None:
    """Ask for every agreed amendment that is missing, also for later steps, until cancelled."""
    while True:
        if _missing(parts) is None:
            parts.standing.warnings.pop("amendment", None)
            await parts.changes.wait()
            continue
        parts.standing.warnings["amendment"] = MISSING
        held = parts.amendments.held
        order = whom_to_ask(parts, worst=ADMITTED)
        found = await first_good(order, partial(_has_missing, parts), HELLO_PACE)
        if parts.amendments.held != held:
            await amendments_changed(parts)
        if not found:
            await trio.sleep(ASK_AGAIN_S)


def _missing(parts: Parts) -> Terms | None:
    terms = parts.ledger.state.terms
    return parts.amendments.missing(terms, terms[-1].step) if terms else None


async def _has_missing(parts: Parts, peer: PeerId) -> bool | None:
    """Return True if nothing is missing after `peer` has shown its amendments; else None.

    Amendments that it shows are kept if the organiser has signed them, needed or not.
    """
    try:
        told = (await send_hello(parts.network, peer, HelloRequest(parts.run, b""))).amendments
        if told:
            parts.amendments.adopt_new(told, parts.ledger.state.terms)
    except (PeerError, RemoteProtocolError, RunMismatch) as exc:
        parts.report_misbehaviour("bad-hello", peer, reason=exc.what)
    return True if _missing(parts) is None else None


def in_words(parts: Parts) -> str:
    """Return the agreed amendments in words, and those not agreed or too late to be agreed."""
    state, said = parts.ledger.state, list[str]()
    for terms in state.terms:
        found = parts.amendments.get(terms.digest)
        words = f"from outer step {terms.step} on" if found is None else found.amendment.words
        said.append(f"{terms.number}: {words}" + (" (asking for it)" if found is None else ""))
    for each in sorted(parts.amendments.terms - set(state.terms), key=lambda each: each.number):
        if not (why := amendment_fault(state.terms, state.step, each)):
            said.append(f"{each.number}: from outer step {each.step} on, not agreed yet")
        elif each.number > max((terms.number for terms in state.terms), default=0):
            said.append(f"not agreed: {why}")
    return "; ".join(said[-SHOWN_MAX:])
