"""A participant that spoils reduces, and checkers that bound the harm, in worlds with few peers.

The spoiler keeps the rules of consensus, unlike the liars in other worlds. But it makes its reduces
fail and accuses others. An honest peer that may have caused failures sits out: it does not take
part in some reduces. The spoiler ignores past failures: it never sits out, and can leave out
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.quorum import proposer
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.ledger.messages.effects import Effect, Send
from p2ptrain.ledger.messages.messages import Prepare, Propose
from p2ptrain.ledger.policy.blame import LEFT_OUT_REFUSED, Failure, FailureMemory
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import digest
from p2ptrain.simulation.node import SimNode


class Spoil(Enum):
    SILENT = "it sends nothing"
    TRICKLE = "it sends too little, for as long as that is possible"
    ACCUSE_ONE = "it always accuses the same peer, and is honest in reduces without that peer"
    ACCUSE_ALL = "it accuses all others"
    ACCUSE_IN_TURN = "it accuses a different peer each time"
    LAST_MOMENT = "it is honest until its last segment, and then reports that it is done"
    TWO_MEANS = "it sends others different means, and they cannot tell which peer did"
    REFORMED = "it is silent at first, and then honest"
    LONG_SILENCE = "it sends nothing, and others wait for it for as long as three outer steps"
    MUTE = "it is honest in reduces, but never proposes anything"
    LEAVE_OUT = "it is silent, and leaves out the same peer whenever it proposes"


SILENT_S = 1.5
TRICKLE_S = 2.0
"""Seconds that others wait for a spoiler that sends too little: a tenth of the default limit
(SPEC.md, "Liveness")."""

LONG_SILENCE_S = 6.0
"""Seconds of silence, as long as three outer steps. It is well below `Profile.settle_s`, since a
world without a commit for that time counts as stuck."""

ABORT_S = 0.1

WAIT_S = {Spoil.TRICKLE: TRICKLE_S, Spoil.LONG_SILENCE: LONG_SILENCE_S}

REFORMED_AFTER = 4


@dataclass(frozen=True, slots=True)
class SpoiledEnding:
    """The end of a spoiled reduce: after `after_s`, each participant makes its `accusations`. The
    participants in `made` have an update nevertheless; if `differ`, each has a different one."""

    after_s: float
    accusations: dict[PeerId, tuple[PeerId, ...]] = field(default_factory=dict)
    made: frozenset[PeerId] = frozenset()
    differ: bool = False


def ending(
    spoil: Spoil, peers: tuple[PeerId, ...], liar: PeerId, victim: PeerId, count: int
) -> SpoiledEnding | None:
    """Return how the spoiler's `count`th reduce ends among `peers`, in ring order; None if it
    succeeds."""
    if spoil is Spoil.MUTE or (spoil is Spoil.REFORMED and count > REFORMED_AFTER):
        return None
    at = peers.index(liar)
    others = sorted(peer for peer in peers if peer != liar)
    if not others:
        return SpoiledEnding(ABORT_S, made=frozenset(peers) - {liar})
    neighbour = peers[(at + 1) % len(peers)]
    if spoil is Spoil.ACCUSE_ONE:
        return SpoiledEnding(ABORT_S, {liar: (victim,)}) if victim in peers else None
    if spoil is Spoil.ACCUSE_ALL:
        return SpoiledEnding(ABORT_S, {liar: tuple(others)})
    if spoil is Spoil.ACCUSE_IN_TURN:
        return SpoiledEnding(ABORT_S, {liar: (others[count % len(others)],)})
    if spoil is Spoil.TWO_MEANS:
        return SpoiledEnding(ABORT_S, made=frozenset(peers), differ=True)
    late = frozenset({liar}) if spoil is Spoil.LAST_MOMENT else frozenset[PeerId]()
    wait_s = WAIT_S.get(spoil, SILENT_S)
    told = {} if spoil is Spoil.LAST_MOMENT else {liar: (neighbour,)}
    return SpoiledEnding(wait_s, {**told, neighbour: (liar,)}, made=late)


class UnfairMemory(FailureMemory):
    """A spoiler's memory of failures: only the victim sits out, if there is one, and never the
    spoiler."""

    def __init__(self, victim: PeerId | None) -> None:
        super().__init__()
        self.victim = victim

    def sitting_out(
        self,
        able: Set[PeerId],
        most: int,
        under_way: Failure | None = None,
        *,
        untraced: bool = False,
    ) -> frozenset[PeerId]:
        return frozenset({self.victim} & able) if self.victim and most > 0 else frozenset()


class Spoiler(SimNode):
    def __init__(self, *place: Any, random: Random, **rest: Any) -> None:
        super().__init__(*place, **rest)
        # With two peers, a long silence would spoil three attempts, and the run would count as
        # stuck.
        few = len(self._rules.founders) <= 2
        kinds = [it for it in Spoil if not (few and it is Spoil.LONG_SILENCE)]
        self.spoil = random.choice(kinds)
        self.spoiled = 0

    def boot(self) -> None:
        super().boot()
        others = [peer for peer in self._rules.founders if peer != self.me]
        victim = others[0] if self.spoil is Spoil.LEAVE_OUT else None
        self.ledger.reports.blame = UnfairMemory(victim)

    def _carry_out(self, effect: Effect) -> None:
        proposes = isinstance(effect, Send) and isinstance(effect.message, Prepare | Propose)
        if not (self.spoil is Spoil.MUTE and proposes):
            super()._carry_out(effect)

    def ending(self, peers: tuple[PeerId, ...]) -> SpoiledEnding | None:
        self.spoiled += 1
        victim = next(peer for peer in self._rules.founders if peer != self.me)
        return ending(self.spoil, peers, self.me, victim, self.spoiled)


# ── limits of the harm ───────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class SpoilersCostLittle(Watch):
    """A spoiler costs few attempts: a few until the others suspect it, one each time it is admitted
    again, and those that it proposes itself."""

    lost: int = 0
    commits: int = 0
    skips: int = 0

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first or decision.before.roster is None:
            return
        committed = isinstance(decision.value, Commit)
        self.commits += committed
        self.lost += not committed
        self.skips += decision.before.step != decision.after.step and not committed
        allowed = LOST_FIRST + (self.commits + self.skips) * LOST_SHARE
        if self.lost > allowed:
            self.object(f"{self.lost} attempts were lost for {self.commits} commits")


LOST_FIRST = 14
"""Number of lost attempts allowed at the start. If a spoiler leaves no evidence, participants sit
out in turn until it is found. Each outer step that fails meanwhile costs three attempts."""

LOST_SHARE = 0.3
"""Number of lost attempts allowed per outer step. If failures were forgotten, half of all attempts
would fail."""


@dataclass(slots=True)
class ExclusionsAreShared(Watch):
    """Honest peers are not left out more often than the spoiler, except for accidents at the start,
    and they are not left out for ever."""

    spoilers: Mapping[PeerId, Spoiler]
    left_out: Counter[PeerId] = field(default_factory=Counter)
    running: Counter[PeerId] = field(default_factory=Counter)

    def on_decision(self, decision: Decision) -> None:
        roster = decision.before.roster
        committed = isinstance(decision.value, Commit)
        if not decision.is_first or not committed or roster is None:
            return
        taking = set(roster.peers)
        for peer in decision.before.members:
            self.running[peer] = 0 if peer in taking else self.running[peer] + 1
            self.left_out[peer] += peer not in taking
        self._judge_reformed()
        spoiler = max((self.left_out[peer] for peer in self.spoilers), default=0)
        for peer in decision.before.members:
            if peer not in self.spoilers:
                self._judge(peer, spoiler)

    def _judge_reformed(self) -> None:
        """Check that a peer that has stopped spoiling is admitted again."""
        for peer, node in self.spoilers.items():
            if node.spoil is Spoil.REFORMED and self.left_out[peer] > FORGIVEN_AFTER:
                self.object(
                    f"{peer} was left out {self.left_out[peer]} times because of past failures"
                )

    def _judge(self, peer: PeerId, spoiler: int) -> None:
        if self.left_out[peer] > spoiler + SHARE_SLACK:
            self.object(
                f"{peer} was left out {self.left_out[peer]} times, the spoiler {spoiler} times"
            )
        if self.running[peer] > LEFT_OUT_REFUSED:
            self.object(f"{peer} was left out {self.running[peer]} times in a row")


@dataclass(slots=True)
class SpoilersCostLittleTime(Watch):
    """An expensive spoiler is rarely admitted, and others soon stop waiting long for a proposer
    that does not propose."""

    spoilers: Mapping[PeerId, Spoiler]
    at_s: float = 0.0
    lost_s: float = 0.0
    slow: int = 0

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first:
            return
        took_s, self.at_s = decision.at_s - self.at_s, decision.at_s
        if decision.before.roster is None:
            return
        if not isinstance(decision.value, Commit):
            self.lost_s += took_s
        for peer, node in self.spoilers.items():
            if node.spoil is Spoil.LONG_SILENCE:
                self._judge_silence()
            elif node.spoil is Spoil.MUTE:
                self._judge_turn(peer, decision, took_s)

    def _judge_silence(self) -> None:
        if self.lost_s > EXPENSIVE_FIRST * LONG_SILENCE_S + EXPENSIVE_SHARE * self.at_s:
            self.object(f"{self.lost_s:.0f} s of {self.at_s:.0f} s were lost in failed attempts")

    def _judge_turn(self, peer: PeerId, decision: Decision, took_s: float) -> None:
        """Count the turns in which others waited for the whole timeout. Each voter may have to do
        so once, because it learns that a proposer is slow only by reaching the timeout first."""
        state = decision.before
        first = proposer(state.voters, state.height + 1, 0)
        self.slow += first == peer and took_s > REDUCE_AND_TURN_S
        if self.slow > len(state.voters):
            self.object(f"{peer} does not propose, and cost a whole turn {self.slow} times")


EXPENSIVE_FIRST = 5
"""Number of expensive failures allowed at the start: one for each proposer that does not remember a
failure yet, and one that the spoiler proposes itself."""

EXPENSIVE_SHARE = 0.1
"""Fraction of the time that failed attempts may cost. It is twice `blame.LOST_SHARE`, which is the
bound for one proposer, because each proposer remembers different failures."""

REDUCE_AND_TURN_S = 1.1
"""Seconds. A longer decision has cost a whole turn: a reduce takes at most 0.6 s, and a whole turn
adds 0.6 s."""

FORGIVEN_AFTER = 32
"""Maximum number of commits without a reformed peer: each of its four failures costs at most one
half-life of 8 commits."""

SHARE_SLACK = 4
"""Additional exclusions allowed before the spoiler is suspected, and for ties, where peers take
turns sitting out."""


def update_apart(update: Digest, peer: PeerId) -> Digest:
    """Return the update of `peer` if each participant is sent a different average."""
    return digest(f"{update} {peer}")
