"""A node keeps the newest heartbeat of each peer. It refuses malformed endpoints, and the number of
peers is bounded."""

from __future__ import annotations

import pytest

from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.peers.peer_table import PeerTable
from tests.node.rig import ANN, BOB, heartbeat, somebody

RUN = RunId("a" * 64)
CERTIFICATE = Credentials.create(ANN).certificate_der
ENDPOINT = Endpoint(ANN.peer, "127.0.0.1", 4000, CERTIFICATE)


def test_only_a_newer_heartbeat_replaces_the_kept_one() -> None:
    table = PeerTable()
    assert table.note_heartbeat(
        ANN.peer, heartbeat(RUN, serial=3, endpoint=pack(ENDPOINT.to_wire())), 1.0
    )
    assert table.note_heartbeat(ANN.peer, heartbeat(RUN, serial=3), 2.0) is None
    assert table.note_heartbeat(ANN.peer, heartbeat(RUN, serial=2), 2.0) is None
    record = table.get(ANN.peer)
    assert record is not None
    assert (record.heard_s, record.endpoint) == (1.0, ENDPOINT)
    assert table.endpoint(ANN.peer) == ENDPOINT
    assert table.note_heartbeat(ANN.peer, heartbeat(RUN, incarnation=2, serial=0), 3.0)
    assert table.endpoint(ANN.peer) is None


@pytest.mark.parametrize(
    "wire",
    [
        b"noise",
        pack({}),
        pack(ENDPOINT.to_wire() | {"host": "a.host.name"}),
        pack(ENDPOINT.to_wire() | {"port": 0}),
        pack(ENDPOINT.to_wire() | {"certificate": b""}),
    ],
)
def test_malformed_endpoint_is_refused(wire: bytes) -> None:
    table = PeerTable()
    with pytest.raises(RemoteProtocolError):
        table.note_heartbeat(ANN.peer, heartbeat(RUN, endpoint=wire), 1.0)
    assert table.get(ANN.peer) is None


def test_peer_cannot_announce_an_endpoint_for_a_different_peer() -> None:
    table = PeerTable()
    with pytest.raises(RemoteProtocolError, match="endpoint of a different peer") as caught:
        table.note_heartbeat(BOB.peer, heartbeat(RUN, endpoint=pack(ENDPOINT.to_wire())), 1.0)
    assert caught.value.peer == BOB.peer
    assert table.endpoint(BOB.peer) is None


def test_full_table_refuses_new_peers_and_updates_known_ones() -> None:
    table = PeerTable(others_max=3)
    taken = [
        table.note_heartbeat(somebody(n).peer, heartbeat(RUN), 1.0) is not None for n in range(5)
    ]
    assert taken == [True, True, True, False, False]
    assert table.note_heartbeat(somebody(0).peer, heartbeat(RUN, serial=2), 2.0)
    table.forget(somebody(1).peer)
    table.forget(PeerId("never met"))
    assert table.note_heartbeat(somebody(4).peer, heartbeat(RUN), 2.0)
    assert len(table) == 3
    assert {record.peer for record in table} == {somebody(n).peer for n in (0, 2, 4)}


def test_heartbeats_of_many_strangers_leave_room_for_members() -> None:
    table = PeerTable({ANN.peer, BOB.peer}.__contains__, peers_max=4, others_max=3)
    for number in range(5):
        table.note_heartbeat(somebody(number).peer, heartbeat(RUN), 1.0)
    assert len(table) == 3
    assert table.note_heartbeat(ANN.peer, heartbeat(RUN), 1.0)
    assert table.note_heartbeat(BOB.peer, heartbeat(RUN), 1.0) is None
