"""Judge from evidence whether other sites can connect to this node's two ports.

There are two kinds of evidence. An *arrival* is a connection from another site that this node saw
itself. Nobody can fake one: its TCP handshake went to the other site and back. An *answer* is the
report of a member that tried to connect to this node, and a member may lie.

A lie costs little. If members report that this node is reached although it is not, this node
announces an address that does not work, and peers that dial it lose the time of the dial. If
members report that it is not reached although it is, this node dials its neighbours itself.
Nevertheless, answers count only if members at two different sites agree, and if they outnumber the
sites that disagree. So a minority of liars at different sites cannot change the result.

The two versions of IP are judged separately: a router that translates IPv4 addresses says nothing
about IPv6. The result is about IPv4, unless all members see this node at IPv6 addresses.

A port counts as reached only if most of all valid answers say so. It counts as not reached if most
of the newest answers say so, because an older answer may describe a port mapping that is gone.

This module is sans-IO. It does not know who is asked, or when (`reach_questions`), or how a result
is put into words (`reach_verdict`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer

EVIDENCE_S = 1500.0
"""Seconds after which evidence expires: two and a half periods of questions. One round may fail
without changing the result. Routers drop mappings after half an hour to two hours without use, so
older evidence says little. Newer answers outvote older evidence at once, so this limit matters only
if nobody answers."""

NEWEST_S = 60.0
"""Answers count as the newest ones if they are at most this much older than the last one, in
seconds. The answers of one round usually arrive within seconds, and rounds are further apart."""

AGREEING_SITES_MIN = 2
SITES_MAX = 64
"""Maximum number of sites whose answers are kept. In ten minutes three sites are asked."""


@dataclass(frozen=True, slots=True)
class PortsReached:
    """Whether other sites can connect to the control port and to the data port. None means that
    this node does not know."""

    control: bool | None = None
    data: bool | None = None


@dataclass(frozen=True, slots=True)
class _Answered:
    at_s: float
    answer: ReachAnswer


class ReachEvidence:
    """The evidence of one node. `now` must never decrease."""

    def __init__(self) -> None:
        self._since_s = -math.inf
        """Evidence from before this time concerns an address that this node no longer has."""
        self._answers: dict[str, _Answered] = {}
        """The newest answer of each site, oldest first."""

    def note_answer(self, site: str, answer: ReachAnswer, now: float) -> None:
        """Note the answer of a member at `site`, which must be another site than this node's."""
        self._answers.pop(site, None)
        self._answers[site] = _Answered(now, answer)
        if len(self._answers) > SITES_MAX:
            del self._answers[next(iter(self._answers))]

    def forget(self, now: float) -> None:
        """Forget all evidence, because this node's address or its port mapping has changed."""
        self._answers.clear()
        self._since_s = now

    def external_host(self, now: float, *, sites: int) -> str:
        """Return the address at which other sites see this node; "" if they do not agree.

        The newest answers count. Two sites must agree, unless there is only one (`sites`). A lie
        leads to a candidate address that does not work, and to one more round of questions. An IPv6
        address is returned only if no valid answer contains an IPv4 address, which peers without
        IPv6 need."""
        valid = self._valid(now)
        four = {site: it for site, it in valid.items() if version_of(it.answer.host) == 4}
        votes = Counter(each.answer.host for each in _newest(four or valid).values())
        ranked = votes.most_common(2)
        if not ranked or ranked[0][1] < _agreeing(sites):
            return ""
        return "" if len(ranked) == 2 and ranked[0][1] == ranked[1][1] else ranked[0][0]

    def observed_hosts(self, now: float) -> frozenset[str]:
        """Return the addresses in the newest answers. Some of them may be lies."""
        return frozenset(each.answer.host for each in _newest(self._valid(now)).values())

    def judge(
        self,
        control_arrivals: Mapping[str, float],
        data_arrivals: Mapping[str, float],
        now: float,
        *,
        sites: int,
        version: Literal[4, 6] = 4,
    ) -> PortsReached:
        """Judge both ports for one version of IP. The arrivals map each other site to the time of
        its newest connection. `sites`: number of other sites that have a connected member."""
        valid = {
            site: each
            for site, each in self._valid(now).items()
            if version_of(each.answer.host) == version
        }
        control = {site: (each.at_s, each.answer.control) for site, each in valid.items()}
        data = {site: (each.at_s, each.answer.data) for site, each in valid.items()}
        newest = _newest(valid).keys()
        since_s = max(self._since_s, now - EVIDENCE_S)
        return PortsReached(
            _judge_port(control, newest, _last(control_arrivals, since_s, version), sites),
            _judge_port(data, newest, _last(data_arrivals, since_s, version), sites),
        )

    def _valid(self, now: float) -> dict[str, _Answered]:
        oldest_s = now - EVIDENCE_S
        return {site: each for site, each in self._answers.items() if each.at_s >= oldest_s}


def _judge_port(
    outcomes: Mapping[str, tuple[float, DialOutcome]],
    newest: Collection[str],
    arrived_s: float | None,
    sites: int,
) -> bool | None:
    """Judge one port from the newest outcome of each site. `newest`: the sites that answered last.
    `arrived_s`: the time of the newest arrival. Failures outvote an arrival only if they are
    newer."""
    reached, failed = set[str](), set[str]()
    for site, (at_s, outcome) in outcomes.items():
        if outcome is DialOutcome.REACHED:
            reached.add(site)
        elif outcome is not DialOutcome.UNTRIED and (arrived_s is None or at_s > arrived_s):
            failed.add(site)
    lately = failed.intersection(newest)
    if len(lately) >= _agreeing(sites) and len(lately) > len(reached.intersection(newest)):
        return False
    if arrived_s is not None:
        return True
    enough = len(reached) >= AGREEING_SITES_MIN and len(reached) > len(failed)
    return True if enough else None


def _newest(answers: Mapping[str, _Answered]) -> dict[str, _Answered]:
    last_s = max((each.at_s for each in answers.values()), default=0.0)
    return {site: each for site, each in answers.items() if each.at_s >= last_s - NEWEST_S}


def _last(arrivals: Mapping[str, float], since_s: float, version: Literal[4, 6]) -> float | None:
    """Return the time of the newest arrival after `since_s` from a site with this version of IP;
    None if there is none."""
    found = (at for site, at in arrivals.items() if version_of(site) == version)
    return max((at for at in found if at >= since_s), default=None)


def version_of(host: str) -> Literal[4, 6]:
    """Return the version of IP of an address or a site."""
    return 6 if ":" in host else 4


def _agreeing(sites: int) -> int:
    """Return how many sites must agree, if `sites` other sites have a connected member."""
    return min(AGREEING_SITES_MIN, max(sites, 1))
