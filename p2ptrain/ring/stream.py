"""The thread of one stream: it moves what can be moved, and waits where nothing can.

One thread serves the stream's links to all neighbours in both directions, so nothing is locked and
nothing is copied from thread to thread; another stream has links and parts of its own. It judges
its neighbours: one that is silent while it owes us something, that takes nothing while we have
something for it, or that breaks the protocol, becomes the verdict.
"""

from __future__ import annotations

import heapq
import select
import time

from p2ptrain.dataplane import SecureSocket, ShutDownHere
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blamed
from p2ptrain.ring.excuses import Excuse, Excuses
from p2ptrain.ring.leaving import last_words, take_leave
from p2ptrain.ring.link import Link
from p2ptrain.ring.neighbour import Neighbour
from p2ptrain.ring.request import Traffic
from p2ptrain.ring.wire import (
    ABORT_BYTES_MAX,
    HEADER_BYTES,
    Header,
    Kind,
    decode_blame,
)
from p2ptrain.ring.work import Work

SECOND_OPINION_S = 0.2
"""A link breaks when its peer dies, but also when that leaves an attempt that another has ended.
The latter's reason reaches us within this time, on most paths."""

NEWS_S = 0.25
"""So much lies between what we say of whom we wait for, so that a flood of it does not spread."""

_READ = select.POLLIN
_WRITE = select.POLLOUT
_GONE = getattr(select, "POLLRDHUP", 0)
"""That nothing more will come, though what has come was not read."""


