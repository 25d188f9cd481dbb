"""Decide which members may take part in a reduce: in the first attempt of an outer step, and in the
attempts that follow a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.ledger.policy.blame import DOUBT_MIN
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.suspicion import Suspicion

TRIES_BY_SUSPICION = 2
"""Attempts after which participants sit out by turns. A run that allows no more attempts has no
turns.
"""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The members that are ready for the step under way, and whether these are `enough` to go on
    without the rest.

    - `awaited`: members that are up, were members before this step began, and are not ready.
      Founders that were down and have not caught up since are not among them (`Reports.returned`).
    - `punctual`: those of the awaited that took part in most recent attempts (`grace`).
    - `doubted`: contributors and otherwise awaited members that sit out the first attempt because
      of past failures (`blame`). They may be ready, but are not awaited.
    """

    ready: frozenset[PeerId]
    contributors: tuple[Participant, ...]
    awaited: tuple[PeerId, ...]
    enough: bool
    doubted: frozenset[PeerId] = frozenset()
    punctual: frozenset[PeerId] = frozenset()


def readiness(rules: Rules, state: LedgerState, reports: Reports) -> Readiness:
    """Sort the members into ready and awaited ones. It looks at every member, so callers compute it
    once for each state and each change of the reports.
    """
    ready, contributors, awaited = set(), [], []
    for member in state.members:
        if member in reports.down:
            continue
        report = reports.ready.get(member)
        if report is not None and report.step == state.step:
            ready.add(member)
            if reports.stays(member) and fits_lease(rules, state, report):
                contributors.append(Participant(member, report.tokens, report.blocks))
        elif reports.stays(member) and is_awaited(state, member) and member not in reports.returned:
            awaited.append(member)
    enough = len(contributors) >= rules.participants_min
    enough = enough and quorum.reached(rules.quorum, state.voters, ready)
    doubted = _doubted(rules, reports, frozenset((*(each.peer for each in contributors), *awaited)))
    awaited = [peer for peer in awaited if peer not in doubted]
    punctual = frozenset(filter(reports.is_punctual, awaited))
    return Readiness(
        frozenset(ready), tuple(contributors), tuple(awaited), enough, doubted, punctual
    )


def _doubted(rules: Rules, reports: Reports, here: frozenset[PeerId]) -> frozenset[PeerId]:
    """Return the peers that sit out the first attempt: at most a third of those who are `here`, but
    one of two or three, so that one liar cannot spoil each step of a small run.
    """
    most = min(max(1, len(here) // 3), len(here) - rules.participants_min)
    return reports.blame.sitting_out(here, most)


def first_participants(rules: Rules, have: Readiness) -> tuple[Participant, ...]:
    """Return the participants of the first attempt: the contributors without the doubted, unless
    too few would be left.
    """
    chosen = tuple(each for each in have.contributors if each.peer not in have.doubted)
    most = len(have.contributors)
    return (
        chosen if len(chosen) >= max(rules.participants_min, (most + 1) // 2) else have.contributors
    )


def is_awaited(state: LedgerState, member: PeerId) -> bool:
    """Return whether others wait for `member`. They do not if it was admitted during this step,
    since it has had less time than the others.
    """
    return state.step == 0 or state.since[member] < state.step


def fits_lease(rules: Rules, state: LedgerState, report: Ready) -> bool:
    """Return whether the ready peer has a contribution, and one that its lease covers."""
    held = len(state.leases.get(report.peer, ()))
    covered = 0 < report.blocks <= held
    return covered and 0 < report.tokens <= report.blocks * rules.tokens_per_block


def survivors(rules: Rules, state: LedgerState, reports: Reports) -> tuple[Participant, ...]:
    """Return the participants of the next attempt: all that could take part but the most doubted
    (`blame`). At most half sit out, since few accusers are enough to accuse many.

    After TRIES_BY_SUSPICION attempts a third sits out as well, by turns, as far as there is room
    beside those that are doubted for sure. So a peer that spoils averages without a trace (it sends
    two means) is missing in most outer steps, and so is one of two that cannot reach each other.
    """
    roster = state.roster
    assert roster is not None
    here = could_take_part(rules, state, reports)
    most = len(here) - _least(rules, len(here))
    under_way = reports.blame.failure(roster.peers, reports.accusations(roster))
    untraced = under_way is None
    doubted = reports.blame.sitting_out(frozenset(here), most, under_way, untraced=untraced)
    out = list(doubted)
    if state.tries >= TRIES_BY_SUSPICION:
        among = frozenset(here)
        sure = [it for it in doubted if reports.blame.against(it, among, under_way) >= DOUBT_MIN]
        out = list(dict.fromkeys((*sure, *_turn(state, sorted(here)), *doubted)))[:most]
    return tuple(part for peer, part in here.items() if peer not in out)


def _turn(state: LedgerState, here: list[PeerId]) -> list[PeerId]:
    """Return the third of `here` whose turn it is to sit out, in another order at each step: there
    may not be room for all of it.
    """
    ways = max(1, min(3, len(here)))
    turn = here[(state.step + state.tries) % ways :: ways]
    first = state.step % max(1, len(turn))
    return turn[first:] + turn[:first]


def _least(rules: Rules, count: int) -> int:
    """Return how many of `count` take part at least: half of them, or more if the run demands
    more.
    """
    return min(count, max(rules.participants_min, (count + 1) // 2))


def could_take_part(
    rules: Rules, state: LedgerState, reports: Reports
) -> dict[PeerId, Participant]:
    """Return all peers that took part or are ready now, without those that are down or leave. A
    peer that reported that its work is lost counts only once it is ready again.
    """
    roster = state.roster
    assert roster is not None
    ready = {each.peer: each for each in readiness(rules, state, reports).contributors}
    numbers = {each.peer: each for each in roster.participants} | ready
    gone = reports.down | (suspicion_of(state, reports).confessed - ready.keys())
    return {
        peer: part for peer, part in numbers.items() if peer not in gone and reports.stays(peer)
    }


def suspicion_of(state: LedgerState, reports: Reports) -> Suspicion:
    """Return which peers the participants that abandoned the reduce under way accuse."""
    assert state.roster is not None
    return Suspicion.of(reports.accusations(state.roster))
