"""A peer that leaves an attempt does not wait longer than `grace_s`, whatever its neighbours do."""

from __future__ import annotations

from types import SimpleNamespace

from p2ptrain.ids import PeerId
from p2ptrain.ring.abort import tell_neighbours
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.link import Link
from p2ptrain.ring.neighbour import Connection, Neighbour
from p2ptrain.ring.wire import Header, Kind

FLOOD, QUIET = PeerId("flood"), PeerId("quiet")
ENDLESS = 100_000
"""After this many reads, a test concludes that the peer never stops reading."""


class PaperSocket:
    """A fake socket that accepts every send. If it `floods`, there is always more to receive."""

    def __init__(self, *, floods: bool) -> None:
        self.floods, self.reads, self.told = floods, 0, 0

    def fileno(self) -> int:
        return -1  # No descriptor: this socket is always ready, so no thread waits for it.

    def send_some(self, view: memoryview) -> int:
        self.told += len(view)
        return len(view)

    def receive_some(self, view: memoryview) -> int:
        self.reads += self.floods
        assert self.reads < ENDLESS, "the peer never stops reading"
        return len(view) if self.floods else 0

    def finish_sending(self) -> None:
        """Ignore the request: a flooding peer keeps sending."""


def test_flooding_neighbour_does_not_delay_leaving() -> None:
    sockets = {FLOOD: PaperSocket(floods=True), QUIET: PaperSocket(floods=False)}
    verdict = SimpleNamespace(blame=Blame((), "the ledger has moved on"))
    header = Header(Kind.ABORT, 0, 0, 0, 0, step=3, attempt=0, tag=bytes(8))
    attempt = SimpleNamespace(verdict=verdict, grace_s=0.05, header=lambda *_: header)
    neighbours = [
        Neighbour(number, peer, [Connection(0, Link(socket))])  # type: ignore[arg-type]
        for number, (peer, socket) in enumerate(sockets.items())
    ]
    tell_neighbours(attempt, neighbours)  # type: ignore[arg-type]
    assert all(socket.told for socket in sockets.values())
