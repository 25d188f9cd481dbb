"""Remembers failed attempts across outer steps, and says which peers sit out the next attempt.

A failed attempt leaves *doubts*: sets of participants of which at least one is at fault. If one
participant accuses another, one of the two is: the accused, or a liar that accuses. So an accuser
is doubted as much as those it accuses, and a liar that accuses many is doubted most. A participant
that accuses itself is doubted alone. If nobody was accused, the participants that failed attempts
had and the committed attempt did not have are doubted together.

The most doubted peer sits out first, and the doubts that its absence explains are dropped; then the
next most doubted, up to a limit. Doubts halve every HALF_LIFE commits: time is counted in committed
outer steps, so that a run that stands still forgives nobody and needs no clock.

Nothing here is agreed: it decides what a node proposes. `accept` bounds what others may do with it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId

HALF_LIFE = 8
"""Commits after which a failed attempt counts half. A peer that fails every attempt is then let in
again after 8 or 9 commits, and one that failed twice by accident is forgiven as soon."""

DOUBT_MIN = 1.0
"""A peer sits out while this much speaks against it. One failure weighs 1 in its own outer step,
and less after the next commit: a single accident costs a peer one attempt, as it always did."""

DOUBT_MIN_UNTRACED = 0.25
"""The same where an attempt of this outer step failed and nobody was accused: then what is left of
an older failure is the only hint. Two half-lives."""

LEFT_OUT_MAX = 15
"""Commits in a row after which nobody proposes to leave a peer out for its past. Two half-lives:
one failure more would be forgiven by then."""

LEFT_OUT_REFUSED = 2 * LEFT_OUT_MAX + 1
"""Commits in a row, without a peer that was ready for each, after which voters refuse another
roster without it. Twice what honest proposers do: those that joined late count fewer commits."""

FAILURES_KEPT = 32
"""Older failures weigh less than a sixteenth, unless attempt after attempt fails: then newer ones
tell enough."""

CONFESSION = 0.5
"""What it weighs that a peer accuses itself. It is left out until it is ready again anyway, and
restarts are no lies; but a peer whose work is lost step after step costs others an attempt each."""

ACCUSED_MAX = 4
"""Of one report, so many accusations count: honest reports name one peer or two."""

Doubt = frozenset[PeerId]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, after `commits` commits. `accused` are the peers that others accuse, and
    `confessed` those that accuse themselves.
    """

    commits: int
    doubts: tuple[Doubt, ...]
    accused: frozenset[PeerId] = frozenset()
    confessed: frozenset[PeerId] = frozenset()

    def weighed(self, commits: int) -> list[tuple[float, Doubt]]:
        """Return what each doubt weighs after `commits` commits: one failure weighs at most 1
        against anybody, however many accusers it has.
        """
        most = max(Counter(peer for doubt in self.doubts for peer in doubt).values())
        weight = math.pow(2.0, (self.commits - commits) / HALF_LIFE) / most
        return [
            (weight * CONFESSION if doubt <= self.confessed else weight, doubt)
            for doubt in self.doubts
        ]


