"""Decide how long a proposer's turn lasts, and which voters may end it early.

A silent proposer costs all voters a full round. With n voters, each proposes once in n heights, so
one silent voter of six doubled the duration of a short outer step. So a node remembers which
proposers did not use their turn: they are *tardy*, and get little time. A short turn does no harm:
the next proposer proposes the same value. Safety does not depend on any of this, because a round
may begin at any time (SPEC.md, "Liveness").
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.paxos.timers import round_s

TARDY_PART = 1 / 16
"""The length of a tardy proposer's turn, as a fraction of a round: 0.125 s of 2 s. A proposer with
a fast connection can still propose in that time. If a slow one cannot, the next one soon starts.
"""

TARDY_HEIGHTS = 256
"""Number of heights for which a proposer stays tardy, unless a height is decided in one of its
rounds before that. A silent voter then costs the others one round of 2 s in 256 heights. An outer
step takes two heights, so if a step lasts 1.5 s, the cost is 2 s in 192 s, or 1 % of the time.
"""


SHORT_TURNS = 2
"""Maximum number of short turns of one voter at a height: its regular turn, and one more that it
can take by preparing a later round of its own before the current turn ends (`is_hurried_by`).
"""

TARDY_VOTERS = 3
"""At most one in this number of voters may count as tardy. If more turns end without a decision,
the cause is a slow network, or liars that end rounds early. When all voters had short turns, they
were in different rounds all the time, and a simulated run stalled.
"""


@dataclass(slots=True)
class Tardiness:
    """Remembers tardy proposers. `until`: the height at which each of them stops being tardy."""

    until: dict[PeerId, int] = field(default_factory=dict)

    def decided(self, round: int, turns: Turns) -> None:
        """Record that the height of `turns` was decided in `round`."""
        height = turns.electorate.height
        self.until = {peer: until for peer, until in self.until.items() if until > height}
        if are_few(turns.lapsed, turns.electorate):
            self.until |= dict.fromkeys(turns.lapsed, height + TARDY_HEIGHTS)
        self.until.pop(turns.electorate.proposer(round), None)

    def at(self, height: int) -> frozenset[PeerId]:
        """Return the proposers that are tardy at `height`."""
        return frozenset(peer for peer, until in self.until.items() if until > height)


def are_few(tardy: AbstractSet[PeerId], electorate: Electorate) -> bool:
    return len(tardy & electorate.names) * TARDY_VOTERS <= len(electorate.voters)


class Turns:
    """The turns of one height.

    - `tardy`: the proposers that get short turns; none if too many voters are tardy.
    - `lapsed`: the proposers, except this node, whose turns ended without a decision.
    - `ends_at`: when the current turn ends; None if no decision is pending.
    """

    def __init__(self, electorate: Electorate, tardy: frozenset[PeerId] = frozenset()) -> None:
        self.tardy = tardy if are_few(tardy, electorate) else frozenset()
        self.lapsed: set[PeerId] = set()
        self.electorate = electorate
        self.ends_at: float | None = None
        self._timeouts = 0
        self._shortened: dict[PeerId, int] = {}
        self._is_short = False
        self._hurried_at: dict[PeerId, float] = {}

    @property
    def _round_s(self) -> float:
        """The length of a full turn, in seconds."""
        return round_s(self.electorate.rules.round_timeout_s, self._timeouts)

    def begin(self, round: int, now: float) -> None:
        """Start the turn of the proposer of `round`, unless a turn is in progress."""
        if self.ends_at is not None:
            return
        proposer = self.electorate.proposer(round)
        self._is_short = proposer in self.tardy and self._shortened.get(proposer, 0) < SHORT_TURNS
        if self._is_short:
            self._shortened[proposer] = self._shortened.get(proposer, 0) + 1
            self.ends_at = now + TARDY_PART * self.electorate.rules.round_timeout_s
        else:
            self.ends_at = now + self._round_s

    def expired(self, now: float) -> bool:
        """Return whether the current turn is over. If so, forget it."""
        if self.ends_at is None or now < self.ends_at:
            return False
        self.ends_at = None
        return True

    def lapse(self, round: int) -> None:
        """Record that the turn of `round` ended undecided. Full turns lengthen later ones."""
        self._timeouts += not self._is_short
        self.lapsed |= {self.electorate.proposer(round)} - {self.electorate.me}

    def stop(self) -> None:
        self.ends_at = None

    def is_hurried_by(self, sender: PeerId, now: float) -> bool:
        """Return whether `sender`, which prepares a later round, ends the current turn early
        although it did so recently. If it did not, remember that it does so now.

        Between two such times there must be enough time for every voter to have a turn. Otherwise
        one voter could keep all others from deciding (SPEC.md, "Liveness"). Tardy voters are not
        treated differently: nodes disagree on who is tardy, so some of them would refuse the rounds
        of an honest proposer.

        A turn that ends within the last `round_timeout_s` ÷ 4 does not end early: nodes may start a
        turn at times that differ by this much.
        """
        timeout_s = self.electorate.rules.round_timeout_s
        if self.ends_at is not None and now >= self.ends_at - timeout_s / 4:
            return False
        pause_s = len(self.electorate.voters) * self._round_s
        if now < self._hurried_at.get(sender, -pause_s) + pause_s:
            return True
        self._hurried_at[sender] = now
        return False
