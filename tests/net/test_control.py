"""A neighbour's control messages can make a node do only a bounded amount of work."""

from __future__ import annotations

import pytest
from libp2p.pubsub.pb import rpc_pb2

from p2ptrain.net.gossip.control import ANSWER_BYTES_MAX, IDS_MAX, bounded

OURS = {"heartbeats", "ledger"}
LONGEST = rpc_pb2.Message(data=bytes(480 << 10))
KEPT = {bytes([number]) * 46: LONGEST for number in range(170, 180)}


def asking(*names: bytes) -> list[bytes]:
    """Return the message ids, in hex, that `bounded` keeps of a request for `names`."""
    control = rpc_pb2.ControlMessage(iwant=[rpc_pb2.ControlIWant(messageIDs=names)])
    return [name for each in bounded(control, OURS, KEPT.get).iwant for name in each.messageIDs]


def test_message_requested_many_times_is_sent_once() -> None:
    name = next(iter(KEPT)).hex().encode()
    assert asking(*[name] * 10_000) == [name]
    assert asking(name, name.upper(), name[:2].upper() + name[2:]) == [name]


def test_answer_fits_one_frame() -> None:
    assert len(asking(*(name.hex().encode() for name in KEPT))) == 2
    assert 2 * LONGEST.ByteSize() <= ANSWER_BYTES_MAX < 3 * LONGEST.ByteSize()


def test_number_of_looked_up_message_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[bytes] = []
    names = [b"%04x" % number for number in range(IDS_MAX)]
    asked = [rpc_pb2.ControlIWant(messageIDs=names) for _ in range(3)]
    bounded(rpc_pb2.ControlMessage(iwant=asked), OURS, looked_up.append)
    assert len(looked_up) == IDS_MAX
    assert asking(b"abc", b"ffff") == [], "abc is not a valid message id, and ffff is unknown"


def test_one_entry_of_each_kind_is_read_for_each_of_our_topics() -> None:
    topics = [*(str(number) for number in range(50)), "ledger", "ledger", "heartbeats"]
    stranger = rpc_pb2.PeerInfo(peerID=b"somebody")
    control = rpc_pb2.ControlMessage(
        ihave=[rpc_pb2.ControlIHave(topicID=t, messageIDs=[b"aa"] * 2 * IDS_MAX) for t in topics],
        graft=[rpc_pb2.ControlGraft(topicID=t) for t in topics],
        prune=[rpc_pb2.ControlPrune(topicID=t, backoff=5, peers=[stranger]) for t in topics],
    )
    heeded = bounded(control, OURS, KEPT.get)
    for kind in (heeded.ihave, heeded.graft, heeded.prune):
        assert [told.topicID for told in kind] == ["ledger", "heartbeats"]
    assert all(len(told.messageIDs) == IDS_MAX for told in heeded.ihave)
    assert all((told.backoff, list(told.peers)) == (5, []) for told in heeded.prune)


def test_empty_request_is_not_added_to_a_frame_without_requests() -> None:
    """libp2p accepts at most ten requests a second from one peer, and counts empty ones too."""
    grafting = rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID="ledger")])
    for control in (grafting, rpc_pb2.ControlMessage()):
        assert bounded(control, OURS, KEPT.get) == control
