"""Notice that the organiser has removed this node from the allowlist.

Peers that know this do not talk to this node any more, so the new list may never reach it by
gossip. If a peer refuses this node, or no peer is heard, the node asks connected peers: every node
answers a hello from anyone.

An answer counts only if it contains a newer allowlist with the organiser's signature. The node also
asks strangers, after all others, because the newer list may have admitted them.
"""

from __future__ import annotations

from functools import partial

from p2ptrain.errors import NotAuthorised, PeerError, RemoteProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.ledger.failure_detector import Colour
from p2ptrain.names import label
from p2ptrain.node.gossip.ask_peers import HELLO_PACE, STRANGER, first_good, whom_to_ask
from p2ptrain.node.gossip.gossip import admission_changed
from p2ptrain.node.gossip.hello_client import ask
from p2ptrain.node.state.context import Parts
from p2ptrain.peers.hello_messages import HelloRequest

LOOK_EVERY_S = 5.0


async def notice_revocation(parts: Parts) -> None:
    """Check until cancelled.

    Raises:
        NotAuthorised: this node is not on the newest list.
    """
    ask_at = parts.now() + LOOK_EVERY_S
    while parts.admission.admits(parts.me):
        await parts.changes.wait(at_most_s=LOOK_EVERY_S)
        if parts.now() < ask_at:
            continue
        ask_at = parts.now() + LOOK_EVERY_S
        if parts.standing.refused or is_alone(parts):
            parts.standing.refused = False
            await _ask_everybody(parts)
    organiser = parts.manifest.organiser
    raise NotAuthorised(
        f"this node is no longer on the allowlist of run {parts.manifest.name!r}",
        code="AUTH-REVOKED",
        evidence=[f"you are   {parts.me}", f"organiser {organiser} {label(organiser)}"],
        likely="the organiser has removed it",
        do="ask the organiser; this node's data is kept",
    )


def is_alone(parts: Parts) -> bool:
    """Return whether no peer has been heard recently. In a healthy run, at least one always has."""
    now = parts.now()
    return not any(parts.detector.status(view.peer, now) is Colour.GREEN for view in parts.peers)


async def _ask_everybody(parts: Parts) -> None:
    """Adopt the first newer list that a connected peer sends."""
    order = whom_to_ask(parts, worst=STRANGER)
    if await first_good(order, partial(_newer_list_of, parts), HELLO_PACE):
        await admission_changed(parts)


async def _newer_list_of(parts: Parts, peer: PeerId) -> bool | None:
    """Return True if `peer` sent a newer list, which is now stored; None if it did not."""
    try:
        reply = await ask(parts.network, peer, HelloRequest(parts.run, b""))
        newer = bool(reply.allowlist) and parts.admission.consider(reply.allowlist)
    except (PeerError, RemoteProtocolError, RunMismatch) as exc:
        parts.complain("bad-hello", peer, reason=exc.what)
        return None
    return newer or None
