"""A peer can make a server hold only a few chunks in memory, and can request missing chunks only at
a limited rate.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from p2ptrain.dataplane import plain_pair
from p2ptrain.errors import PeerTooSlow
from p2ptrain.ids import PeerId
from p2ptrain.store import CHUNK_BYTES_MAX, MemoryDisk, Store, digest_of
from p2ptrain.swarm import ChunkServer
from p2ptrain.swarm.memory_quota import MemoryQuota
from p2ptrain.swarm.wire import receive_response, send_request

DEADLINE_S = 100.0
ANN, BEN = PeerId("ann"), PeerId("ben")


def hold(stack: ExitStack, quota: MemoryQuota, peer: PeerId) -> str:
    try:
        stack.enter_context(quota.one_for(peer, 0.0))
    except PeerTooSlow:
        return "waits"
    return "holds"


def test_peer_that_does_not_read_blocks_only_its_own_requests() -> None:
    quota = MemoryQuota(chunks_max=3, per_peer_max=2)
    with ExitStack() as held:
        answers = [hold(held, quota, peer) for peer in (ANN, ANN, ANN, BEN, BEN)]
        assert answers == ["holds", "holds", "waits", "holds", "waits"]
    with ExitStack() as again:
        assert [hold(again, quota, peer) for peer in (ANN, BEN, BEN)] == ["holds"] * 3


def test_waiting_request_continues_when_another_one_has_ended() -> None:
    quota, went_on = MemoryQuota(per_peer_max=1), threading.Event()

    def wait() -> None:
        with quota.one_for(ANN, DEADLINE_S):
            went_on.set()

    with quota.one_for(ANN, 0.0):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not went_on.is_set()
    waiting.join(DEADLINE_S)
    assert went_on.is_set()


def test_peer_waits_longer_after_each_request_for_a_missing_chunk() -> None:
    store = Store(Path("/store"), disk=MemoryDisk(), chunk_bytes=1024)
    held, buffer, pauses = store.put_chunk(b"held"), bytearray(CHUNK_BYTES_MAX), list[float]()
    client, sock = plain_pair(PeerId("client"), PeerId("server"), deadline_s=DEADLINE_S)
    server = ChunkServer(store, pause=pauses.append)
    thread = threading.Thread(target=server, args=(sock, {}))
    thread.start()
    found = []
    for digest in (*[digest_of(b"none")] * 100, held, held, digest_of(b"none")):
        send_request(client, digest)
        found.append(receive_response(client, buffer, DEADLINE_S) is not None)
    client.close()
    thread.join(DEADLINE_S)
    sock.close()
    assert found == [False] * 100 + [True, True, False]
    assert pauses == pytest.approx([*[n / 1000 for n in range(1, 50)], *[0.05] * 51])
