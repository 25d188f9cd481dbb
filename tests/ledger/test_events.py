"""`author_of` names the peer that an event comes from; events of this node have no author."""

from __future__ import annotations

from p2ptrain.ledger.messages.events import PeerHeight, Received, Tick, author_of
from p2ptrain.ledger.messages.messages import EntriesRequest
from p2ptrain.ledger.messages.peer_reports import PeerDown, ReduceFailed
from p2ptrain.testing.ledgers import peers


def test_reports_of_peers_have_an_author_and_local_events_do_not() -> None:
    ann, bob = peers("ann bob")
    asked = Received(ann, EntriesRequest(1))
    said = (asked, PeerHeight(ann, 3), ReduceFailed(ann, 0, 0, (bob,)))
    assert [author_of(event) for event in said] == [ann, ann, ann]
    assert [author_of(event) for event in (PeerDown(bob), Tick())] == [None, None]
