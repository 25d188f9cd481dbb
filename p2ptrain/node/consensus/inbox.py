"""What peers say to this node's ledger, on its way there: who asks too much is not heard.

A page of entries is asked for with some sixty bytes, and takes the ledger's only task about 5 ms to
make. Whoever is not answered asks somebody else, and comes back; nobody need be told.
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import EntriesRequest, Message, Prepare, Propose
from p2ptrain.node.state.context import Parts


def receive(parts: Parts, peer: PeerId, message: Message) -> None:
    """`peer` has sent this, by letter or by gossip."""
    if _draws_a_page(parts, message) and not parts.pages.take(peer, 1, parts.now()):
        parts.complain("asks-too-often", peer)
        return
    parts.hear(Received(peer, message))


def _draws_a_page(parts: Parts, message: Message) -> bool:
    """Whoever proposes what is decided already is shown that, as if it had asked."""
    late = isinstance(message, Prepare | Propose) and message.height <= parts.ledger.state.height
    return late or isinstance(message, EntriesRequest)
