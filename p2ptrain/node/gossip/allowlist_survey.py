"""Ask neighbours for their newest allowlist before the organiser signs another one.

Peers take a list only if its number is higher than that of their own. A home restored from a backup
has an old list, so its next list would reuse a number. Peers that have the other list with that
number would never take it. So the neighbours are asked for theirs first.
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
"""One of these peers may have missed the newest list; hardly all eight."""

ANSWER_S = 5.0
"""A person waits for the answer."""


async def newest_allowlist(context: Context, *, answer_s: float = ANSWER_S) -> dict[str, object]:
    """Adopt the newest list that the neighbours show. Return its number, how many neighbours showed
    a list, the other members of the run, and its voters.

    Raises StoreError: a newer list cannot be kept.
    """
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
    """Return the lists that some connected peers of the run show, unchecked. Voters come first.

    All answers are waited for, up to the deadline: the newest list counts, not the first one.
    """
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
