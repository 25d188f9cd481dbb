"""Decide which members may take part in a reduce: in the first attempt of an outer step, and in the
attempts that follow a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.apply import claim_fault
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.ledger.policy.blame import DOUBT_MIN
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.ledger.policy.suspicion import Suspicion

TRIES_BY_SUSPICION = 2
"""Number of attempts at a step after which participants take turns sitting out."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The members that are ready for the current outer step, and those that the others wait for.

    - `contributors`: the ready members that may take part, with what they contribute.
    - `awaited`: the members that the others wait for. They are up, were members before this step
      began, and are not ready. Founders that were down and have not caught up yet are excluded
      (`Reports.returned`).
    - `enough`: a quorum is ready, and there are enough contributors to start without the others.
    - `doubted`: members that sit out the first attempt because of past failures (`blame`). They may
      be ready, but are not awaited.
    - `punctual`: the awaited members that took part in most recent attempts (`grace`).
    """

    ready: frozenset[PeerId]
    contributors: tuple[Participant, ...]
    awaited: tuple[PeerId, ...]
    enough: bool
    doubted: frozenset[PeerId] = frozenset()
    punctual: frozenset[PeerId] = frozenset()


def readiness(rules: Rules, state: LedgerState, reports: Reports) -> Readiness:
    """Return the members that are ready, and those that the others wait for. This looks at every
    member, so call it only when the state or the reports have changed.
    """
    ready, contributors, awaited = set(), [], []
    for member in state.members:
        if member in reports.down:
            continue
        report = reports.ready.get(member)
        if report is not None and report.step == state.step:
            ready.add(member)
            if reports.stays(member) and fits_lease(rules, state, report):
                named = report.named
                contributors.append(Participant(member, report.tokens, report.blocks, named))
        elif reports.stays(member) and is_awaited(state, member) and member not in reports.returned:
            awaited.append(member)
    contributors, awaited = _included(rules, state, contributors, awaited)
    enough = len(contributors) >= rules.participants_min
    enough = enough and quorum.reached(rules.quorum, state.voters, ready)
    doubted = _doubted(rules, reports, frozenset((*(each.peer for each in contributors), *awaited)))
    awaited = [peer for peer in awaited if peer not in doubted]
    punctual = frozenset(filter(reports.is_punctual, awaited))
    return Readiness(
        frozenset(ready), tuple(contributors), tuple(awaited), enough, doubted, punctual
    )


def _included(
    rules: Rules, state: LedgerState, contributors: list[Participant], awaited: list[PeerId]
) -> tuple[list[Participant], list[PeerId]]:
    """Return `contributors` and `awaited` without the excluded peers, if enough contributors remain
    (SPEC.md, A5). Otherwise the reduce needs the excluded peers, too.
    """
    left = [each for each in contributors if each.peer not in state.excluded]
    if len(left) < rules.participants_min:
        return contributors, awaited
    return left, [peer for peer in awaited if peer not in state.excluded]


def _doubted(rules: Rules, reports: Reports, here: frozenset[PeerId]) -> frozenset[PeerId]:
    """Return the peers that sit out the first attempt: at most a third of those in `here` (which
    are ready or awaited). Of two or three peers, one may sit out, so that one liar cannot spoil
    every step of a small run.
    """
    most = min(max(1, len(here) // 3), len(here) - rules.participants_min)
    return reports.blame.sitting_out(here, most)


def first_participants(rules: Rules, have: Readiness) -> tuple[Participant, ...]:
    """Return the participants of the first attempt: the contributors without the doubted ones,
    unless fewer than half, or fewer than the run requires, would remain.
    """
    chosen = tuple(each for each in have.contributors if each.peer not in have.doubted)
    fewest = _least(rules, len(have.contributors))
    return chosen if len(chosen) >= fewest else have.contributors


def is_awaited(state: LedgerState, member: PeerId) -> bool:
    """Return whether the others wait for `member`. They do not if it was admitted during this step,
    since it has had less time to train.
    """
    return state.step == 0 or state.since[member] < state.step


def fits_lease(rules: Rules, state: LedgerState, report: Ready) -> bool:
    """Return whether the report is a contribution that the peer's lease and block size allow, with
    a claim if the run has claims. A peer that an earlier attempt bound to a claim (SPEC.md, S15)
    takes part with that claim, or not at all.
    """
    if claim_fault(rules, state, report.peer, report.named):
        return False
    held = len(state.leases.get(report.peer, ()))
    covered = 0 < report.blocks <= held
    return covered and 0 < report.tokens <= report.blocks * rules.tokens_per_block


def survivors(rules: Rules, state: LedgerState, reports: Reports) -> tuple[Participant, ...]:
    """Return the participants of the next attempt: all peers that could take part, except the most
    doubted (`blame`). At most half sit out, since a few liars can accuse many peers.

    After TRIES_BY_SUSPICION attempts, the peers also take turns sitting out, a third of them at a
    time, as far as the limit of one half allows. Peers with doubts of at least DOUBT_MIN come
    first. So a peer that spoils averages without being accused (it sends different means to
    different peers) is absent from some attempt of most outer steps. So is one of two peers that
    cannot reach each other.
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
    """Return the third of `here` whose turn it is to sit out. The order changes with each step,
    because the limit may allow only the first of them to sit out.
    """
    ways = max(1, min(3, len(here)))
    turn = here[(state.step + state.tries) % ways :: ways]
    first = state.step % max(1, len(turn))
    return turn[first:] + turn[:first]


def _least(rules: Rules, count: int) -> int:
    """Return the minimum number of participants: half of `count`, or what the run requires."""
    return min(count, max(rules.participants_min, (count + 1) // 2))


def could_take_part(
    rules: Rules, state: LedgerState, reports: Reports
) -> dict[PeerId, Participant]:
    """Return all peers that took part in this attempt or are ready now, and may stay members. Peers
    that are down are excluded. So are peers whose work is lost, until they are ready again, and
    peers that have made a newer claim since (SPEC.md, C3).
    """
    roster = state.roster
    assert roster is not None
    ready = {each.peer: each for each in readiness(rules, state, reports).contributors}
    numbers = {each.peer: each for each in roster.participants} | ready
    gone = reports.down | (suspicion_of(state, reports).confessed - ready.keys())
    gone |= {peer for peer in numbers if _has_newer_claim(state, reports, peer)}
    able = [it for it in numbers.values() if it.peer not in gone and reports.stays(it.peer)]
    return {each.peer: each for each in _included(rules, state, able, [])[0]}


def _has_newer_claim(state: LedgerState, reports: Reports, peer: PeerId) -> bool:
    """Return whether `peer` has replaced the claim to which an earlier attempt bound it."""
    report, bound = reports.ready.get(peer), state.claims.get(peer)
    replaced = report is not None and report.step == state.step and report.named != bound
    return bound is not None and replaced


def suspicion_of(state: LedgerState, reports: Reports) -> Suspicion:
    """Return the accusations by participants that abandoned the current reduce."""
    assert state.roster is not None
    return Suspicion.of(reports.accusations(state.roster))