class Stream:
    """`run` is the body of the thread. The counts may be read from any thread."""

    def __init__(
        self,
        attempt: Attempt,
        number: int,
        sockets: dict[int, SecureSocket],
    ) -> None:
        self._attempt = attempt
        self._number = number
        self._verdict = attempt.verdict
        self._silence_s = attempt.request.silence_s
        self._work = Work(attempt, number)
        self._neighbours = {
            peer: Neighbour(peer, attempt.peer(peer), Link(socket))
            for peer, socket in sockets.items()
        }
        self._excuses = Excuses(attempt.request, self._neighbours, time.monotonic())
        self._look_at = 0.0
        self.payload_bytes = 0
        self.arithmetic_s = 0.0
        self.waiting_s = 0.0
        self.scattered_at: float | None = None

    def run(self, wake_fd: int) -> None:
        """Move every segment of the plan, or tell the neighbours of the verdict.

        `wake_fd` becomes readable when the verdict is settled.
        """
        self._begin()
        try:
            while not self._work.finished and not self._verdict.settled:
                moved = [self._turn(neighbour) for neighbour in self._neighbours.values()]
                if not any(moved):
                    self._wait(wake_fd)
                self._look_at_clocks()
        except Blamed as exc:
            self._verdict.settle(exc.blame)
        if self._verdict.settled:
            take_leave(self._attempt, self._number, self._neighbours.values())

    def traffic(self) -> list[Traffic]:
        return [
            Traffic(each.peer, each.link.sent_bytes, each.link.received_bytes, each.sending_s)
            for each in self._neighbours.values()
        ]

    def _begin(self) -> None:
        now = time.monotonic()
        for neighbour in self._neighbours.values():
            neighbour.spoke_at = now
        self._give_time(now)
        self._look_at = now + self._silence_s / 8
        for send in self._work.at_start():
            self._neighbours[send.to].ready.append(send)
        for neighbour in self._neighbours.values():
            heapq.heapify(neighbour.ready)
        if self._work.scattered:
            self.scattered_at = now

    def _turn(self, neighbour: Neighbour) -> bool:
        """One step with this neighbour in each direction; whether anything moved."""
        if neighbour.broken_at is not None:
            return False
        before = neighbour.link.received_bytes + neighbour.link.sent_bytes
        try:
            self._receive(neighbour)
            self._send(neighbour)
        except ShutDownHere:
            self._verdict.settle(self._attempt.blame_me())
        except RemoteProtocolError as exc:
            neighbour.break_off(exc.what)
            self._verdict.settle(self._attempt.blame(neighbour.peer, exc.what))
        except PeerError as exc:
            neighbour.break_off(exc.what)
        return neighbour.link.received_bytes + neighbour.link.sent_bytes != before

    def _receive(self, neighbour: Neighbour) -> None:
        if neighbour.held_back:
            self._make_place(neighbour)
        if neighbour.held_back and neighbour.gone:
            self._hear_last_words(neighbour)
        if neighbour.held_back or not neighbour.readable:
            return
        link, before = neighbour.link, neighbour.link.received_bytes
        if neighbour.arrival is None:
            header = link.pull_header()
            if header is not None:
                self._heed(neighbour, header)
                self._make_place(neighbour)
        if neighbour.place is not None:
            self._receive_body(neighbour, neighbour.place)
        neighbour.readable = link.received_bytes != before
        if neighbour.readable:
            neighbour.heard_at = time.monotonic()

    def _receive_body(self, neighbour: Neighbour, place: memoryview) -> None:
        before = neighbour.link.received_bytes
        complete = neighbour.link.pull_body(place)
        count, now = neighbour.link.received_bytes - before, time.monotonic()
        self._excuses.came(neighbour.number, count, now)
        if complete:
            self._excuses.moved(neighbour.number, now)
            self._arrived(neighbour)

    def _hear_last_words(self, neighbour: Neighbour) -> None:
        """It leaves before all that it owes us has come: who is done owes nobody anything."""
        assert neighbour.arrival is not None
        unread = neighbour.arrival.segment.bytes
        blame = last_words(neighbour.link, unread, self._attempt.request.peers)
        neighbour.break_off("it left")
        if blame is not None:
            self._verdict.settle(blame)

    def _make_place(self, neighbour: Neighbour) -> None:
        if neighbour.arrival is not None:
            neighbour.place = self._work.place(neighbour.arrival)

    def _heed(self, neighbour: Neighbour, header: Header) -> None:
        """A header has come: what it is for, if it is for this reduce at all."""
        mine = self._attempt.request
        if (header.step, header.attempt) != (mine.step, mine.attempt):
            raise RemoteProtocolError(
                f"a frame is for step {header.step}, attempt {header.attempt}; "
                f"this is step {mine.step}, attempt {mine.attempt}"
            )
        if header.tag != self._attempt.tag:
            raise RemoteProtocolError("a frame is for another reduce of this step and attempt")
        if header.stream != self._number:
            raise RemoteProtocolError(f"a frame of stream {header.stream} came on {self._number}")
        if header.kind is Kind.WAITING:
            if header.length:
                raise RemoteProtocolError("a frame that says it waits has a body")
            excuse = Excuse(header.part, header.index)
            if self._excuses.heard(neighbour.number, excuse, time.monotonic()):
                self._look_at = min(self._look_at, time.monotonic() + NEWS_S)
        elif header.kind is Kind.ABORT:
            self._receive_blame(neighbour, header)
        else:
            neighbour.arrival = self._work.claim(header, neighbour.number)

    def _receive_blame(self, neighbour: Neighbour, header: Header) -> None:
        """An abort is short and comes in one piece, or its sender is not worth waiting for."""
        if header.length > ABORT_BYTES_MAX:
            raise RemoteProtocolError(f"an abort of {header.length} bytes")
        body = memoryview(bytearray(header.length))
        neighbour.link.socket.set_deadline(SECOND_OPINION_S)
        neighbour.link.socket.receive_into(body)
        self._verdict.settle(decode_blame(bytes(body), self._attempt.request.peers))

    def _arrived(self, neighbour: Neighbour) -> None:
        arrival = neighbour.arrival
        assert arrival is not None
        neighbour.arrival = neighbour.place = None
        self.payload_bytes += arrival.segment.bytes
        begun = time.monotonic()
        for send in self._work.arrived(arrival):
            heapq.heappush(self._neighbours[send.to].ready, send)
        ended = time.monotonic()
        self.arithmetic_s += ended - begun
        if self.scattered_at is None and arrival.kind is Kind.SUM and self._work.scattered:
            self.scattered_at = ended

    def _send(self, neighbour: Neighbour) -> None:
        link = neighbour.link
        if not link.busy and neighbour.ready and self._rate_allows(neighbour):
            self._start(neighbour)
        if link.busy and neighbour.writable:
            self._push(neighbour)

    def _push(self, neighbour: Neighbour) -> None:
        went, now = neighbour.link.push(), time.monotonic()
        neighbour.writable = went > 0
        if went:
            neighbour.took_at = neighbour.spoke_at = now
        if not neighbour.link.busy:
            neighbour.sending_s += now - neighbour.busy_since
            if neighbour.going is not None:
                self._work.gone(neighbour.going)
                self.payload_bytes += neighbour.going.segment.bytes
                neighbour.going = None

    def _start(self, neighbour: Neighbour) -> None:
        send = heapq.heappop(neighbour.ready)
        begun = time.monotonic()
        body = self._work.body(send)
        neighbour.going = send
        neighbour.ticket = None
        neighbour.took_at = neighbour.busy_since = time.monotonic()
        self.arithmetic_s += neighbour.busy_since - begun
        neighbour.link.start(self._header(send.kind, send.part, send.index, len(body)), body)

    def _rate_allows(self, neighbour: Neighbour) -> bool:
        """Ask once for the next segment to go, then wait until it may."""
        share = self._attempt.share
        if share is None:
            return True
        now = time.monotonic()
        if neighbour.ticket is None:
            neighbour.ticket = share.ask(HEADER_BYTES + neighbour.ready[0].segment.bytes)
        elif now < neighbour.not_before:
            return False
        wait_s = share.wait_s(neighbour.ticket)
        neighbour.not_before = now + wait_s
        return wait_s == 0

    def _header(self, kind: Kind, part: int = 0, index: int = 0, length: int = 0) -> Header:
        request = self._attempt.request
        return Header(
            kind,
            self._number,
            part,
            index,
            length,
            request.step,
            request.attempt,
            self._attempt.tag,
        )

    def _wait(self, wake_fd: int) -> None:
        """Until something can be moved, the verdict is settled, or a clock is to be looked at."""
        begun = time.monotonic()
        poll = select.poll()
        poll.register(wake_fd, _READ)
        waiting, until = {}, self._look_at
        for each in self._neighbours.values():
            if each.broken_at is not None:
                if self._work.needs(each.number):
                    until = min(until, each.broken_at + SECOND_OPINION_S)
                continue
            interest = _GONE if each.held_back else _READ
            if each.link.busy:
                interest |= _WRITE
            elif each.ready:
                until = min(until, each.not_before)
            fd = each.link.socket.fileno()
            if fd < 0:  # it was closed under us, which the next turn will tell
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

    def _look_at_clocks(self) -> None:
        """Say that we wait to whom we owe something; suspect who does not stir."""
        now = time.monotonic()
        broken = any(each.broken_at is not None for each in self._neighbours.values())
        if now < self._look_at and not broken:
            return
        if now > self._look_at + self._silence_s / 4:
            self._give_time(now)  # it was we who stood still
        self._look_at = now + self._silence_s / 8
        for neighbour in self._neighbours.values():
            self._look_at_clock(neighbour, now)
        stuck_since = now - self._excuses.stall_s
        held_for = [
            each.number
            for each in self._neighbours.values()
            if (each.busy_since > stuck_since if each.going is not None else each.ready)
        ]
        numbers, why = self._excuses.at_fault(self._work.left_to_come, held_for, now)
        if numbers:
            self._verdict.settle(self._attempt.blame_all(numbers, why))

    def _give_time(self, now: float) -> None:
        """This process, or its machine, was stopped: what has come since then is yet to be read."""
        for neighbour in self._neighbours.values():
            neighbour.heard_at = neighbour.took_at = now
            self._excuses.moved(neighbour.number, now)

    def _speak_up(self, neighbour: Neighbour, now: float) -> None:
        """Say that we wait, and for whom, before we are taken for dead or when that has changed."""
        owing = [number for number, left in self._work.left_to_come.items() if left]
        excuse = self._excuses.to_say(owing, holds_back=bool(neighbour.ready))
        quiet_s, news = now - neighbour.spoke_at, excuse != neighbour.told
        if quiet_s >= self._silence_s / 4 or (news and quiet_s >= NEWS_S):
            neighbour.busy_since, neighbour.told = now, excuse
            waiting = self._header(Kind.WAITING, excuse.waiting, excuse.awaited)
            neighbour.link.start(waiting)

    def _look_at_clock(self, neighbour: Neighbour, now: float) -> None:
        number, silent_since = neighbour.number, now - self._silence_s
        if neighbour.broken_at is not None:
            if self._work.needs(number) and now >= neighbour.broken_at + SECOND_OPINION_S:
                self._verdict.settle(self._attempt.blame(neighbour.peer, neighbour.broken))
            return
        if neighbour.held_back:
            neighbour.heard_at = now
            self._excuses.moved(number, now)
        if not neighbour.link.busy:
            neighbour.took_at = now
            if self._work.left_to_go[number]:
                self._speak_up(neighbour, now)
        if self._work.left_to_come[number] and neighbour.heard_at < silent_since:
            what = f"it sent nothing for {self._silence_s:g} s"
            self._verdict.settle(self._attempt.blame(neighbour.peer, what))
        elif max(neighbour.took_at, neighbour.heard_at) < silent_since:
            what = f"it took nothing for {self._silence_s:g} s"
            self._verdict.settle(self._attempt.blame(neighbour.peer, what))
