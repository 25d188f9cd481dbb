"""Check the guarantees about identities in a simulated world with a liar.

Each violation begins with the name of the rule, as for the ledger's checkers:

NobodyIsStoppedByLies     a process stops voting, or ends, only if a second process with its
                          identity existed after it began; if it was already running, only if that
                          second process was also running
CopiesStopVoting          two processes with one identity do not both vote for long
OneCopyEnds               exactly one of two running processes with one identity ends
CulpritsReplayed          a peer that is named as a culprit has replayed messages
EverybodyIsHeard          at the end, all accept the heartbeats of each process that runs alone
HeartbeatsGoForward       a process never accepts a heartbeat older than one that it accepted
StartsAreQuick            a start does not take longer than its deadline
CountsAreDurable          a heartbeat never shows a start count that a crash could lose
CountsAreEarned           a count is never higher than the number of starts that were possible
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId
from p2ptrain.peers.duplicate_watch import FRESH_S, LINGER_S, QUIET_S, USUAL_TIMING
from p2ptrain.peers.incarnations import starts_of

if TYPE_CHECKING:
    from p2ptrain.simulation.identities.process import MarkedHeartbeat, SimProcess
    from p2ptrain.simulation.identities.world import IdentityWorld

BOTH_VOTE_S = 25.0
"""Seconds for which two copies may both vote. In this time a copy asks about eight questions. Each
question goes to a random member, may be lost, and may reach the liar."""

BOTH_RUN_S = BOTH_VOTE_S + 2 * LINGER_S

HEARD_S = QUIET_S + 20.0
"""Seconds until a running process's heartbeats must be accepted. If a process has a lower start
count than an earlier process of its identity, it waits `QUIET_S` before it increases its count;
only then are its heartbeats accepted."""


class Checkers:
    def __init__(self, world: IdentityWorld) -> None:
        self._world = world
        self.violations: list[str] = []
        self._taken: dict[tuple[int, PeerId], tuple[int, int]] = {}
        world.clock.after(1.0, self._check)

    def found_duplicate(self, process: SimProcess) -> None:
        """Check that a process that stops voting, or does not start, was not the only process with
        its identity."""
        others = self._others(process)
        if process.running:
            others = [each for each in others if each.running_s is not None]
        since_s = max(process.began_s, self._world.clock.now - FRESH_S)
        if not any(each.ended_s is None or each.ended_s >= since_s for each in others):
            self._object("NobodyIsStoppedByLies", f"{process.me} stopped, but was alone")

    def started(self, process: SimProcess) -> None:
        now = self._world.clock.now
        if now > process.began_s + USUAL_TIMING.start_wait_s + 0.01:
            self._object("StartsAreQuick", f"{process.me} took {now - process.began_s:.1f} s")

    def spoken(self, process: SimProcess, beat: MarkedHeartbeat) -> None:
        counted = starts_of(beat.mark.incarnation)
        if counted > process.home.durable_count:
            self._object("CountsAreDurable", f"{process.me} shows {counted}, but stored less")
        processes = sum(each.me == process.me for each in self._world.processes)
        # A process increases the count at most twice when it starts, and then once per `QUIET_S`.
        most = (3 + self._world.clock.now / QUIET_S) * (processes + 1)
        if counted > most:
            self._object("CountsAreEarned", f"{process.me} counted {counted} starts")

    def taken(self, process: SimProcess, beat: MarkedHeartbeat) -> None:
        key, order = (id(process), beat.author), (beat.mark.incarnation, beat.serial)
        if order <= self._taken.get(key, (-1, -1)):
            what = f"{process.me} accepted an old heartbeat of {beat.author}"
            self._object("HeartbeatsGoForward", what)
        self._taken[key] = order

    def named(self, process: SimProcess, forwarder: PeerId) -> None:
        if forwarder != self._world.liar:
            self._object("CulpritsReplayed", f"{process.me} named {forwarder}")

    def at_end(self) -> None:
        for process in self._world.processes:
            if self._is_alone(process):
                self._check_heard(process)

    def _check(self) -> None:
        for peer in self._world.honest:
            running = [each for each in self._world.of(peer) if each.running]
            for index, one in enumerate(running):
                for other in running[index + 1 :]:
                    self._check_pair(one, other)
        self._world.clock.after(1.0, self._check)

    def _check_pair(self, one: SimProcess, other: SimProcess) -> None:
        assert one.running_s is not None
        assert other.running_s is not None
        both_s = self._world.clock.now - max(one.running_s, other.running_s, self._settled_s())
        if one.votes and other.votes and both_s > BOTH_VOTE_S:
            self._object("CopiesStopVoting", f"two of {one.me} voted for {both_s:.0f} s")
        elif both_s > BOTH_RUN_S:
            self._object("OneCopyEnds", f"two of {one.me} ran for {both_s:.0f} s")
        if _is_ended_by(one, other) and _is_ended_by(other, one):
            self._object("OneCopyEnds", f"both of {one.me} ended")

    def _settled_s(self) -> float:
        """Return the time of the last start of a process. From then on, enough members run that can
        be asked."""
        return max((each.running_s or 0.0 for each in self._world.processes), default=0.0)

    def _is_alone(self, process: SimProcess) -> bool:
        """Return whether `process` has run for `HEARD_S` as the only process of its identity."""
        since_s = self._world.clock.now - HEARD_S
        if not process.running or (process.running_s or 0.0) >= since_s:
            return False
        ends = [each.ended_s for each in self._others(process)]
        return all(ended_s is not None and ended_s < since_s for ended_s in ends)

    def _others(self, process: SimProcess) -> list[SimProcess]:
        """Return all other processes that ever had the same identity."""
        namesakes = [each for each in self._world.processes if each.me == process.me]
        return [each for each in namesakes if each is not process]

    def _check_heard(self, process: SimProcess) -> None:
        for other in self._world.processes:
            if other.me == process.me or not self._is_alone(other):
                continue
            if not other.incarnations.is_known(process.me, process.watch.incarnation):
                self._object("EverybodyIsHeard", f"{other.me} does not accept {process.me}")

    def _object(self, rule: str, what: str) -> None:
        self.violations.append(f"{rule}: at {self._world.clock.now:.1f} s, {what}")


def _is_ended_by(one: SimProcess, other: SimProcess) -> bool:
    """Return whether `one` has found `other` and ends because of it."""
    found = one.watch.duplicate
    return found is not None and found.ends_us and other.watch.is_ours(found.incarnation)
