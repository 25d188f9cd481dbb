"""Pass peers' messages to this node's ledger, with a rate limit on pages of entries.

A request for a page of entries has some sixty bytes, and the ledger's only task needs about 5 ms to
make the page. A peer without an answer asks another peer and comes back later, so a refusal needs
no reply.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import EntriesRequest, Message, Prepare, Propose
from p2ptrain.node.state.context import Parts


def receive(parts: Parts, peer: PeerId, message: Message) -> None:
    """Handle a message of `peer`, which came by unicast or by gossip."""
    if _draws_a_page(parts, message) and not parts.pages.consume(peer, 1, parts.now()):
        parts.report_misbehaviour("asks-too-often", peer)
        return
    parts.send_event_nowait(Received(peer, message))


def _draws_a_page(parts: Parts, message: Message) -> bool:
    """Return whether the answer is a page. A late proposal counts too: it is answered with the
    entries that were decided."""
    late = isinstance(message, Prepare | Propose) and message.height <= parts.ledger.state.height
    return late or isinstance(message, EntriesRequest)
