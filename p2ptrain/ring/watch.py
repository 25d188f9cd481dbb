"""Judges neighbours that do nothing. A neighbour becomes the verdict if it sends nothing while it
owes us something, if it accepts nothing while we have something for it, or if it left without a
reason.

It also keeps others from suspecting us. If we owe a neighbour something that cannot go yet, it
tells that neighbour that we are waiting. It moves no payload, and does not know what travels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.lane_progress import Work
from p2ptrain.ring.neighbour import Connection, Neighbour
from p2ptrain.ring.wait_for import Excuses
from p2ptrain.ring.wire import Kind

SECOND_OPINION_S = 0.2
"""A link breaks when its peer dies, but also when its peer leaves an attempt that a third peer has
ended. In the second case the reason reaches us within this time, on most paths."""

NEWS_S = 0.25
"""Shortest time between two statements about whom we wait for, so that they do not multiply."""


Say = Callable[[Neighbour, Connection, Kind, int, int], None]
"""A function that starts to send a frame without a body."""


class Watch:
    """The timers of one lane. For one thread."""

    def __init__(
        self,
        attempt: Attempt,
        work: Work,
        neighbours: Mapping[int, Neighbour],
        excuses: Excuses,
        say: Say,
    ) -> None:
        self._attempt = attempt
        self._verdict = attempt.verdict
        self._silence_s = attempt.request.silence_s
        self._work = work
        self._neighbours = neighbours
        self._excuses = excuses
        self._say = say
        self.look_at = 0.0
        """Monotonic time of the next check."""
        self.late: int | None = None
        """The number of the peer that kept us waiting at the last check, as far as we know; None if
        we could send something. May be read from any thread."""

    def begin(self, now: float) -> None:
        self._give_time(now)
        self.look_at = now + self._silence_s / 8

    def look(self) -> None:
        """Tell each neighbour to which we owe something that we wait; suspect neighbours that do
        nothing.

        Call it after everything that has arrived was read: a process that could not read must not
        blame a neighbour for that.
        """
        now = time.monotonic()
        if now < self.look_at and not any(each.broken for each in self._neighbours.values()):
            return
        if now > self.look_at + self._silence_s / 4:
            self._give_time(now)  # this process itself had stopped
        self.look_at = now + self._silence_s / 8
        owing = self._owing()
        could_send = any(each.ready or each.busy for each in self._neighbours.values())
        self.late = None if could_send else self._excuses.late(owing)
        for neighbour in self._neighbours.values():
            self._look_at_clock(neighbour, owing, now)
        trickling = self._excuses.trickling(now)
        if trickling is not None:
            number, what = trickling
            self._verdict.settle(self._attempt.blame(self._attempt.peer(number), what))
        numbers, why = self._excuses.at_fault(self._work.left_to_come, self._held_for(now), now)
        if numbers:
            self._verdict.settle(self._attempt.blame_all(numbers, why))

    def confirmed(self, blame: Blame) -> Blame:
        """Return the fault that a neighbour reports as our own finding if we noticed it, too: a
        suspect has been silent, or amid a segment, for half of its time. The first peer that
        reports ends the attempt for all, and one accusation says as much about its author as about
        the accused.
        """
        now = time.monotonic()
        seen = [each for each in self._neighbours.values() if each.peer in blame.suspects]
        seen = [each for each in seen if self._dawdles(each, now)]
        suspects = tuple(each.peer for each in seen)
        return replace(blame, suspects=suspects, heard=False) if suspects else blame

    def _dawdles(self, neighbour: Neighbour, now: float) -> bool:
        if not self._work.left_to_come[neighbour.number]:
            return False
        silent = neighbour.heard_at < now - self._silence_s / 2
        return silent or self._excuses.is_amid_a_segment(neighbour.number, now)

    def _owing(self) -> list[int]:
        """Return the neighbours without which we cannot go on. Prefer those from which something is
        to be passed on: a mean that ends here keeps nobody else waiting. Among these, prefer
        neighbours that are not ahead: one that is ahead is itself waiting for others.
        """
        passed_on = [number for number, left in self._work.left_to_pass_on.items() if left]
        behind = [number for number in passed_on if not self._ahead(self._neighbours[number])]
        come = [number for number, left in self._work.left_to_come.items() if left]
        return behind or passed_on or come

    def _ahead(self, neighbour: Neighbour) -> bool:
        return any(self._held_up(neighbour, each) for each in neighbour.connections)

    def _held_up(self, neighbour: Neighbour, each: Connection) -> bool:
        """Return whether we leave its frame unread because another neighbour must send first."""
        if each.arrival is None or each.place is not None:
            return False
        return self._work.held_up_by(each.arrival) != neighbour.number

    def _give_time(self, now: float) -> None:
        """Restart all timers. This process was stopped, and what came since is still unread."""
        for neighbour in self._neighbours.values():
            for each in neighbour.connections:
                each.heard_at = each.took_at = now
            self._excuses.moved(neighbour.number, now)

    def _held_for(self, now: float) -> list[int]:
        """Return the neighbours for which we have something, and which accept it."""
        stuck_since = now - self._excuses.stall_s
        found = []
        for each in self._neighbours.values():
            begun = [other.begun_at for other in each.connections if other.going is not None]
            if max(begun) > stuck_since if begun else each.ready:
                found.append(each.number)
        return found

    def _look_at_clock(self, neighbour: Neighbour, owing: list[int], now: float) -> None:
        silent_since = now - self._silence_s
        if self._work.left_to_go[neighbour.number] and not neighbour.busy:
            self._speak_up(neighbour, owing, now)
        begun = any(each.receiving for each in neighbour.connections)
        self._excuses.under_way(neighbour.number, now, begun=begun)
        for each in neighbour.connections:
            self._look_at_connection(neighbour, each, now)
        if self._work.left_to_come[neighbour.number] and neighbour.heard_at < silent_since:
            self._suspect(neighbour, f"it sent nothing for {self._silence_s:g} s")

    def _look_at_connection(self, neighbour: Neighbour, each: Connection, now: float) -> None:
        if each.broken_at is not None:
            if not each.over and now >= each.broken_at + SECOND_OPINION_S:
                self._suspect(neighbour, each.broken)
            return
        if each.held_back:
            each.heard_at = now
        if self._held_up(neighbour, each):
            self._excuses.moved(neighbour.number, now)
        if not each.link.busy:
            each.took_at = now
        if max(each.took_at, each.heard_at) < now - self._silence_s:
            self._suspect(neighbour, f"it took nothing for {self._silence_s:g} s")

    def _speak_up(self, neighbour: Neighbour, owing: list[int], now: float) -> None:
        """Tell a neighbour whom we wait for, before it suspects us or when that has changed."""
        excuse = self._excuses.to_say(owing, holds_back=bool(neighbour.ready))
        quiet_s, news = now - neighbour.spoke_at, excuse != neighbour.told
        if quiet_s < self._silence_s / 4 and not (news and quiet_s >= NEWS_S):
            return
        whole = [each for each in neighbour.connections if each.broken_at is None]
        if whole:
            neighbour.told = excuse
            self._say(neighbour, whole[0], Kind.WAITING, excuse.waiting, excuse.awaited)

    def _suspect(self, neighbour: Neighbour, what: str) -> None:
        self._verdict.settle(self._attempt.blame(neighbour.peer, what))
