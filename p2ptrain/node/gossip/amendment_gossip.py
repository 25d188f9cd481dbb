"""Spread amendments by gossip, and request agreed ones that this node lacks with a hello.

If this node lacks an agreed amendment, it asks peers until one sends it. A quorum has it (the
ledger's SPEC.md, S10). Until it arrives, this node does not train, average or apply any outer step
under that amendment. Only admitted peers are asked, voters first. The organiser's signature proves
an amendment.
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
from p2ptrain.node.gossip.hello_client import ask
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.peers.protocol_names import amendments_topic

GOSSIPED_MAX = 16
"""Maximum number of amendments in a gossip message: the newest sixteen take about 8 kB. A hello
reply contains all."""

MISSING = Caution(
    "AMEND-MISSING",
    "the members have agreed on an amendment that this node does not have yet; it is asking for it",
)

OFFER_S = 30.0
SHOWN_MAX = 4
ASK_AGAIN_S = 2.0


async def keep_amended(parts: Parts) -> None:
    """Regularly publish our amendments, and ask for missing ones, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_offer, parts)
        nursery.start_soon(_ask_for_missing, parts)


async def take_amendments(parts: Parts, peer: PeerId, payload: bytes) -> None:
    """Handle amendments that a peer gossiped. Raises RemoteProtocolError, RunMismatch."""
    if parts.amendments.consider(payload, parts.ledger.state.terms):
        await amendments_changed(parts)


async def amendments_changed(parts: Parts) -> None:
    """Tell the network and the ledger that this node has new amendments."""
    numbers = [each.amendment.number for each in parts.amendments.held]
    parts.journal.write("amendments", numbers=numbers)
    await _publish(parts)
    await parts.tell(KnownAmendments(parts.amendments.terms))
    parts.changes.ring()


async def _offer(parts: Parts) -> None:
    while True:
        await _publish(parts)
        await trio.sleep(OFFER_S)


async def _publish(parts: Parts) -> None:
    if payload := parts.amendments.to_bytes(GOSSIPED_MAX):
        await parts.network.publish(amendments_topic(parts.run), payload)


async def _ask_for_missing(parts: Parts) -> None:
    """Ask for all missing agreed amendments, including those for later steps, until cancelled."""
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
    """Return True if nothing is missing after `peer` has sent its amendments, otherwise None.

    All amendments that it sends are stored if the organiser has signed them, even if not needed.
    """
    try:
        told = (await ask(parts.network, peer, HelloRequest(parts.run, b""))).amendments
        if told:
            parts.amendments.consider(told, parts.ledger.state.terms)
    except (PeerError, RemoteProtocolError, RunMismatch) as exc:
        parts.complain("bad-hello", peer, reason=exc.what)
    return True if _missing(parts) is None else None


def in_words(parts: Parts) -> str:
    """Describe the agreed amendments, and those that are not agreed yet or come too late."""
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
