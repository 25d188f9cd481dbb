"""go-libp2p and js-libp2p can find a run's nodes: the requests recorded from them still get the
same answers.

`scripts/interop` made the recording with hivemind 1.1.12's p2pd and js-libp2p 3.3.11, after both
had found all three nodes. The script explains how to repeat this.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.ids import PeerId
from p2ptrain.net.kad import KadServer, key_of, providers_in
from p2ptrain.net.records import ProviderRecords

from .conftest import everybody, identity
from .interop import RUN

RECORDED = json.loads((Path(__file__).parent / "dht_frames.json").read_text())
NODES = {identity(number).peer for number in (1, 2, 3)}
KEY = key_of(RUN)


def answerer_of(node: PeerId, answers: list[Message]) -> KadServer:
    """Return the DHT of `node`, which knows the peers that the recorded `answers` name."""
    closer = [told for answer in answers for told in answer.closerPeers]
    neighbours = {PeerId(str(ID(told.id))): [str(Multiaddr(told.addrs[0]))] for told in closer}
    records = ProviderRecords(everybody)
    for answer in answers:
        for peer, addresses in providers_in(answer.SerializeToString(), KEY).items():
            if peer == node:
                records.announce(KEY, addresses)
            else:
                assert records.add(KEY, peer, addresses, 0.0)
    return KadServer(node, records, lambda: neighbours)


@pytest.mark.parametrize("implementation", ["go-libp2p", "js-libp2p"])
def test_requests_of_other_implementations_are_answered_with_the_runs_nodes(
    implementation: str,
) -> None:
    found: set[PeerId] = set()
    for node in NODES:
        frames = [frame for frame in RECORDED[implementation] if frame["node"] == node]
        answers = [Message.FromString(bytes.fromhex(frame["answer"])) for frame in frames]
        answerer = answerer_of(node, answers)
        for frame, recorded in zip(frames, answers, strict=True):
            answer = answerer.answer(PeerId(frame["asker"]), bytes.fromhex(frame["request"]), 0.0)
            assert answer is not None
            assert Message.FromString(answer) == recorded
            found |= providers_in(answer, KEY).keys()
    assert found == NODES
