"""The thread of one lane: it sends and receives all bytes that it can, and otherwise waits.

A lane is a slice of the vector with its own thread and connections. The thread serves the
connections to all neighbours in both directions, so it does not need locks or copies between
threads. A neighbour that breaks the protocol is blamed for the end of the attempt; `watch` judges
inactive neighbours.

Each connection ends with a DONE frame. A lane has ended when all DONE frames have been sent and
received. So no peer closes a connection on which bytes are still arriving. Such a close would
destroy bytes that the other end has not read yet.
"""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Mapping

from p2ptrain.dataplane import SecureSocket, ShutDownHere
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ring.abort import abort_reason, tell_neighbours
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blamed
from p2ptrain.ring.hop_signatures import SignedRun
from p2ptrain.ring.lane_progress import LaneProgress
from p2ptrain.ring.link import Link
from p2ptrain.ring.neighbour import Connection, Neighbour
from p2ptrain.ring.plan import Segment
from p2ptrain.ring.request import Traffic
from p2ptrain.ring.wait_for import Wait, WaitForGraph
from p2ptrain.ring.watch import NEWS_S, SECOND_OPINION_S, NeighbourWatch
from p2ptrain.ring.wire import (
    ABORT_BYTES_MAX,
    HEADER_BYTES,
    SIGNATURES,
    Header,
    Kind,
    decode_blame,
)

_READ = select.POLLIN
_WRITE = select.POLLOUT
_GONE = getattr(select, "POLLRDHUP", 0)
"""Poll event: the other end has stopped sending, but some bytes may still be unread."""

TICKETS_AHEAD = 8
"""Number of segments for which tickets (permissions to send) of a rate-limited uplink are requested
at a time; at least one per neighbour. Several tickets keep the uplink busy while this thread is not
running. Their number is small, so that each neighbour waits for only about one segment to each of
the other neighbours."""


