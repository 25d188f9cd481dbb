"""Leave an attempt that failed, after telling every neighbour why.

On each connection, an ABORT that names the suspects is sent after the current frame. Then the lane
reads and discards all data until the neighbour has sent everything. If the lane closed the link
immediately, the neighbour would suspect this peer before the true reason reached it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Iterable

from p2ptrain.errors import PeerError
from p2ptrain.ids import PeerId
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.link import Link
from p2ptrain.ring.neighbour import Connection, Neighbour
from p2ptrain.ring.wire import ABORT_BYTES_MAX, Header, Kind, decode_blame, encode_blame

QUIET_S = 0.3
"""Seconds of silence, one round trip around the world, after which we do not wait for a neighbour
any longer. By then it has no data in flight that a close could cut off, and it has received our
reason. Without this limit, we would wait until the grace period is over for a neighbour that is
still connecting."""

LOOK_S = 0.05
_DISCARD_BYTES = 1 << 16

READS_MAX = 64
"""Maximum number of reads in one turn: 4 MiB, far more than arrives while the other connections
have their turn. The limit keeps a neighbour that never stops sending from delaying other neighbours
and our own exit."""


def tell_neighbours(attempt: Attempt, neighbours: Iterable[Neighbour]) -> None:
    """Tell the neighbours the verdict, and wait until they know it too, but no longer than the
    attempt's `grace_s`.
    """
    blame = attempt.verdict.blame
    assert blame is not None
    words = encode_blame(blame)
    ends = time.monotonic() + attempt.grace_s
    leaves = [
        _Leave(each.peer, connection, _header(attempt, connection.stream, len(words)), words)
        for each in neighbours
        for connection in each.connections
    ]
    here = [leave for leave in leaves if leave.step()]
    while here and time.monotonic() < ends:
        now = time.monotonic()
        if not any(leave.awaited(blame.suspects, now) for leave in here):
            return
        poll = select.poll()
        for leave in here:
            if leave.fileno() >= 0:  # otherwise the socket was closed, and the next step fails
                poll.register(leave.fileno(), leave.interest())
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


def _header(attempt: Attempt, stream: int, length: int) -> Header:
    request = attempt.request
    return Header(Kind.ABORT, stream, 0, 0, length, request.step, request.attempt, attempt.tag)


class _Leave:
    """Sends the abort on one connection, and drains the connection."""

    def __init__(self, peer: PeerId, connection: Connection, header: Header, words: bytes) -> None:
        self._peer = peer
        self._connection = connection
        self._header = header
        self._words = words
        self._told = False
        self._ended = False
        self._heard_at = time.monotonic()
        self._scratch = memoryview(bytearray(_DISCARD_BYTES))

    def fileno(self) -> int:
        return self._connection.link.socket.fileno()

    def interest(self) -> int:
        return select.POLLIN | (select.POLLOUT if self._connection.link.busy else 0)

    def awaited(self, suspects: tuple[PeerId, ...], now: float) -> bool:
        """Return whether to wait for this neighbour. We do not wait for suspects, which may be
        frozen.
        """
        quiet = self._ended and now >= self._heard_at + QUIET_S
        return self._peer not in suspects and not quiet

    def step(self) -> bool:
        """Send and receive without blocking. Return whether the link is still open."""
        link = self._connection.link
        if self._connection.broken_at is not None:
            return False
        try:
            link.push()
            if not link.busy and not self._told:
                self._told = True
                link.start(self._header, self._words)
                link.push()
            if not link.busy and not self._ended:
                self._ended = True
                self._heard_at = time.monotonic()
                link.socket.finish_sending()
            for _ in range(READS_MAX):
                if not link.socket.receive_some(self._scratch):
                    break
                self._heard_at = time.monotonic()
        except PeerError:
            return False
        return True
