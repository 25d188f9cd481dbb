"""Pass peers' messages to this node's ledger, with a rate limit on pages of entries.

A request for a page of entries has some sixty bytes, and the ledger's only task needs about 5 ms to
make the page. A peer without an answer asks another peer and comes back later, so a refusal needs
no reply.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import EntriesRequest, Message, Prepare, Propose
from p2ptrain.node.state.context import Context


def receive(context: Context, peer: PeerId, message: Message) -> None:
    """Handle a message of `peer`, which came by unicast or by gossip."""
    if _draws_a_page(context, message) and not context.ledger.pages.consume(peer, 1, context.now()):
        context.peers.report_misbehaviour("asks-too-often", peer)
        return
    context.ledger.offer(Received(peer, message))


def _draws_a_page(context: Context, message: Message) -> bool:
    """Return whether the answer is a page. A late proposal counts too: it is answered with the
    entries that were decided."""
    late = (
        isinstance(message, Prepare | Propose) and message.height <= context.ledger.snapshot.height
    )
    return late or isinstance(message, EntriesRequest)
