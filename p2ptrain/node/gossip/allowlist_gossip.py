"""Pass the organiser's allowlist on by gossip, and apply a newer one.

A short list is published whole. A longer list is only announced, and peers that lack it request it.
"""

from __future__ import annotations

import trio

from p2ptrain.encoding import pack
from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.peer_reports import AllowedPeers
from p2ptrain.node.gossip.allowlist_notices import (
    NOTICE_BYTES_MAX,
    AllowlistNotices,
    Question,
    question_about,
)
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import allowlist_topic

ALLOWLIST_S = 30.0

ALLOWLIST_BYTES_MAX = 32 << 10
"""Maximum bytes of a list that is published whole. A longer list is only announced, and peers that
lack it request it, because gossip would send it many times."""


async def take_allowlist(
    nursery: trio.Nursery, notices: AllowlistNotices, context: Context, peer: PeerId, payload: bytes
) -> None:
    """Handle a list, or the notice of one. Requests for a list that was only announced run in
    `nursery`.
    """
    if len(payload) > NOTICE_BYTES_MAX:
        if context.admission.adopt_if_newer(payload):
            await admission_changed(context)
    elif (question := question_about(context, notices, peer, payload)) is not None:
        nursery.start_soon(_ask_for_list, context, question)


async def _ask_for_list(context: Context, question: Question) -> None:
    if await question():
        await admission_changed(context)


async def admission_changed(context: Context) -> None:
    """Apply a newer allowlist: tell the network and the ledger, and pass it on."""
    allowlist = context.admission.allowlist
    assert allowlist is not None
    context.journal.write("allowlist", sequence=allowlist.allowlist.sequence)
    # Publish first and then drop the peers that are no longer listed, so that they also receive the
    # new list.
    await _publish_allowlist(context)
    context.network.refresh_admission()
    for view in context.peers.table:
        if not context.admission.admits(view.peer):
            context.plane.listener.drop(view.peer)
            # We no longer accept this peer's heartbeats. Report it as lost now, so that nobody
            # waits until the failure detector notices.
            context.peers.detector.hint_lost(view.peer, context.now())
    await context.ledger.submit(AllowedPeers(context.admission.members_allowed()))
    context.changes.notify_all()


async def offer_allowlist(context: Context) -> None:
    """Publish our list at intervals, for peers that missed it, until cancelled."""
    while True:
        await _publish_allowlist(context)
        await trio.sleep(ALLOWLIST_S)


async def _publish_allowlist(context: Context) -> None:
    allowlist = context.admission.allowlist
    if allowlist is None:
        return
    payload = allowlist.to_bytes()
    if len(payload) > ALLOWLIST_BYTES_MAX:
        payload = pack({"sequence": allowlist.allowlist.sequence})
    await context.network.publish(allowlist_topic(context.run), payload)
