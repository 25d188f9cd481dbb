"""Forward the organiser's allowlist by gossip, and apply a newer one that arrives.

A short list is published whole. Of a longer list, only a notice with the list's number is
published, and peers that lack the list request it.
"""

from __future__ import annotations

import trio

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.peer_reports import AllowedPeers
from p2ptrain.node.gossip.allowlist_notices import (
    NOTICE_BYTES_MAX,
    AllowlistNotices,
    Question,
    notice_of,
    question_about,
)
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import allowlist_topic

ALLOWLIST_S = 30.0
"""Seconds between two publications of our list."""

ALLOWLIST_BYTES_MAX = 32 << 10
"""Maximum bytes of a list that is published whole. A longer one is not, because gossip would send
it many times."""


async def take_allowlist(
    nursery: trio.Nursery, notices: AllowlistNotices, context: Context, peer: PeerId, payload: bytes
) -> None:
    """Handle an allowlist or a notice. A task in `nursery` requests a list that this node lacks."""
    if len(payload) > NOTICE_BYTES_MAX:
        if context.admission.adopt_if_newer(payload):
            await admission_changed(context)
    elif (question := question_about(context, notices, peer, payload)) is not None:
        nursery.start_soon(_ask_for_list, context, question)


async def _ask_for_list(context: Context, question: Question) -> None:
    if await question():
        await admission_changed(context)


async def admission_changed(context: Context) -> None:
    """Pass a newer allowlist on, and apply it."""
    allowlist = context.admission.allowlist
    assert allowlist is not None
    context.journal.write("allowlist", sequence=allowlist.allowlist.sequence)
    # First publish, then drop the peers that are no longer listed: in this order, they also receive
    # the new list.
    await _publish_allowlist(context)
    await apply_admission(context)


async def apply_admission(context: Context) -> None:
    """Tell the network and the ledger which peers are admitted now."""
    context.network.refresh_admission()
    for view in context.peers.table:
        if not context.admission.admits(view.peer):
            context.plane.listener.drop(view.peer)
            # This node now ignores the peer's heartbeats. Report the peer as lost at once, so that
            # no task waits for the failure detector to notice its silence.
            context.peers.detector.hint_lost(view.peer, context.now())
    await context.ledger.submit(AllowedPeers(context.admission.members_allowed()))
    context.changes.notify_all()


async def offer_allowlist(context: Context) -> None:
    """Publish our list every ALLOWLIST_S, for peers that missed it, until cancelled."""
    while True:
        await _publish_allowlist(context)
        await trio.sleep(ALLOWLIST_S)


async def _publish_allowlist(context: Context) -> None:
    allowlist = context.admission.allowlist
    if allowlist is None:
        return
    payload = allowlist.to_bytes()
    if len(payload) > ALLOWLIST_BYTES_MAX:
        payload = notice_of(context, allowlist)
    await context.network.publish(allowlist_topic(context.run), payload)