@dataclass(slots=True)
class Memory:
    """What this process has seen fail. The chain alone says who took part in what; what
    participants reported is forgotten when the process ends.

    `untraced` are the participants of this outer step's attempts that failed without an accusation.
    `absent` counts the commits since a member last took part in an attempt, failed ones included;
    `missed` all attempts without it, with the same decay as doubts. `ready` are the peers known to
    be ready when the attempt under way was opened, and `kept_out` counts as `absent` does, but only
    the commits for which the member was ready.
    """

    commits: int = 0
    failures: deque[Failure] = field(default_factory=lambda: deque(maxlen=FAILURES_KEPT))
    untraced: list[frozenset[PeerId]] = field(default_factory=list)
    absent: dict[PeerId, int] = field(default_factory=dict)
    missed: dict[PeerId, float] = field(default_factory=dict)
    ready: frozenset[PeerId] = frozenset()
    kept_out: dict[PeerId, int] = field(default_factory=dict)

    def failure(
        self, peers: Collection[PeerId], reports: Mapping[PeerId, Iterable[PeerId]]
    ) -> Failure | None:
        """What the participants `peers` accuse each other of; None if nobody is accused.

        `reports` are the suspects that each peer named for this very attempt. Words of peers that
        did not take part, and about them, do not count. Pairs count once, whoever accused first.
        """
        doubts, members = dict[Doubt, None](), set(peers)
        accused, confessed = set[PeerId](), set[PeerId]()
        for reporter in sorted(members & reports.keys()):
            suspects = list(reports[reporter])
            if reporter in suspects:
                confessed.add(reporter)
                doubts[frozenset((reporter,))] = None
                continue
            named = [peer for peer in suspects if peer in members][:ACCUSED_MAX]
            accused.update(named)
            doubts.update((frozenset((reporter, peer)), None) for peer in named)
        if not doubts:
            return None
        return Failure(self.commits, tuple(doubts), frozenset(accused), frozenset(confessed))

    def opened(
        self, peers: Collection[PeerId], members: Iterable[PeerId], ready: Iterable[PeerId]
    ) -> None:
        """An attempt of `peers` begins, in a run of `members`; this node knows that the peers in
        `ready` could take part.

        A participant has had its chance: only later failures count against it.
        """
        self.ready = frozenset(ready)
        for peer in peers:
            self.absent.pop(peer, None)
            self.kept_out.pop(peer, None)
        taking = frozenset(peers)
        for member in members:
            if member not in taking:
                self.missed[member] = self.missed.get(member, 0.0) + 1.0

    def failed(self, peers: Collection[PeerId], reports: Mapping[PeerId, Iterable[PeerId]]) -> None:
        """The attempt of `peers` is given up."""
        failure = self.failure(peers, reports)
        if failure is None:
            self.untraced.append(frozenset(peers))
        else:
            self.failures.append(failure)

    def committed(self, peers: Collection[PeerId], members: Iterable[PeerId]) -> None:
        """The attempt of `peers` was committed, in a run of `members`."""
        suspects = frozenset[PeerId]().union(*self.untraced) - frozenset(peers)
        if suspects:
            self.failures.append(Failure(self.commits, (suspects,)))
        self.untraced.clear()
        self.commits += 1
        taking, forgets = frozenset(peers), math.pow(2.0, -1 / HALF_LIFE)
        left = [member for member in members if member not in taking]
        self.absent = {peer: self.absent.get(peer, 0) + 1 for peer in left}
        self.kept_out = {
            peer: self.kept_out.get(peer, 0) + 1 for peer in left if peer in self.ready
        }
        self.missed = {peer: it * forgets for peer, it in self.missed.items() if it > 0.05}

    def skipped(self) -> None:
        """The outer step is given up: no attempt shows who was missing in what worked."""
        self.untraced.clear()

    def sitting_out(
        self,
        able: Set[PeerId],
        most: int,
        under_way: Failure | None = None,
        *,
        untraced: bool = False,
    ) -> frozenset[PeerId]:
        """At most `most` of those who are `able` to take part, the most doubted first.

        A doubt about somebody who will not be there is explained by that. So is a doubt about a
        peer that was left out for LEFT_OUT_MAX commits: it is let in once, whatever is said of it.
        Where an attempt of this outer step failed without an accusation, old doubts are enough.
        """
        doubt_min = DOUBT_MIN_UNTRACED if self.untraced or untraced else DOUBT_MIN
        doubts = self._doubts_among(able, under_way)
        out: list[PeerId] = []
        while len(out) < most and (worst := self._most_doubted(doubts, doubt_min)) is not None:
            out.append(worst)
            doubts = [it for it in doubts if worst not in it[1]]
        return frozenset(out)

    def against(self, peer: PeerId, among: Set[PeerId], under_way: Failure | None = None) -> float:
        """What the doubts about `peer` weigh where those in `among` take part."""
        doubts = self._doubts_among(among, under_way)
        return sum(weight for weight, doubt, _ in doubts if peer in doubt)

    def _doubts_among(
        self, able: Set[PeerId], under_way: Failure | None
    ) -> list[tuple[float, Doubt, frozenset[PeerId]]]:
        return [
            (weight, doubt, failure.accused)
            for failure in (*self.failures, *(() if under_way is None else (under_way,)))
            for weight, doubt in failure.weighed(self.commits)
            if doubt <= able and all(self.absent.get(peer, 0) < LEFT_OUT_MAX for peer in doubt)
        ]

    def _most_doubted(
        self, doubts: Iterable[tuple[float, Doubt, frozenset[PeerId]]], doubt_min: float
    ) -> PeerId | None:
        """Of equally doubted peers, the one that was left out least comes first: so they take
        turns. Then the accused before its accuser.
        """
        score, accused = defaultdict[PeerId, float](float), defaultdict[PeerId, float](float)
        for weight, doubt, named in doubts:
            for peer in doubt:
                score[peer] += weight
                accused[peer] += weight * (peer in named)
        rounded = {peer: round(it, 6) for peer, it in score.items()}
        worst = max(rounded.values(), default=0.0)
        if worst < doubt_min:
            return None
        first = sorted(peer for peer, it in rounded.items() if it == worst)
        return min(first, key=lambda it: (round(self.missed.get(it, 0), 6), -accused[it]))
