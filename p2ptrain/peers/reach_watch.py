"""Watch how others reach one node: the questions, the evidence and the verdict.

Use this class in a task that asks the chosen members, passes their answers in, and shows the
verdict. The class is sans-IO: the time, the randomness, the connected members and the arrivals are
arguments. It does not know how a question is sent.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from p2ptrain.ids import PeerId
from p2ptrain.peers.reach_evidence import PortsReached, ReachEvidence, version_of
from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer
from p2ptrain.peers.reach_questions import (
    ROUND_EVERY_S,
    UNKNOWN_EVERY_S,
    UNREACHED_EVERY_S,
    Askable,
    ReachQuestions,
)
from p2ptrain.peers.reach_verdict import (
    NO_OTHER_WAYS,
    NOT_ASKED,
    OpenedPorts,
    OtherWays,
    OwnPlace,
    Reach,
    Verdict,
    verdict,
)

ROUTER_S = 8.0
"""Maximum seconds for which the first questions wait for the router, which may be about to open the
ports. It takes up to 5 s to find out that a router does not answer. A question that comes too early
has a useless answer, and the member answers the next one only after a minute."""

_EVERY_S = {
    Reach.HALF: UNREACHED_EVERY_S,
    Reach.CLOSED: UNREACHED_EVERY_S,
    Reach.BLOCKED: UNREACHED_EVERY_S,
    Reach.UNKNOWN: UNKNOWN_EVERY_S,
}
"""The interval of the rounds for each verdict; ROUND_EVERY_S for the others."""


@dataclass(frozen=True, slots=True)
class AskedAbout:
    """The subject of a question: the node's place, and the ports that its router has opened. An
    answer does not count if they have changed in the meantime."""

    place: OwnPlace
    opened: tuple[int, int] | None = None


class ReachWatch:
    """The reachability of one node. `now` must never decrease."""

    def __init__(self) -> None:
        self.ports = PortsReached()
        """The result for the version of IP that the verdict is about."""
        self.data_by_ipv6: bool | None = None
        """Whether other sites can connect to the data port by IPv6; None if it is not known."""
        self.verdict: Verdict = NOT_ASKED
        self.external_host = ""
        """The address at which other sites see this node; "" if it is not known."""
        self._questions = ReachQuestions()
        self._evidence = ReachEvidence()
        self._sites = 0
        """Number of other sites that have a connected member."""
        self._where: AskedAbout | None = None
        self._waits_until_s: float | None = None
        """When the first questions are asked at the latest."""

    def choose(
        self,
        members: Iterable[Askable],
        now: float,
        draw: random.Random,
        *,
        asks_router: bool = False,
    ) -> list[PeerId]:
        """Return the members to ask now; usually none. `members` are those that are connected and
        at other sites than this node. `asks_router`: whether this node is still waiting for the
        answer of its router. The first questions then wait too."""
        connected = list(members)
        self._sites = len({each.site for each in connected})
        if self._waits_until_s is None:
            self._waits_until_s = now + ROUTER_S
        if asks_router and now < self._waits_until_s:
            return []
        self._waits_until_s = now
        every_s = _EVERY_S.get(self.verdict.reach, ROUND_EVERY_S)
        chosen = self._questions.choose(connected, now, draw, every_s)
        if not chosen and self.verdict.reach in (Reach.OPEN, Reach.MAPPED):
            return self._questions.choose_spot_check(connected, now, draw)
        return chosen

    def note_answer(
        self, asked: Askable, about: AskedAbout, answer: ReachAnswer, now: float
    ) -> None:
        """Note an answer to the question `about` this place and these ports. An answer about others
        than now does not count, and neither does one of a member that was too busy.

        If the members now agree on another external address than before, forget the earlier answers
        and ask again. Also ask again if a spot check has a new result."""
        untried = answer.control is answer.data is DialOutcome.UNTRIED
        if untried or self._where not in (None, about):
            self._questions.note_failure(asked.peer)
            return
        if self._questions.is_spot_check(asked.peer) and self._is_news(answer):
            self._questions.ask_again()
        self._questions.note_answer(asked.peer)
        self._evidence.note_answer(asked.site, answer, now)
        seen = self._evidence.external_host(now, sites=self._sites)
        if seen and seen != self.external_host:
            if self.external_host:
                self._begin_anew(now)
            self.external_host = seen

    def observed_hosts(self, now: float) -> frozenset[str]:
        """Return the addresses at which other sites saw this node lately, as each of them says."""
        return self._evidence.observed_hosts(now)

    def note_failure(self, peer: PeerId) -> None:
        """Note that `peer` did not answer, or refused to."""
        self._questions.note_failure(peer)

    def judge(
        self,
        place: OwnPlace,
        control_arrivals: Mapping[str, float],
        data_arrivals: Mapping[str, float],
        now: float,
        opened: OpenedPorts | None = None,
        other_ways: OtherWays = NO_OTHER_WAYS,
    ) -> bool:
        """Update the verdict, and return whether it changed. If this node's address in its local
        network or its opened ports have changed, forget the earlier evidence and ask again. The
        arrivals map each other site to the time of its newest connection to this node."""
        self._note_place(about_now(place, opened), now)
        were = self.ports
        judged = partial(
            self._evidence.judge, control_arrivals, data_arrivals, now, sites=self._sites
        )
        self.ports = judged(version=version_of(self.external_host))
        self.data_by_ipv6 = judged(version=6).data
        if _is_half_news(were, self.ports):
            self._questions.ask_again()
        place = replace(place, translated=place.lan_host != self.external_host)
        before, self.verdict = self.verdict, verdict(self.ports, place, opened, other_ways)
        return self.verdict != before

    def _note_place(self, where: AskedAbout, now: float) -> None:
        """Note where this node is, and which ports are open there. After a change, earlier evidence
        does not count, and members are asked again."""
        if self._where not in (None, where):
            self._begin_anew(now)
            if self._where is not None and self._where.place.lan_host != where.place.lan_host:
                self.external_host = ""
        self._where = where

    def _is_news(self, answer: ReachAnswer) -> bool:
        """Return whether a node that is reached should ask others because of this answer. An answer
        about the other version of IP does not say anything about the verdict."""
        if version_of(answer.host) != version_of(self.external_host):
            return False
        as_before = (DialOutcome.REACHED, DialOutcome.UNTRIED)
        moved = answer.host != self.external_host != ""
        return moved or answer.control not in as_before or answer.data not in as_before

    def _begin_anew(self, now: float) -> None:
        self._evidence.forget(now)
        self._questions.ask_again()


def about_now(place: OwnPlace, opened: OpenedPorts | None) -> AskedAbout:
    """Return what a question is about if it is asked now."""
    ports = None if opened is None else (opened.control_port, opened.data_port)
    return AskedAbout(place, ports)


def _is_half_news(were: PortsReached, now: PortsReached) -> bool:
    """Return whether a port that was not reached is reached now, and the other one still counts as
    not reached. Its owner has probably just forwarded both, and only one has seen a connection."""
    pairs = ((were.control, now.control, now.data), (were.data, now.data, now.control))
    return any(was is False and bool(one) and other is False for was, one, other in pairs)
