"""Whose word an event is."""

from __future__ import annotations

from p2ptrain.ledger.messages.events import PeerHeight, Received, Tick, author_of
from p2ptrain.ledger.messages.messages import EntriesRequest
from p2ptrain.ledger.messages.peer_reports import PeerDown, ReduceFailed
from p2ptrain.testing.ledgers import peers


def test_what_peers_say_has_an_author_and_what_a_node_finds_out_by_itself_has_none() -> None:
    ann, bob = peers("ann bob")
    said = [Received(ann, EntriesRequest(1)), PeerHeight(ann, 3), ReduceFailed(ann, 0, 0, (bob,))]
    assert [author_of(event) for event in said] == [ann, ann, ann]
    assert [author_of(event) for event in (PeerDown(bob), Tick())] == [None, None]
