"""Leave an attempt that failed, after telling every neighbour why.

On each connection, an ABORT that names the suspects is sent after the current frame. Then this
module reads and discards all data until the neighbour leaves or is silent for QUIET_S. If this peer
closed the connection at once, the neighbour would suspect it before the true reason arrived.
"""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from p2ptrain.errors import PeerError
from p2ptrain.ids import PeerId
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.link import Link
from p2ptrain.ring.neighbour import Connection, Neighbour
from p2ptrain.ring.wire import ABORT_BYTES_MAX, Kind, decode_blame, encode_blame

QUIET_S = 0.3
"""Seconds of silence, one round trip around the world, after which we do not wait for a neighbour
any longer. By then the neighbour has no data in flight that a close could cut off, and it has
received our reason. Without this limit, a neighbour that is still connecting would make us wait for
the whole `grace_s`."""

LOOK_S = 0.05
"""Maximum seconds between two checks whether anybody is left to wait for."""

_DISCARD_BYTES = 1 << 16

READS_MAX = 64
"""Maximum number of reads in one turn: 4 MiB, far more than arrives while the other connections
have their turn. The limit keeps a neighbour that never stops sending from delaying other neighbours
and our own exit."""


def tell_neighbours(attempt: Attempt, neighbours: Iterable[Neighbour]) -> None:
    """Tell the neighbours why the attempt ended. Wait until they know it, at most for the attempt's
    `grace_s`.
    """
    blame = attempt.verdict.blame
    assert blame is not None
    words = encode_blame(blame)
    ends = time.monotonic() + attempt.grace_s
    leaves = [
        _Leave(attempt, each.peer, connection, words)
        for each in neighbours
        for connection in each.connections
    ]
    here = [leave for leave in leaves if leave.step()]
    while here and time.monotonic() < ends:
        now = time.monotonic()
        if not any(leave.awaited(blame.suspects, now) for leave in here):
            return
        poll = select.poll()
        for link in (leave.connection.link for leave in here):
            if link.socket.fileno() >= 0:  # otherwise the socket was closed, and `step` fails
                interest = select.POLLIN | (select.POLLOUT if link.busy else 0)
                poll.register(link.socket.fileno(), interest)
        poll.poll(max(0.0, min(ends - time.monotonic(), LOOK_S)) * 1000)
        here = [leave for leave in here if leave.step()]


def abort_reason(link: Link, unread: int, members: Collection[PeerId]) -> Blame | None:
    """Return the reason that a neighbour gave before it ended its side of `link`, or None if it did
    not give a reason. The first `unread` bytes are the rest of a segment, and are discarded.

    Raises PeerLost, RemoteProtocolError.
    """
    scratch = memoryview(bytearray(_DISCARD_BYTES))
    while True:
        while unread:
            count = link.socket.receive_some(scratch[:unread])
            if count == 0:
                return None
            unread -= count
        header = link.pull_header()
        if header is None:
            return None
        if header.kind is Kind.ABORT:
            body = scratch[: min(header.length, ABORT_BYTES_MAX)]
            return decode_blame(bytes(body), members) if link.pull_body(body) else None
        unread = header.length


@dataclass(slots=True)
class _Leave:
    """Sends the ABORT on one connection, then reads and discards what still arrives there."""

    attempt: Attempt
    peer: PeerId
    connection: Connection
    words: bytes
    told: bool = False
    ended: bool = False
    heard_at: float = field(default_factory=time.monotonic)

    def awaited(self, suspects: tuple[PeerId, ...], now: float) -> bool:
        """Return whether to wait for this neighbour. We do not wait for suspects, which may be
        frozen.
        """
        quiet = self.ended and now >= self.heard_at + QUIET_S
        return self.peer not in suspects and not quiet

    def step(self) -> bool:
        """Send and receive without blocking. Return whether the link is still open."""
        link, stream = self.connection.link, self.connection.stream
        if self.connection.broken_at is not None:
            return False
        try:
            link.push()
            if not link.busy and not self.told:
                self.told = True
                header = self.attempt.header(Kind.ABORT, stream, 0, 0, len(self.words))
                link.start(header, self.words)
                link.push()
            if not link.busy and not self.ended:
                self.ended = True
                self.heard_at = time.monotonic()
                link.socket.finish_sending()
            scratch = memoryview(bytearray(_DISCARD_BYTES))
            for _ in range(READS_MAX):
                if not link.socket.receive_some(scratch):
                    break
                self.heard_at = time.monotonic()
        except PeerError:
            return False
        return True
