"""Remember failed attempts across outer steps, and choose the peers that sit out the next attempt.

An attempt is one try of a reduce (the averaging of an outer step). A failed attempt leaves
*doubts*. A doubt is a set of participants of which at least one is at fault. If one participant
accuses another, one of the two is at fault: the accused, or a lying accuser. So an accuser is
doubted as much as each peer it accuses, and a liar that accuses many peers is doubted most. A
participant that accuses itself is doubted alone. If nobody was accused, one doubt contains all
participants of failed attempts that did not take part in the committed attempt.

The most doubted peer sits out first, and all doubts that contain it are dropped. Then the next most
doubted peer sits out, up to a limit. The weight of a doubt halves every HALF_LIFE commits, or more
slowly if the failure was expensive. Age is counted in committed outer steps, so that nothing is
forgotten while a run is stalled.

Nodes do not agree on any of this: it decides what this node proposes. `accept` decides which of
these proposals other nodes refuse.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from p2ptrain.ids import PeerId

HALF_LIFE = 8
"""Number of commits (successful outer steps) after which the weight of a failed attempt has halved.
A peer that fails every attempt then takes part again after 8 or 9 commits. So does a peer that
failed twice by accident.
"""

LOST_SHARE = 1 / 20
"""Maximum fraction of the run's time that a peer can cost if it fails whenever it takes part. The
half-life of a doubt is 20 times the number of outer steps that the failure cost, but at least
HALF_LIFE. With HALF_LIFE alone, a silent participant cost half the time of a run with short steps.
"""

HALF_LIFE_MAX = 128
"""Maximum half-life in commits, for failures that cost 6.4 outer steps or more. It limits how long
an honest peer can be left out after two expensive accidents.
"""

DOUBT_MIN = 1.0
"""Total weight of doubts at which a peer sits out. One failure weighs 1 in its own outer step.
After the next commit, all failures of that step together weigh less, so one accident costs a peer
the remaining attempts of one outer step.
"""

DOUBT_MIN_UNTRACED = 0.25
"""Total weight of doubts at which a peer sits out if an attempt of this outer step failed and
nobody was accused. Then the only hint is an older failure, whose weight has decayed. The value is
the weight after two half-lives.
"""

LEFT_OUT_MAX = 2 * HALF_LIFE - 1
"""Number of consecutive commits without a peer after which an honest proposer no longer leaves it
out because of past failures. It is two half-lives. After that, even three failures together weigh
less than DOUBT_MIN. For an expensive failure, it is two half-lives of that failure.
"""

LEFT_OUT_REFUSED = 2 * LEFT_OUT_MAX + 1
"""Number of consecutive commits without a peer that was ready for each of them, after which voters
refuse a further roster without that peer. It is twice the limit for honest proposers, because a
proposer that joined late has counted fewer commits. A voter that remembers an expensive failure of
the peer uses the limit for that failure.
"""

FAILURES_KEPT = 32
"""Maximum number of failures kept. With one failure for each commit, older ones weigh at most a
sixteenth, unless they were expensive. If failures are more frequent, the newer ones are enough.
"""

CONFESSION = 0.5
"""Factor on the weight of a doubt about a peer that accuses itself. Such a peer is left out anyway
until it is ready again, and it did not lie. But if it loses its work in every step, it costs the
others an attempt each time, so the weight is not 0.
"""

ACCUSED_MAX = 4
"""Maximum number of accusations that count in one report. Honest reports name one or two peers."""

Doubt = frozenset[PeerId]


def half_life_after(lost_steps: float) -> float:
    """Return the half-life, in commits, of a failure that cost `lost_steps` outer steps."""
    return min(max(HALF_LIFE, lost_steps / LOST_SHARE), HALF_LIFE_MAX)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt. `commits` is the number of commits before it. `doubts` holds the weight
    of each doubt when the attempt failed. `accused` are the peers that others accuse. `half_life`
    is in commits.
    """

    commits: int
    doubts: Mapping[Doubt, float]
    accused: frozenset[PeerId] = frozenset()
    half_life: float = HALF_LIFE

    @property
    def left_out_max(self) -> int:
        """The limit LEFT_OUT_MAX for a peer doubted because of this failure, in commits."""
        return math.ceil(2 * self.half_life) - 1

    def decay(self, commits: int) -> float:
        """Return the factor on the weight of each doubt when the run has had `commits` commits."""
        return math.pow(2.0, (self.commits - commits) / self.half_life)

    def divided(self, divisor: float) -> Failure:
        """Return the same failure with smaller weights."""
        return replace(self, doubts={it: each / divisor for it, each in self.doubts.items()})


