"""The delays and time limits that a server applies to a client. The tests use a socket that only
records calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from p2ptrain.encoding import pack
from p2ptrain.errors import ChunkMissing, PeerLost
from p2ptrain.ids import Digest, PeerId
from p2ptrain.swarm.server import IDLE_S, MISS_S, MISS_S_MAX, SEND_S, ChunkServer

ANN = PeerId("ann")
HELD, LACKED = Digest("a" * 64), Digest("b" * 64)


@dataclass
class Client:
    """A socket of a client that requests these chunks, then disconnects. `deadlines` are those that
    the server set.
    """

    asks: deque[Digest]
    peer: PeerId = ANN
    deadlines: list[float] = field(default_factory=list)
    sent: bytearray = field(default_factory=bytearray)

    def set_deadline(self, seconds: float) -> None:
        self.deadlines.append(seconds)

    def receive_frame(self, bytes_max: int) -> bytes:
        if not self.asks:
            raise PeerLost("it disconnected", peer=self.peer)
        return pack({"chunk": bytes.fromhex(self.asks.popleft())})

    def send_all(self, data: bytes | memoryview) -> None:
        self.sent += data


class OneChunk:
    def get_chunk(self, digest: Digest) -> bytes:
        if digest != HELD:
            raise ChunkMissing("it is not here")
        return b"chunk"


def pauses_for(*asks: Digest) -> list[float]:
    paused: list[float] = []
    client = Client(deque(asks))
    ChunkServer(OneChunk(), pause=paused.append)(client, {})  # type: ignore[arg-type]
    return paused


def test_misses_delay_further_answers_until_a_hit() -> None:
    assert pauses_for(LACKED, LACKED, LACKED, HELD, HELD) == [MISS_S, 2 * MISS_S, 3 * MISS_S]
    assert pauses_for(LACKED, HELD, LACKED, LACKED) == [MISS_S, MISS_S]
    assert pauses_for(*[LACKED] * 100)[-1] == MISS_S_MAX


def test_client_has_separate_time_limits_to_ask_and_to_read() -> None:
    client = Client(deque([HELD]))
    ChunkServer(OneChunk())(client, {})  # type: ignore[arg-type]
    assert client.deadlines == [IDLE_S, SEND_S, IDLE_S]
    assert client.sent.endswith(b"chunk")
