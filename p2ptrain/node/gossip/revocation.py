"""Notice that the organiser has removed this node from the allowlist.

Peers that have the new list do not talk to this node any more, so the list may never reach it by
gossip. If a peer refuses this node, or the node does not hear from any peer, it asks its connected
peers: every node answers a hello (a request for the allowlist, among other things) from anyone.

An answer counts only if it contains a newer allowlist with the organiser's signature. The node also
asks strangers, after all other peers, because the newer list may have admitted them.
"""

from __future__ import annotations

from functools import partial

from p2ptrain.errors import NotAuthorised, PeerError, RemoteProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.ledger.failure_detector import Colour
from p2ptrain.names import label
from p2ptrain.node.gossip.allowlist_gossip import admission_changed
from p2ptrain.node.gossip.ask_peers import HELLO_PACE, STRANGER, first_good, whom_to_ask
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.state.context import Context
from p2ptrain.peers.hello_messages import HelloRequest


async def notice_revocation(context: Context) -> None:
    """Check regularly until cancelled. Raises NotAuthorised: this node was removed."""
    ask_at, refusals = context.now() + context.timing.revocation_look_s, 0
    while context.admission.admits(context.me):
        await context.changes.wait_calmly(at_most_s=context.timing.revocation_look_s)
        if context.now() < ask_at:
            continue
        ask_at = context.now() + context.timing.revocation_look_s
        if context.ledger.refusals > refusals or is_alone(context):
            refusals = context.ledger.refusals
            order = whom_to_ask(context, worst=STRANGER)
            if await first_good(order, partial(_newer_list_of, context), HELLO_PACE):
                await admission_changed(context)
            if not _may_be_admitted(context):
                break
    organiser = context.manifest.organiser
    raise NotAuthorised(
        f"this node is no longer on the allowlist of run {context.manifest.name!r}",
        code="AUTH-REVOKED",
        evidence=[f"you are   {context.me}", f"organiser {organiser} {label(organiser)}"],
        likely="the organiser has removed it, or the delegate that admitted it is no longer one",
        do="ask the organiser; this node's data is kept",
    )


def _may_be_admitted(context: Context) -> bool:
    """Return whether this node is admitted under the amendments that it has, agreed or not. Peers
    that do not talk to this node any more do not send it the ledger either. So it may never learn
    that the amendment is agreed with which its admission by a delegate has ended."""
    held = (each.amendment for each in context.amendments.held)
    return context.admission.would_admit(context.me, held)


def is_alone(context: Context) -> bool:
    """Return whether this node has not heard from any peer recently."""
    now = context.now()
    return not any(
        context.peers.detector.status(record.peer, now) is Colour.GREEN
        for record in context.peers.table
    )


async def _newer_list_of(context: Context, peer: PeerId) -> bool | None:
    """Ask `peer` for its allowlist. Return True if a newer one was stored, otherwise None."""
    try:
        reply = await send_hello(context.network, peer, HelloRequest(context.run, b""))
        if reply.hand_overs and context.admission.adopt_hand_overs(reply.hand_overs):
            context.amendments.use_run(context.admission.run)
        newer = bool(reply.allowlist) and context.admission.adopt_if_newer(reply.allowlist)
        if reply.amendments:
            context.amendments.adopt_new(reply.amendments, context.ledger.snapshot.terms)
    except (PeerError, RemoteProtocolError, RunMismatch) as exc:
        context.peers.report_misbehaviour("bad-hello", peer, reason=exc.what)
        return None
    return newer or None
