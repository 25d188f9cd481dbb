"""Spread the grants of delegates by gossip, and keep up with who is a delegate.

A grant counts because of its delegate's signature, and a delegate because of an amendment that the
members have agreed on in their ledger. So it does not matter which peer sends a grant. A grant that
does not count here is dropped: if this node has not yet received the amendment, it gets the grant
again later.

A node that has just started does not know yet what the members agreed on while it was away. Until
its ledger is current once, the amendments that it has count as agreed, because their signers are
the organisers. Otherwise a volunteer that a delegate has admitted would consider itself revoked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import trio

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.terms import in_force
from p2ptrain.node.gossip.allowlist_gossip import apply_admission
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import grants_topic
from p2ptrain.run import Amendment, SignedGrant
from p2ptrain.run.grant import encode_grants

GOSSIPED_MAX = 32
"""Maximum number of grants in a gossip message, about 11 kB. A node publishes its grants in turn;
newcomers get all of them in the reply to their first request."""

OFFER_S = 30.0
"""Seconds between two publications."""


async def keep_grants(context: Context) -> None:
    """Regularly publish grants, and follow who is a delegate, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_offer, context)
        nursery.start_soon(_follow_delegations, context)


async def take_grants(context: Context, peer: PeerId, payload: bytes) -> None:
    """Handle grants that a peer gossiped. Raises RemoteProtocolError, RunMismatch."""
    before = context.admission.grants
    if context.admission.adopt_grants(payload):
        await grants_changed(context, before)


async def grants_changed(context: Context, before: tuple[SignedGrant, ...]) -> None:
    """Publish the grants that this node did not have `before`, and apply them."""
    new = [each for each in context.admission.grants if each not in before]
    for each in new:
        context.journal.write(
            "grant", peer=each.grant.peer, role=each.grant.role, delegate=each.delegate
        )
    await _publish(context, new)
    await apply_admission(context)


async def _offer(context: Context) -> None:
    for first in cycle(range(0, 1 << 20, GOSSIPED_MAX)):
        held = _counting(context)
        await _publish(context, held[first % max(1, len(held)) :])
        await trio.sleep(OFFER_S)


def _counting(context: Context) -> list[SignedGrant]:
    delegations = context.admission.delegations
    return [each for each in context.admission.grants if each.counts(delegations)]


async def _publish(context: Context, grants: list[SignedGrant]) -> None:
    if grants:
        payload = encode_grants(grants[:GOSSIPED_MAX])
        await context.network.publish(grants_topic(context.run), payload)


async def _follow_delegations(context: Context) -> None:
    is_current = False
    while True:
        seen = context.changes.count
        is_current = is_current or context.peers.ledger_is_current()
        if context.admission.set_agreed(list(agreed_amendments(context, is_current))):
            names = sorted(context.admission.delegations)
            context.journal.write("delegates", peers=names)
            await apply_admission(context)
        await context.changes.wait_calmly(since=seen)


def agreed_amendments(context: Context, is_current: bool) -> Iterator[Amendment]:
    """Yield the amendments in force, as far as this node has them. If the ledger is not current
    yet, also yield those that the members may have agreed on."""
    state, held = context.ledger.snapshot, context.amendments
    for terms in in_force(state.terms, state.step) if is_current else state.terms:
        if (found := held.get(terms.digest)) is not None:
            yield found.amendment
    if not is_current:
        last = max((terms.number for terms in state.terms), default=0)
        yield from (each.amendment for each in held.held if each.amendment.number > last)
