"""Pass peers' messages to this node's ledger, with a rate limit on requests for entries.

A request for a page of entries takes about sixty bytes, and the ledger's only task needs about 5 ms
to make the page. A peer that does not get an answer asks another peer and comes back later, so no
reply is sent to a refused request.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import EntriesRequest, Message, Prepare, Propose
from p2ptrain.node.state.context import Context


def receive(context: Context, peer: PeerId, message: Message) -> None:
    """Handle a message of `peer`, which arrived by unicast or by gossip."""
    if _draws_a_page(context, message) and not context.ledger.pages.consume(peer, 1, context.now()):
        context.peers.report_misbehaviour("asks-too-often", peer)
        return
    context.ledger.offer(Received(peer, message))


def _draws_a_page(context: Context, message: Message) -> bool:
    """Return whether the answer is a page of entries. A late Prepare or Propose is also answered
    with a page: the decided entries.
    """
    late = (
        isinstance(message, Prepare | Propose) and message.height <= context.ledger.snapshot.height
    )
    return late or isinstance(message, EntriesRequest)
