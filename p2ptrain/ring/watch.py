"""Judge inactive neighbours. A neighbour is blamed for the end of the attempt if it is silent while
it owes us data, if it does not accept our data, or if it leaves without giving a reason.

This module also keeps other peers from suspecting us: while we cannot send a neighbour its data
yet, we tell the neighbour that we are waiting. This module does not transfer payload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.lane_progress import LaneProgress
from p2ptrain.ring.neighbour import Connection, Neighbour
from p2ptrain.ring.wait_for import WaitForGraph
from p2ptrain.ring.wire import Kind

SECOND_OPINION_S = 0.2
"""Seconds that we wait for a reason before we blame the neighbour at the other end of a broken
connection. A connection breaks if the neighbour dies, but also if the neighbour leaves an attempt
that a third peer has ended. In the second case, the reason reaches us within this time on most
paths."""

NEWS_S = 0.25
"""Minimum seconds between two WAITING frames to a neighbour, to limit their number."""

Say = Callable[[Neighbour, Connection, Kind, int, int], None]
"""Starts to send a frame without a body. The last two arguments are the frame's part and index."""


@dataclass(slots=True)
class NeighbourWatch:
    """The timers of one lane. Used by one thread."""

    _attempt: Attempt
    _progress: LaneProgress
    _neighbours: Mapping[int, Neighbour]
    _waits: WaitForGraph
    _say: Say
    look_at: float = 0.0
    """Monotonic time of the next check."""
    late: int | None = None
    """The number of the peer at the end of the chain of waits (see `wait_for`) at the last check;
    None if it was unknown or we had something to send. May be read from any thread.
    """

    @property
    def _silence_s(self) -> float:
        return self._attempt.request.silence_s

    def begin(self, now: float) -> None:
        self._give_time(now)
        self.look_at = now + self._silence_s / 8

    def check(self) -> None:
        """Tell each neighbour that expects data from us that we are waiting. Suspect inactive
        neighbours.

        Call this after reading everything that has arrived: we must not blame a neighbour whose
        data we have not read yet.
        """
        now = time.monotonic()
        if now < self.look_at and not any(each.broken for each in self._neighbours.values()):
            return
        if now > self.look_at + self._silence_s / 4:
            self._give_time(now)  # this process was stopped, so we have not read new data
        self.look_at = now + self._silence_s / 8
        owing = self._owing()
        could_send = any(each.ready or each.busy for each in self._neighbours.values())
        self.late = None if could_send else self._waits.late(owing)
        for neighbour in self._neighbours.values():
            self._look_at_clock(neighbour, owing, now)
        trickling = self._waits.trickling(now)
        if trickling is not None:
            number, what = trickling
            self._suspect(self._neighbours[number], what)
        numbers, why = self._waits.at_fault(self._progress.left_to_come, self._held_for(now), now)
        if numbers:
            self._attempt.verdict.settle(self._attempt.blame_all(numbers, why))

    def confirmed(self, blame: Blame) -> Blame:
        """Return the Blame to settle for a fault that a neighbour has reported.

        The first report ends the attempt for all peers, and a single accusation says as much about
        the accuser as about the accused. So this peer adds what it has noticed itself: if a suspect
        was silent, or did not continue a segment, for half of the allowed time, the Blame names
        only such suspects and counts as our own finding.
        """
        now = time.monotonic()
        seen = [each for each in self._neighbours.values() if each.peer in blame.suspects]
        seen = [each for each in seen if self._dawdles(each, now)]
        suspects = tuple(each.peer for each in seen)
        return replace(blame, suspects=suspects, heard=False) if suspects else blame

    def _dawdles(self, neighbour: Neighbour, now: float) -> bool:
        if not self._progress.left_to_come[neighbour.number]:
            return False
        silent = neighbour.heard_at < now - self._silence_s / 2
        return silent or self._waits.is_amid_a_segment(neighbour.number, now)

    def _owing(self) -> list[int]:
        """Return the neighbours that we need data from to continue. Prefer the neighbours whose
        data we have to forward, because other peers wait for that data too. Among these, prefer
        neighbours that are not ahead of us: a neighbour that is ahead waits for others itself.
        """
        passed_on = [number for number, left in self._progress.left_to_pass_on.items() if left]
        behind = [number for number in passed_on if not self._ahead(self._neighbours[number])]
        come = [number for number, left in self._progress.left_to_come.items() if left]
        return behind or passed_on or come

    def _ahead(self, neighbour: Neighbour) -> bool:
        return any(self._held_up(neighbour, each) for each in neighbour.connections)

    def _held_up(self, neighbour: Neighbour, each: Connection) -> bool:
        """Return whether we leave a frame of `neighbour` unread because another neighbour must send
        first.
        """
        if each.arrival is None or each.place is not None:
            return False
        return self._progress.held_up_by(each.arrival) != neighbour.number

    def _give_time(self, now: float) -> None:
        """Restart all timers."""
        for neighbour in self._neighbours.values():
            for each in neighbour.connections:
                each.heard_at = each.took_at = now
            self._waits.note_progress(neighbour.number, now)

    def _held_for(self, now: float) -> list[int]:
        """Return the neighbours that we have data for and that accept it."""
        stuck_since = now - self._waits.stall_s
        found = []
        for each in self._neighbours.values():
            begun = [other.begun_at for other in each.connections if other.going is not None]
            if max(begun) > stuck_since if begun else each.ready:
                found.append(each.number)
        return found

    def _look_at_clock(self, neighbour: Neighbour, owing: list[int], now: float) -> None:
        silent_since = now - self._silence_s
        if self._progress.left_to_go[neighbour.number] and not neighbour.busy:
            self._speak_up(neighbour, owing, now)
        begun = any(each.receiving for each in neighbour.connections)
        self._waits.note_frame(neighbour.number, now, begun=begun)
        for each in neighbour.connections:
            self._look_at_connection(neighbour, each, now)
        if self._progress.left_to_come[neighbour.number] and neighbour.heard_at < silent_since:
            self._suspect(neighbour, f"it did not send anything for {self._silence_s:g} s")

    def _look_at_connection(self, neighbour: Neighbour, each: Connection, now: float) -> None:
        if each.broken_at is not None:
            if not each.over and now >= each.broken_at + SECOND_OPINION_S:
                self._suspect(neighbour, each.broken)
            return
        if each.held_back:
            each.heard_at = now
        if self._held_up(neighbour, each):
            self._waits.note_progress(neighbour.number, now)
        if not each.link.busy:
            each.took_at = now
        if max(each.took_at, each.heard_at) < now - self._silence_s:
            self._suspect(neighbour, f"it did not accept any data for {self._silence_s:g} s")

    def _speak_up(self, neighbour: Neighbour, owing: list[int], now: float) -> None:
        """Tell a neighbour which peer waits for which (`WaitForGraph.own_wait`). Do so before the
        neighbour suspects us, or when the answer has changed.
        """
        wait = self._waits.own_wait(owing, holds_back=bool(neighbour.ready))
        quiet_s, news = now - neighbour.spoke_at, wait != neighbour.told
        if quiet_s < self._silence_s / 4 and not (news and quiet_s >= NEWS_S):
            return
        whole = [each for each in neighbour.connections if each.broken_at is None]
        if whole:
            neighbour.told = wait
            self._say(neighbour, whole[0], Kind.WAITING, wait.waiting, wait.awaited)

    def _suspect(self, neighbour: Neighbour, what: str) -> None:
        self._attempt.verdict.settle(self._attempt.blame(neighbour.peer, what))
