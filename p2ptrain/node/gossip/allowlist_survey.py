"""Ask neighbours for their newest allowlist before the organiser signs the next one.

A peer accepts a list only if its number is higher than that of the peer's current list.
If the organiser's home (the folder with the node's files) was restored from a backup, its list is
old, and the next list signed there would reuse a number. Peers that already have a different list
with this number would never accept the new list. So the neighbours are asked for their lists first.
"""

from __future__ import annotations

import trio

from p2ptrain.errors import PeerError, RemoteProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.allowlist_gossip import admission_changed
from p2ptrain.node.gossip.ask_peers import ADMITTED, whom_to_ask
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.state.context import Context
from p2ptrain.peers.hello_messages import HelloRequest

ASKED_MAX = 8
"""Maximum number of peers asked. It is unlikely that all of them have missed the newest list."""

ANSWER_S = 5.0
"""Deadline in seconds. It is short, because a user waits for the answer."""


async def newest_allowlist(context: Context, *, answer_s: float = ANSWER_S) -> dict[str, object]:
    """Adopt the newest list that the neighbours have. Return the answer for `p2ptrain allow`: the
    list's number, how many neighbours sent a valid list, the run's other members and its voters.

    Raises StoreError: a newer list cannot be stored."""
    newer, shown = context.admission.reload(), await _shown(context, answer_s)
    heard = 0
    for peer, data in shown.items():
        try:
            newer |= context.admission.adopt_if_newer(data)
            heard += 1
        except (RemoteProtocolError, RunMismatch) as exc:
            context.peers.report_misbehaviour("bad-hello", peer, reason=exc.what)
    if newer:
        await admission_changed(context)
    held, state = context.admission.allowlist, context.ledger.snapshot
    return {
        "sequence": held.allowlist.sequence if held else 0,
        "heard": heard,
        "others": sorted(set(state.members) - {context.me}),
        "voters": list(state.voters),
    }


async def _shown(context: Context, answer_s: float) -> dict[PeerId, bytes]:
    """Return the unchecked lists of up to ASKED_MAX connected peers of the run, voters first.

    Wait for all answers until the deadline, since the newest list is wanted, not the first."""
    shown: dict[PeerId, bytes] = {}

    async def ask_one(peer: PeerId) -> None:
        try:
            reply = await send_hello(context.network, peer, HelloRequest(context.run, b""))
        except (PeerError, RemoteProtocolError) as exc:
            context.peers.report_misbehaviour("bad-hello", peer, reason=exc.what)
            return
        if reply.allowlist:
            shown[peer] = reply.allowlist

    with trio.move_on_after(answer_s):
        async with trio.open_nursery() as nursery:
            for peer in whom_to_ask(context, worst=ADMITTED)[:ASKED_MAX]:
                nursery.start_soon(ask_one, peer)
    return shown
