"""Pass peers' messages to this node's ledger, and limit how often a peer may request entries.

Entries are sent in pages. A request has about sixty bytes, but making a page costs the ledger's
only task about 5 ms. A request over the limit is not answered. That does not harm an honest peer:
it asks another peer, and asks this node again later.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import EntriesRequest, Message, Prepare, Propose
from p2ptrain.node.state.context import Context


def receive(context: Context, peer: PeerId, message: Message) -> None:
    """Handle a message of `peer`, which arrived by unicast or by gossip. A reader may only ask for
    entries."""
    if context.admission.is_reader(peer) and not isinstance(message, EntriesRequest):
        what = f"a reader sent a message of voters: {type(message).__name__}"
        context.peers.report_misbehaviour("reader-acts", peer, what=what)
        return
    if _draws_a_page(context, message) and not context.ledger.pages.consume(peer, 1, context.now()):
        context.peers.report_misbehaviour("asks-too-often", peer)
        return
    context.ledger.offer(Received(peer, message))


def _draws_a_page(context: Context, message: Message) -> bool:
    """Return whether the answer to `message` is a page of entries. A Prepare or Propose at a height
    that is already decided is also answered with a page."""
    if isinstance(message, Prepare | Propose):
        return message.height <= context.ledger.snapshot.height
    return isinstance(message, EntriesRequest)
