"""Decide when to ask members whether they can connect to this node, and which members to ask.

A node asks in rounds. A round begins at the start, every ten minutes, and when something changed
that may affect the answer. While a port is not reached, rounds are more frequent, because the user
may be about to forward it. In each round, up to three members at different sites are asked. A
member that connects later is asked in the same round, as long as the round lacks sites. A member
that does not answer soon is replaced, but its late answer still counts.

A node that is reached also makes spot checks between the rounds: it asks one member. If that
answer differs from what the node believes, a round begins, and only the round can change the
verdict. So a router that ceases to forward is noticed within two minutes, at little cost.

This module is sans-IO: the time, the connected members and the randomness are arguments. It does
not know what the answers say (`reach_evidence`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from p2ptrain.ids import PeerId

ROUND_EVERY_S = 600.0

UNREACHED_EVERY_S = 100.0
"""Interval of the rounds while a port is not reached: a user who has forwarded it sees the result
within two minutes. A round costs each of three members two short dials."""

SPOT_CHECK_EVERY_S = 90.0
"""Interval of the spot checks. A change is noticed within two minutes: this interval, the 5 s for
which a member dials, the look of the task at every 2 s, and then the same for the round."""

UNKNOWN_EVERY_S = 65.0
"""Interval of the rounds while the answers do not lead to a verdict."""

ROUND_SITES_MAX = 3
"""Maximum number of sites that are asked in a round. Two must agree, and the third one replaces a
member that lies or does not answer."""

PEER_AGAIN_S = 65.0
"""Minimum seconds between two questions to one member. A member answers once a minute; the other
five seconds cover the time on the way."""

FAILED_AGAIN_S = 15.0
"""Minimum seconds before a member is asked again that refused, was busy, or did not answer. If its
minute is not over yet, it refuses, which costs it little."""

OVERDUE_S = 8.0
"""Seconds after which another member is asked too: the 5 s for which a member dials, and the time
on the way. On a busy machine an answer takes longer."""

ROUND_AGAIN_S = 30.0
"""Minimum seconds between the beginnings of two rounds. Members report the address that they see,
so a liar can make this node believe that the address keeps changing. The limit bounds the traffic
that this causes."""


@dataclass(frozen=True, slots=True)
class Askable:
    """A connected member, and the site (the address group) of its connection."""

    peer: PeerId
    site: str


class ReachQuestions:
    """The rounds of one node. `now` must never decrease."""

    def __init__(self) -> None:
        self._began_s = -math.inf
        self._changed = False
        self._asked_s: dict[PeerId, float] = {}
        """When each member was last asked, as long as it must not be asked again."""
        self._again_s: dict[PeerId, float] = {}
        """When each of these members may be asked again."""
        self._last_s = -math.inf
        """When any member was last asked."""
        self._sites: dict[str, PeerId] = {}
        """The sites of this round whose member was asked and has not failed to answer."""
        self._answered: set[PeerId] = set()
        """The members that answered in this round."""
        self._spot_check: PeerId | None = None
        """The member that was asked outside a round, until it answers or a round begins."""

    def ask_again(self) -> None:
        """Begin a new round soon, because the answers may be different now."""
        self._changed = True

    def choose(
        self,
        members: Iterable[Askable],
        now: float,
        draw: random.Random,
        every_s: float = ROUND_EVERY_S,
    ) -> list[PeerId]:
        """Return the members to ask now; usually none. `members` are those that are connected and
        at other sites than this node. `every_s`: the interval of the rounds."""
        connected = sorted(members, key=lambda each: each.peer)
        self._begin_if_due(connected, now, every_s)
        self._forget_asked(now)
        waits = self._sites_in_time(now)
        # Peers can choose their ids, so the order must not depend on them.
        draw.shuffle(connected)
        chosen = list[PeerId]()
        for each in connected:
            if len(waits) >= ROUND_SITES_MAX:
                break
            if each.site not in self._sites and each.peer not in self._again_s:
                self._sites[each.site] = each.peer
                waits.add(each.site)
                self._note_asked(each.peer, now)
                chosen.append(each.peer)
        return chosen

    def choose_spot_check(
        self, members: Iterable[Askable], now: float, draw: random.Random
    ) -> list[PeerId]:
        """Return the member to ask for a spot check now; usually none. `members` are as for
        `choose`, which comes first: a round also serves as a spot check."""
        if now < self._last_s + SPOT_CHECK_EVERY_S:
            return []
        self._forget_asked(now)
        usable = sorted(it.peer for it in members if it.peer not in self._again_s)
        if not usable:
            return []
        peer = self._spot_check = draw.choice(usable)
        self._note_asked(peer, now)
        return [peer]

    def is_spot_check(self, peer: PeerId) -> bool:
        """Return whether the answer of `peer` is that of a spot check."""
        return peer == self._spot_check

    def note_answer(self, peer: PeerId) -> None:
        """Note that `peer` answered the question of this round, or a spot check."""
        if peer == self._spot_check:
            self._spot_check = None
        elif peer in self._sites.values():
            self._answered.add(peer)

    def note_failure(self, peer: PeerId) -> None:
        """Note that `peer` did not answer, or did not try to connect. A member at another site is
        asked instead, and `peer` is asked again soon."""
        if peer in self._asked_s:
            self._again_s[peer] = self._asked_s[peer] + FAILED_AGAIN_S
        if peer == self._spot_check:
            self._spot_check, self._last_s = None, -math.inf
        for site in [site for site, asked in self._sites.items() if asked == peer]:
            del self._sites[site]

    def _note_asked(self, peer: PeerId, now: float) -> None:
        self._asked_s[peer] = self._last_s = now
        self._again_s[peer] = now + PEER_AGAIN_S

    def _forget_asked(self, now: float) -> None:
        self._again_s = {peer: at for peer, at in self._again_s.items() if now < at}
        self._asked_s = {peer: self._asked_s[peer] for peer in self._again_s}

    def _sites_in_time(self, now: float) -> set[str]:
        """Return the sites of this round that have answered or are not overdue yet."""
        return {
            site
            for site, peer in self._sites.items()
            if peer in self._answered or now < self._asked_s.get(peer, -math.inf) + OVERDUE_S
        }

    def _begin_if_due(self, connected: list[Askable], now: float, every_s: float) -> None:
        """Begin a round if one is due. One is also due when all members that answered in this round
        have disconnected and others are connected: this node may have moved to another network."""
        lost = bool(self._answered and connected) and self._answered.isdisjoint(
            each.peer for each in connected
        )
        changed = (self._changed or lost) and now >= self._began_s + ROUND_AGAIN_S
        if changed or now >= self._began_s + every_s:
            self._began_s, self._changed = now, False
            self._sites.clear()
            self._answered.clear()
            self._spot_check = None
