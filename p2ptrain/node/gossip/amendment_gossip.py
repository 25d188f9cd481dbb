"""Spread amendments (signed changes of the run's terms) by gossip, and request missing ones.

If this node lacks an amendment on which the members have agreed, it asks peers until one sends it.
A quorum has the amendment (the ledger's SPEC.md, S10). Until it arrives, this node does not train,
average or apply any outer step under that amendment. Only admitted peers are asked, voters first.
The organiser's signature proves that an amendment is genuine.
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
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.peers.protocol_names import amendments_topic

GOSSIPED_MAX = 16
"""A gossip message contains at most this many amendments, the newest ones. Sixteen take about 8 kB.
A peer that lacks older ones requests them; the reply contains all amendments."""

MISSING = Caution(
    "AMEND-MISSING",
    "this node lacks an amendment on which the members have agreed, and is asking peers for it",
)

OFFER_S = 30.0
"""Seconds between two publications of our amendments."""

SHOWN_MAX = 4
"""The status shows at most this many amendments, the newest ones."""


async def keep_amended(context: Context) -> None:
    """Regularly publish our amendments, and ask for missing ones, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_offer, context)
        nursery.start_soon(_ask_for_missing, context)


async def take_amendments(context: Context, peer: PeerId, payload: bytes) -> None:
    """Handle amendments that a peer gossiped. Raises RemoteProtocolError, RunMismatch."""
    if context.amendments.adopt_new(payload, context.ledger.snapshot.terms):
        await amendments_changed(context)


async def amendments_changed(context: Context) -> None:
    """Publish this node's amendments, which have changed, and pass them to the ledger."""
    numbers = [each.amendment.number for each in context.amendments.held]
    context.journal.write("amendments", numbers=numbers)
    await _publish(context)
    await context.ledger.submit(KnownAmendments(context.amendments.terms))
    context.changes.notify_all()


async def _offer(context: Context) -> None:
    while True:
        await _publish(context)
        await trio.sleep(OFFER_S)


async def _publish(context: Context) -> None:
    if payload := context.amendments.to_bytes(GOSSIPED_MAX):
        await context.network.publish(amendments_topic(context.run), payload)


async def _ask_for_missing(context: Context) -> None:
    """Ask for all missing agreed amendments, including those for later steps, until cancelled."""
    while True:
        if _missing(context) is None:
            context.alerts.clear("amendment")
            await context.changes.wait_calmly()
            continue
        context.alerts.show("amendment", MISSING)
        held = context.amendments.held
        order = whom_to_ask(context, worst=ADMITTED)
        found = await first_good(order, partial(_has_missing, context), HELLO_PACE)
        if context.amendments.held != held:
            await amendments_changed(context)
        if not found:
            await trio.sleep(context.timing.amendment_ask_s)


def _missing(context: Context) -> Terms | None:
    terms = context.ledger.snapshot.terms
    return context.amendments.missing(terms, terms[-1].step) if terms else None


async def _has_missing(context: Context, peer: PeerId) -> bool | None:
    """Ask `peer` for its amendments. Return True if none is missing afterwards, otherwise None.

    Every amendment in the reply that bears the organiser's signature is stored, even if this node
    does not need it."""
    try:
        told = (await send_hello(context.network, peer, HelloRequest(context.run, b""))).amendments
        if told:
            context.amendments.adopt_new(told, context.ledger.snapshot.terms)
    except (PeerError, RemoteProtocolError, RunMismatch) as exc:
        context.peers.report_misbehaviour("bad-hello", peer, reason=exc.what)
    return True if _missing(context) is None else None


def in_words(context: Context) -> str:
    """Describe, for the status, the agreed amendments, and those that are not agreed yet or can no
    longer be agreed."""
    state, said = context.ledger.snapshot, list[str]()
    for terms in state.terms:
        found = context.amendments.get(terms.digest)
        words = f"from outer step {terms.step} on" if found is None else found.amendment.words
        said.append(f"{terms.number}: {words}" + (" (asking for it)" if found is None else ""))
    for each in sorted(context.amendments.terms - set(state.terms), key=lambda each: each.number):
        if not (why := amendment_fault(state.terms, state.step, each)):
            said.append(f"{each.number}: from outer step {each.step} on, not agreed yet")
        elif each.number > max((terms.number for terms in state.terms), default=0):
            said.append(f"not agreed: {why}")
    return "; ".join(said[-SHOWN_MAX:])