class Lane:
    """One lane. Call `run` in the lane's thread. Any thread may read the counts."""

    def __init__(
        self, attempt: Attempt, number: int, sockets: Mapping[int, Mapping[int, SecureSocket]]
    ) -> None:
        """`sockets` are the lane's connections, by peer number and stream number."""
        self._attempt = attempt
        self._verdict = attempt.verdict
        self._silence_s = attempt.request.silence_s
        self._progress = LaneProgress(attempt, number)
        self._neighbours = {
            peer: Neighbour(
                peer,
                attempt.peer(peer),
                [Connection(stream, Link(socket)) for stream, socket in streams.items()],
            )
            for peer, streams in sockets.items()
        }
        self._edges = [
            (each, connection)
            for each in self._neighbours.values()
            for connection in each.connections
        ]
        self._tickets_ahead = max(1, TICKETS_AHEAD // len(self._neighbours))
        self._waits = WaitForGraph(attempt.request, attempt.plan, time.monotonic())
        self.watch = NeighbourWatch(
            attempt, self._progress, self._neighbours, self._waits, self._say
        )
        self.payload_bytes = 0
        self.arithmetic_s = 0.0
        self.waiting_s = 0.0
        self.scattered_at: float | None = None

    def run(self, wake_fd: int) -> None:
        """Send and receive every segment of the plan, or tell the neighbours the verdict.

        `wake_fd` becomes readable when the verdict is settled.
        """
        self._begin()
        try:
            while not self.finished and not self._verdict.settled:
                moved = [self._turn(*edge) for edge in self._edges if self._may_move(*edge)]
                self.watch.check()
                if not any(moved):
                    self._wait(wake_fd)
        except Blamed as exc:
            self._verdict.settle(exc.blame)
        if self._verdict.settled:
            tell_neighbours(self._attempt, self._neighbours.values())

    def traffic(self) -> list[Traffic]:
        return [
            Traffic(
                each.peer,
                sum(connection.link.sent_bytes for connection in each.connections),
                sum(connection.link.received_bytes for connection in each.connections),
                each.sending_s,
            )
            for each in self._neighbours.values()
        ]

    @property
    def kept(self) -> list[SignedRun]:
        """The runs that this peer and others have signed. Call this when the lane has ended."""
        return self._progress.kept

    @property
    def finished(self) -> bool:
        return self._progress.finished and all(each.over for each in self._neighbours.values())

    def _begin(self) -> None:
        now = time.monotonic()
        for neighbour in self._neighbours.values():
            neighbour.spoke_at = now
        self.watch.begin(now)
        for send in self._progress.at_start():
            self._neighbours[send.to].ready.append(send)
        for neighbour in self._neighbours.values():
            heapq.heapify(neighbour.ready)
        if self._progress.scattered:
            self.scattered_at = now

    def _may_move(self, neighbour: Neighbour, connection: Connection) -> bool:
        if connection.broken_at is not None:
            return False
        return connection.readable or connection.held_back or self._has_to_go(neighbour, connection)

    def _has_to_go(self, neighbour: Neighbour, connection: Connection) -> bool:
        if not connection.writable:
            return False
        if connection.link.busy or neighbour.ready:
            return True
        return not connection.said_done and self._progress.left_to_go[neighbour.number] == 0

    def _turn(self, neighbour: Neighbour, connection: Connection) -> bool:
        """Take one step on this connection in each direction; return whether anything moved."""
        link = connection.link
        before = link.received_bytes + link.sent_bytes
        try:
            self._receive(neighbour, connection)
            self._send(neighbour, connection)
        except ShutDownHere:
            self._verdict.settle(self._attempt.blame_me())
        except RemoteProtocolError as exc:
            connection.break_off(exc.what)
            self._verdict.settle(self._attempt.blame(neighbour.peer, exc.what))
        except PeerError as exc:
            connection.break_off(exc.what)
        return link.received_bytes + link.sent_bytes != before

    def _receive(self, neighbour: Neighbour, connection: Connection) -> None:
        if connection.held_back:
            self._make_place(connection)
        if connection.held_back and connection.gone:
            self._note_abort_reason(connection)
        if connection.held_back or not connection.readable:
            return
        link, before = connection.link, connection.link.received_bytes
        if connection.arrival is None:
            header = link.pull_header()
            if header is not None:
                self._heed(neighbour, connection, header)
                self._make_place(connection)
        if connection.place is not None:
            self._receive_body(neighbour, connection, connection.place)
        connection.readable = link.received_bytes != before
        if connection.readable:
            connection.heard_at = time.monotonic()

    def _receive_body(
        self, neighbour: Neighbour, connection: Connection, place: memoryview
    ) -> None:
        before = connection.link.received_bytes
        complete = connection.link.pull_body(place)
        count, now = connection.link.received_bytes - before, time.monotonic()
        if count:
            self._waits.note_bytes(neighbour.number, count, now, complete=complete)
        if complete:
            self._arrived(connection)

    def _note_abort_reason(self, connection: Connection) -> None:
        """Handle a neighbour that left before it sent us everything. If it gave a reason, read it
        and make it the verdict.
        """
        assert connection.arrival is not None
        unread = connection.arrival.segment.bytes
        blame = abort_reason(connection.link, unread, self._attempt.request.peers)
        connection.break_off("it left the attempt")
        if blame is not None:
            self._verdict.settle(self.watch.confirmed(blame))

    def _make_place(self, connection: Connection) -> None:
        if connection.arrival is not None:
            connection.place = self._progress.place(connection.arrival)

    def _heed(self, neighbour: Neighbour, connection: Connection, header: Header) -> None:
        """Process the header of a frame.

        Raises RemoteProtocolError if the frame does not belong to this attempt or fit the plan.
        """
        mine = self._attempt.request
        if (header.step, header.attempt) != (mine.step, mine.attempt):
            raise RemoteProtocolError(
                f"a frame is for step {header.step}, attempt {header.attempt}; this is step "
                f"{mine.step}, attempt {mine.attempt}"
            )
        if header.tag != self._attempt.tag:
            raise RemoteProtocolError("a frame belongs to another reduce of this step and attempt")
        if header.stream != connection.stream:
            raise RemoteProtocolError(
                f"a frame of stream {header.stream} arrived on stream {connection.stream}"
            )
        if header.kind is Kind.ABORT:
            self._receive_blame(connection, header)
        elif connection.heard_done:
            raise RemoteProtocolError("a frame arrived after DONE")
        elif header.kind in (Kind.WAITING, Kind.DONE):
            if header.length:
                raise RemoteProtocolError(f"a frame of kind {header.kind.name} has a body")
            now, wait = time.monotonic(), Wait(header.part, header.index)
            if header.kind is Kind.DONE:
                connection.heard_done = True
                self._check_complete(neighbour)
            elif self._waits.note_wait(neighbour.number, wait, now):
                self.watch.look_at = min(self.watch.look_at, now + NEWS_S)
        else:
            connection.arrival = self._progress.claim(header, neighbour.number)

    def _check_complete(self, neighbour: Neighbour) -> None:
        """Raise RemoteProtocolError if a neighbour that has ended all connections has not sent
        everything, for example a signature."""
        ended = all(each.heard_done for each in neighbour.connections)
        if ended and self._progress.left_to_come[neighbour.number]:
            raise RemoteProtocolError("it did not send all segments or signatures")

    def _receive_blame(self, connection: Connection, header: Header) -> None:
        """Read an ABORT. It is short, so the neighbour must complete it quickly."""
        if header.length > ABORT_BYTES_MAX:
            raise RemoteProtocolError(f"an abort of {header.length} bytes is too long")
        body = memoryview(bytearray(header.length))
        connection.link.socket.set_deadline(SECOND_OPINION_S)
        connection.link.socket.receive_into(body)
        blame = decode_blame(bytes(body), self._attempt.request.peers)
        self._verdict.settle(self.watch.confirmed(blame))

    def _arrived(self, connection: Connection) -> None:
        arrival = connection.arrival
        assert arrival is not None
        connection.arrival = connection.place = None
        self._count(arrival.kind, arrival.segment)
        begun = time.monotonic()
        for send in self._progress.arrived(arrival):
            heapq.heappush(self._neighbours[send.to].ready, send)
        ended = time.monotonic()
        self.arithmetic_s += ended - begun
        if self.scattered_at is None and arrival.kind is Kind.SUM and self._progress.scattered:
            self.scattered_at = ended

    def _send(self, neighbour: Neighbour, connection: Connection) -> None:
        if not connection.link.busy:
            if neighbour.ready and self._rate_allows(neighbour):
                self._start(neighbour, connection)
            elif not connection.said_done and self._progress.left_to_go[neighbour.number] == 0:
                connection.said_done = True
                self._say(neighbour, connection, Kind.DONE)
        if connection.link.busy and connection.writable:
            self._push(neighbour, connection)

    def _push(self, neighbour: Neighbour, connection: Connection) -> None:
        went, now = connection.link.push(), time.monotonic()
        connection.writable = went > 0
        if went:
            connection.took_at = neighbour.spoke_at = now
        if not connection.link.busy:
            if not neighbour.busy:
                neighbour.sending_s += now - neighbour.busy_since
            if connection.going is not None:
                self._progress.gone(connection.going)
                self._count(connection.going.kind, connection.going.segment)
                connection.going = None

    def _start(self, neighbour: Neighbour, connection: Connection) -> None:
        send = heapq.heappop(neighbour.ready)
        begun = time.monotonic()
        body = self._progress.body(send)
        for signature in self._progress.signed_by(send):
            heapq.heappush(self._neighbours[signature.to].ready, signature)
        self.arithmetic_s += time.monotonic() - begun
        connection.going = send
        if neighbour.tickets:
            neighbour.tickets.popleft()
        self._say(neighbour, connection, send.kind, send.part, send.index, body)

    def _say(
        self,
        neighbour: Neighbour,
        connection: Connection,
        kind: Kind,
        part: int = 0,
        index: int = 0,
        body: bytes | memoryview = b"",
    ) -> None:
        connection.took_at = connection.begun_at = time.monotonic()
        if not neighbour.busy:
            neighbour.busy_since = connection.took_at
        header = self._attempt.header(kind, connection.stream, part, index, len(body))
        connection.link.start(header, body)

    def _count(self, kind: Kind, segment: Segment) -> None:
        if kind not in SIGNATURES:
            self.payload_bytes += segment.bytes

    def _rate_allows(self, neighbour: Neighbour) -> bool:
        """Return whether the uplink's rate limit allows sending the next segment now. Request
        tickets for the segments that are ready.
        """
        share = self._attempt.share
        if share is None:
            return True
        now = time.monotonic()
        idle = sum(not each.link.busy for each in neighbour.connections)
        while len(neighbour.tickets) < min(idle, len(neighbour.ready), self._tickets_ahead):
            neighbour.tickets.append(
                share.request_ticket(HEADER_BYTES + neighbour.ready[0].segment.bytes)
            )
        if now < neighbour.not_before:
            return False
        wait_s = share.wait_s(neighbour.tickets[0])
        neighbour.not_before = now + wait_s
        return wait_s == 0

    def _wait(self, wake_fd: int) -> None:
        """Wait until bytes can be sent or received, the verdict is settled, or a timer is due."""
        begun = time.monotonic()
        poll = select.poll()
        poll.register(wake_fd, _READ)
        waiting, until = {}, self.watch.look_at
        for neighbour, each in self._edges:
            if each.broken_at is not None:
                if not each.over:
                    until = min(until, each.broken_at + SECOND_OPINION_S)
                continue
            interest = _GONE if each.held_back else _READ
            if each.link.busy or not each.writable:
                interest |= _WRITE
            elif neighbour.ready:
                until = min(until, neighbour.not_before)
            fd = each.link.socket.fileno()
            if fd < 0:  # the socket was closed, and the next turn fails
                each.readable, until = True, begun
            elif interest:
                poll.register(fd, interest)
                waiting[fd] = each
        for fd, events in poll.poll(max(0.0, until - begun) * 1000):
            if fd in waiting:
                waiting[fd].readable |= bool(events & ~_WRITE)
                waiting[fd].gone |= bool(events & (_GONE | select.POLLHUP | select.POLLERR))
                waiting[fd].writable |= bool(events & ~_READ)
        self.waiting_s += time.monotonic() - begun
