"""Watch how others reach one node: the questions, the evidence and the verdict.

Use this class in a task that asks the chosen members, passes their answers in, and shows the
verdict. The class is sans-IO: the time, the randomness, the connected members and the arrivals are
arguments. It does not know how a question is sent.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from p2ptrain.ids import PeerId
from p2ptrain.peers.reach_evidence import PortsReached, ReachEvidence, version_of
from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer
from p2ptrain.peers.reach_questions import (
    ROUND_EVERY_S,
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
        self._where: tuple[OwnPlace, tuple[int, int] | None] | None = None

    def choose(self, members: Iterable[Askable], now: float, draw: random.Random) -> list[PeerId]:
        """Return the members to ask now; usually none. `members` are those that are connected and
        at other sites than this node."""
        connected = list(members)
        self._sites = len({each.site for each in connected})
        unreached = self.verdict.reach in (Reach.HALF, Reach.CLOSED, Reach.BLOCKED)
        every_s = UNREACHED_EVERY_S if unreached else ROUND_EVERY_S
        chosen = self._questions.choose(connected, now, draw, every_s)
        if not chosen and self.verdict.reach in (Reach.OPEN, Reach.MAPPED):
            return self._questions.choose_spot_check(connected, now, draw)
        return chosen

    def note_answer(self, asked: Askable, answer: ReachAnswer, now: float) -> None:
        """Note an answer. If the members now agree on another external address than before, forget
        the earlier answers and ask again. Also ask again if a spot check has a new result."""
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
        ports = None if opened is None else (opened.control_port, opened.data_port)
        if self._where not in (None, (place, ports)):
            self._begin_anew(now)
            if self._where is not None and self._where[0].lan_host != place.lan_host:
                self.external_host = ""
        self._where = place, ports
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


def _is_half_news(were: PortsReached, now: PortsReached) -> bool:
    """Return whether a port that was not reached is reached now, and the other one still counts as
    not reached. Its owner has probably just forwarded both, and only one has seen a connection."""
    pairs = ((were.control, now.control, now.data), (were.data, now.data, now.control))
    return any(was is False and bool(one) and other is False for was, one, other in pairs)