def weight_against_any(failures: Iterable[Failure]) -> float:
    """Return the total weight of `failures` against the most doubted peer; 0 if there are none."""
    total = defaultdict[PeerId, float](float)
    for failure in failures:
        for doubt, weight in failure.doubts.items():
            for peer in doubt:
                total[peer] += weight
    return max(total.values(), default=0.0)


@dataclass(slots=True)
class FailureMemory:
    """The failed attempts that this process has seen. They are forgotten when the process ends.

    - `commits`: the number of commits so far; the clock by which doubts decay.
    - `untraced`: for each attempt of this outer step that failed without an accusation, its
      participants.
    - `untraced_steps`: the time that these attempts cost, as a number of usual outer steps.
    - `absent`: for each member, the number of commits since it last took part in an attempt, even a
      failed one.
    - `missed`: for each member, the number of attempts without it, halved every HALF_LIFE commits.
    - `ready`: the peers known to be ready when the current attempt was opened.
    - `kept_out`: like `absent`, but counts only the commits for which the member was ready.
    """

    commits: int = 0
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=FAILURES_KEPT))
    untraced: list[frozenset[PeerId]] = field(default_factory=list)
    untraced_steps: float = 0.0
    absent: dict[PeerId, int] = field(default_factory=dict)
    missed: dict[PeerId, float] = field(default_factory=dict)
    ready: frozenset[PeerId] = frozenset()
    kept_out: dict[PeerId, int] = field(default_factory=dict)

    def failure(
        self, peers: Collection[PeerId], reports: Mapping[PeerId, Iterable[PeerId]]
    ) -> Failure | None:
        """Return the accusations in one attempt as a Failure; None if there are none.

        `peers` are its participants. `reports` are the suspects that each peer named. Reports by
        peers that did not take part, and accusations against such peers, do not count. If two peers
        accuse each other, that is one doubt.
        """
        doubts, accused, members = dict[Doubt, float](), set[PeerId](), set(peers)
        for reporter in sorted(members & reports.keys()):
            suspects = list(reports[reporter])
            if reporter in suspects:
                doubts[frozenset((reporter,))] = CONFESSION
                continue
            named = [peer for peer in suspects if peer in members][:ACCUSED_MAX]
            accused.update(named)
            doubts.update((frozenset((reporter, peer)), 1.0) for peer in named)
        if not doubts:
            return None
        failure = Failure(self.commits, doubts, frozenset(accused))
        # However many peers accuse another, the attempt weighs at most 1 against it.
        return failure.divided(max(1.0, weight_against_any([failure])))

    def opened(
        self, peers: Collection[PeerId], members: Iterable[PeerId], ready: Iterable[PeerId]
    ) -> None:
        """Record that an attempt of `peers` begins, in a run with these `members`. This node knows
        that the peers in `ready` could take part. Earlier absences of the participants expire.
        """
        self.ready = frozenset(ready)
        for peer in peers:
            self.absent.pop(peer, None)
            self.kept_out.pop(peer, None)
        taking = frozenset(peers)
        for member in members:
            if member not in taking:
                self.missed[member] = self.missed.get(member, 0.0) + 1.0

    def failed(
        self,
        peers: Collection[PeerId],
        reports: Mapping[PeerId, Iterable[PeerId]],
        lost_steps: float = 0.0,
    ) -> None:
        """Record that the attempt of `peers` was abandoned. It cost the time of `lost_steps` outer
        steps. `reports` are the suspects that each peer named.
        """
        failure = self.failure(peers, reports)
        if failure is None:
            self.untraced.append(frozenset(peers))
            self.untraced_steps += lost_steps
        else:
            self.failures.append(replace(failure, half_life=half_life_after(lost_steps)))

    def committed(self, peers: Collection[PeerId], members: Iterable[PeerId]) -> None:
        """Record that the attempt of `peers` was committed, in a run with these `members`."""
        suspects = frozenset[PeerId]().union(*self.untraced) - frozenset(peers)
        if suspects:
            half_life = half_life_after(self.untraced_steps)
            self.failures.append(Failure(self.commits, {suspects: 1.0}, half_life=half_life))
        self._merge_attempts()
        self.untraced.clear()
        self.untraced_steps = 0.0
        self.commits += 1
        taking, forgets = frozenset(peers), math.pow(2.0, -1 / HALF_LIFE)
        left = [member for member in members if member not in taking]
        self.absent = {peer: self.absent.get(peer, 0) + 1 for peer in left}
        self.kept_out = {
            peer: self.kept_out.get(peer, 0) + 1 for peer in left if peer in self.ready
        }
        self.missed = {peer: it * forgets for peer, it in self.missed.items() if it > 0.05}

    def _merge_attempts(self) -> None:
        """Reduce the weights of all failures since the last commit, so that together they weigh at
        most 1 against any peer. They often have one cause, such as a short network outage, and must
        not cost an honest peer its place in later outer steps.
        """
        recent = [it for it in self.failures if it.commits == self.commits]
        heaviest = max(1.0, weight_against_any(recent))
        for at in range(-len(recent), 0):
            self.failures[at] = self.failures[at].divided(heaviest)

    def skipped(self) -> None:
        """Record that the outer step was skipped. Forget its attempts that failed without an
        accusation, since no successful attempt shows which of their participants were at fault.
        """
        self.untraced.clear()
        self.untraced_steps = 0.0

    def sitting_out(
        self,
        able: Set[PeerId],
        most: int,
        under_way: Failure | None = None,
        *,
        untraced: bool = False,
    ) -> frozenset[PeerId]:
        """Return the peers that sit out: the most doubted of the peers that are `able` to take
        part, at most `most` of them. `under_way` are the accusations in the current attempt.

        A doubt does not count if one of its peers will be absent, since that peer may be the one at
        fault. It does not count either if one of its peers was left out for LEFT_OUT_MAX commits:
        that peer gets another chance, no matter who accuses it. Weaker doubts are enough if an
        attempt of this outer step failed without an accusation, or the current one did
        (`untraced`).
        """
        doubt_min = DOUBT_MIN_UNTRACED if self.untraced or untraced else DOUBT_MIN
        doubts = self._doubts_among(able, under_way)
        out: list[PeerId] = []
        while len(out) < most and (worst := self._most_doubted(doubts, doubt_min)) is not None:
            out.append(worst)
            doubts = [it for it in doubts if worst not in it[1]]
        return frozenset(out)

    def refused_after(self, peer: PeerId) -> int:
        """Return LEFT_OUT_REFUSED, or a higher limit after an expensive failure of `peer`."""
        limits = (it.left_out_max for it in self.failures if any(peer in d for d in it.doubts))
        return 2 * max((LEFT_OUT_MAX, *limits)) + 1

    def against(self, peer: PeerId, among: Set[PeerId], under_way: Failure | None = None) -> float:
        """Return the total weight of the doubts about `peer` if the peers in `among` take part."""
        doubts = self._doubts_among(among, under_way)
        return sum(weight for weight, doubt, _ in doubts if peer in doubt)

    def _doubts_among(
        self, able: Set[PeerId], under_way: Failure | None
    ) -> list[tuple[float, Doubt, frozenset[PeerId]]]:
        found = []
        for failure in self.failures if under_way is None else (*self.failures, under_way):
            decay, most = failure.decay(self.commits), failure.left_out_max
            for doubt, weight in failure.doubts.items():
                if doubt <= able and all(self.absent.get(peer, 0) < most for peer in doubt):
                    found.append((weight * decay, doubt, failure.accused))
        return found

    def _most_doubted(
        self, doubts: Sequence[tuple[float, Doubt, frozenset[PeerId]]], doubt_min: float
    ) -> PeerId | None:
        """Return the most doubted peer, or None if no doubts add up to `doubt_min`. Among equally
        doubted peers, choose the one that was left out least, so that they take turns. In case of a
        tie, choose the accused and not its accuser.
        """
        if not doubts:
            return None
        score, accused = defaultdict[PeerId, float](float), defaultdict[PeerId, float](float)
        for weight, doubt, named in doubts:
            for peer in doubt:
                score[peer] += weight
                accused[peer] += weight * (peer in named)
        rounded = {peer: round(it, 6) for peer, it in score.items()}
        worst = max(rounded.values())
        if worst < doubt_min:
            return None
        first = sorted(peer for peer, it in rounded.items() if it == worst)
        return min(first, key=lambda it: (round(self.missed.get(it, 0), 6), -accused[it]))
