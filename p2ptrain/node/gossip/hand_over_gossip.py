"""Spread hand-overs of organisers' keys by gossip. Their signatures prove them, whoever sends them.

A list that a new key has signed is refused until its hand-over has arrived. Lists and hand-overs
are published again and again, so the list is accepted later.
"""

from __future__ import annotations

import trio

from p2ptrain.encoding import pack
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.allowlist_gossip import apply_admission
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import hand_overs_topic

OFFER_S = 30.0
"""Seconds between two publications. Most runs do not have hand-overs, and publish nothing."""


async def offer_hand_overs(context: Context) -> None:
    """Publish our hand-overs every OFFER_S, for peers that missed them, until cancelled."""
    while True:
        await _publish(context)
        await trio.sleep(OFFER_S)


async def take_hand_overs(context: Context, peer: PeerId, payload: bytes) -> None:
    """Handle hand-overs that a peer gossiped. Raises RemoteProtocolError."""
    if context.admission.adopt_hand_overs(payload):
        await hand_overs_changed(context)


async def hand_overs_changed(context: Context) -> None:
    """Apply new hand-overs: use the new keys from now on, and pass the hand-overs on."""
    run = context.admission.run
    context.amendments.use_run(run)
    context.journal.write("organisers", keys=list(run.organisers))
    await _publish(context)
    await apply_admission(context)


def encoded_hand_overs(context: Context) -> bytes:
    """Return our hand-overs as peers receive them; empty if there are none."""
    known = context.admission.run.hand_overs
    return pack([each.to_bytes() for each in known]) if known else b""


async def _publish(context: Context) -> None:
    if payload := encoded_hand_overs(context):
        await context.network.publish(hand_overs_topic(context.run), payload)
