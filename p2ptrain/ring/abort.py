"""How a lane leaves an attempt that is over before its end: everybody hears why.

Each neighbour is told whom we suspect, on each connection behind the frame that is under way. Then
we read on without heeding what we read, until it has said all that it will: were the link closed at
once, the neighbour would take us for dead before the true reason has gone round.
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

GRACE_S = 1.0
"""How long an abort may take to go round before the links are given up."""

QUIET_S = 0.3
"""Who sends nothing for a round trip round the world has nothing under way that a close could cut
off, and has had our word: it may still be connecting, and would keep us until the grace is over."""

LOOK_S = 0.05
_DISCARD_BYTES = 1 << 16

READS_MAX = 64
"""In one turn: 4 MiB, many times what comes while the others have theirs. Who sends without end,
and fast, must not keep us from telling the others, nor from our own end."""


def take_leave(attempt: Attempt, neighbours: Iterable[Neighbour]) -> None:
    """Tell the neighbours of the verdict, and wait until they know it too."""
    blame = attempt.verdict.blame
    assert blame is not None
    words = encode_blame(blame)
    ends = time.monotonic() + GRACE_S
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
            if leave.fileno() >= 0:  # else it was closed under us, which its next step will tell
                poll.register(leave.fileno(), leave.interest())
        poll.poll(max(0.0, min(ends - time.monotonic(), LOOK_S)) * 1000)
        here = [leave for leave in here if leave.step()]


def last_words(link: Link, unread: int, members: Collection[PeerId]) -> Blame | None:
    """Why a neighbour left that has ended its side of `link`, if it said so. `unread` bytes of a
    segment come first, which nobody needs any more.

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
    """The leave-taking on one connection."""

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
        """Whether it is worth waiting for: who is suspected may never take another byte."""
        quiet = self._ended and now >= self._heard_at + QUIET_S
        return self._peer not in suspects and not quiet

    def step(self) -> bool:
        """Move what can be moved; whether the link is still open."""
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
