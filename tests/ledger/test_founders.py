"""Open runs (SPEC.md F1 to F5): which peers vote, keep their vote, and regain it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import why_invalid
from p2ptrain.ledger.chain.bounded_table import PEERS_MAX
from p2ptrain.ledger.chain.founders import founders_of, survives_a_loss
from p2ptrain.ledger.chain.rules import QuorumPolicy, Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import MEMBERS_MAX, Commit, Participant, Roster, Skip, Value
from p2ptrain.ledger.messages.effects import Announce, Effect, Send
from p2ptrain.ledger.messages.events import Accused
from p2ptrain.ledger.messages.evidence import Evidence, Statement
from p2ptrain.ledger.messages.messages import Accusation
from p2ptrain.ledger.messages.peer_reports import (
    AnyReport,
    Joining,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceFailed,
    Staying,
)
from p2ptrain.ledger.paxos.height_policy import Answer, Judgement
from p2ptrain.ledger.policy.accept import may_accept
from p2ptrain.ledger.policy.membership import keeps_its_vote
from p2ptrain.ledger.policy.policy import Policy, reconsider, what_to_propose
from p2ptrain.ledger.policy.reduce_order import in_given_order
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.testing.ledgers import LedgerGroup, Unicast, chain_of, digest, peers, small_rules

A, B, C, D, E = peers("a b c d e")
S, T, U = peers("s t u")
"""Peers that are not founders."""


def open_rules(names: str = "a b c", quorum: QuorumPolicy = "majority") -> Rules:
    return replace(small_rules(names, quorum=quorum), founders_vote=True)


RULES = open_rules()
FOUR = open_rules("a b c d")
START = chain_of(RULES, [])[1]


def heard(
    rules: Rules, *events: AnyReport, me: PeerId = A, state: LedgerState | None = None
) -> Reports:
    state = chain_of(rules, [])[1] if state is None else state
    reports = Reports(me)
    reports.know(rules, state)
    for event in events:
        reports.note(event)
    return reports


def wanted(rules: Rules, state: LedgerState, *events: AnyReport) -> Value | None:
    return what_to_propose(rules, state, heard(rules, *events, state=state), 0.0).value


def judged(
    rules: Rules,
    state: LedgerState,
    value: Value,
    *events: AnyReport,
    forced: bool = False,
    late: bool = False,
    accused: tuple[PeerId, ...] = (),
) -> Judgement:
    reports = heard(rules, *events, state=state)
    reports.accused |= {peer: lies_of(rules, peer) for peer in accused}
    return may_accept(rules, state, reports, value, 0.0, forced=forced, late=late)


def lies_of(rules: Rules, peer: PeerId) -> Evidence:
    said = [Statement(None, 0, digest(what), b"") for what in ("one", "another")]
    return Evidence(rules.run, 1, peer, said[0], said[1])


def membership(
    *voters: PeerId, learners: tuple[PeerId, ...] = (), state: LedgerState = START
) -> Roster:
    return Roster(state.step, state.attempt, voters, learners)


# ── F1 ───────────────────────────────────────────────────────────────────────────────────────────


def test_stranger_never_votes_even_if_it_took_part() -> None:
    part = (Participant(S, 200, 2), Participant(A, 200, 2))
    admitted = membership(A, B, C, learners=(S,))
    done: list[Value] = [admitted, Roster(0, 0, (A, B, C), (S,), part), Commit(0, 0, digest("u"))]
    promoting = Roster(1, 0, (A, B, C, S), ())
    rules, state = small_rules(), chain_of(small_rules(), done)[1]
    assert why_invalid(rules, state, promoting) == ""
    state = chain_of(RULES, done)[1]
    assert "s cannot be a voter: it is not a founder" in why_invalid(RULES, state, promoting)
    assert wanted(RULES, state, Ready(A, 1, 200, 2), *map(PeerDown, (B, C, S))) == Roster(
        1, 0, (A, B, C), (), (Participant(A, 200, 2),)
    )


def test_founder_is_never_a_learner() -> None:
    fault = why_invalid(RULES, START, membership(A, B, learners=(C,)))
    assert fault == "c is a founder and cannot be a learner"


def test_strangers_cannot_displace_founders() -> None:
    crowd = tuple(PeerId(f"s{number:04}") for number in range(MEMBERS_MAX - 2))
    full = membership(A, B, C, learners=crowd[:-1])
    assert wanted(RULES, START, *map(Joining, crowd)) == full
    assert why_invalid(RULES, START, full) == ""
    over = membership(A, B, learners=crowd)
    too_many = f"it has {len(crowd)} learners and delegates; the maximum is {len(crowd) - 1}"
    assert why_invalid(RULES, START, over) == too_many


def test_many_joiners_do_not_displace_a_founder() -> None:
    crowd = (Joining(PeerId(f"s{number}")) for number in range(PEERS_MAX + 5))
    reports = heard(FOUR, Joining(D), *crowd)
    assert len(reports.joining) == PEERS_MAX
    assert D in reports.joining


# ── F2 ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_founder_that_is_down_keeps_its_vote() -> None:
    state = chain_of(FOUR, [])[1]
    ready = [Ready(peer, 0, 200, 2) for peer in (A, B, C)]
    value = wanted(FOUR, state, PeerDown(D), *ready)
    assert isinstance(value, Roster)
    assert (value.voters, value.peers) == ((A, B, C, D), (A, B, C))


@pytest.mark.parametrize("late", [False, True])
def test_founder_that_is_down_is_not_dropped(*, late: bool) -> None:
    state = chain_of(FOUR, [])[1]
    without = Roster(0, 0, (A, B, C), ())
    for events in ([PeerDown(D)], [Leaving(D)], [Leaving(D), PeerDown(D), Staying(D)]):
        verdict = judged(FOUR, state, without, *events, late=late)
        assert verdict.reason == "it takes the vote from d, which has not left"
    assert judged(FOUR, state, without, Leaving(D), PeerDown(D)).answer is Answer.YES
    assert judged(FOUR, state, without, accused=(D,)).answer is Answer.YES


def test_reports_of_participants_do_not_cost_a_founder_its_vote() -> None:
    """Most participants are strangers. They all accuse a founder of being silent."""
    parts = tuple(Participant(peer, 200, 2) for peer in (D, S, T))
    opened = Roster(0, 0, (A, B, C, D), (S, T), parts)
    values = [Roster(0, 0, (A, B, C, D), (S, T)), opened]
    without = Roster(0, 1, (A, B, C), (S, T), parts[1:])
    blame = [ReduceFailed(peer, 0, 0, (D,)) for peer in (S, T)]
    plain, state = small_rules("a b c d"), chain_of(small_rules("a b c d"), values)[1]
    assert judged(plain, state, without, *blame).answer is Answer.YES
    state = chain_of(FOUR, values)[1]
    assert "takes the vote from d" in judged(FOUR, state, without, *blame).reason


def test_one_of_two_leaving_founders_keeps_its_vote() -> None:
    two, state = open_rules("a b"), chain_of(open_rules("a b"), [])[1]
    assert wanted(two, state, Leaving(B)) == Roster(0, 0, (A,), ())
    assert judged(two, state, Roster(0, 0, (B,), ()), Leaving(A)).answer is Answer.YES
    assert wanted(two, state, Leaving(A), Leaving(B)) == Roster(0, 0, (A,), ())


# ── F3 ───────────────────────────────────────────────────────────────────────────────────────────


def test_voters_that_must_remain_survive_the_loss_of_one() -> None:
    assert (survives_a_loss("majority"), survives_a_loss("two-thirds")) == (3, 4)
    assert founders_of(small_rules(), START) is None


@pytest.mark.parametrize(
    ("names", "quorum", "left"),
    [("a b c d e", "majority", 3), ("a b c", "majority", 3), ("a b c d e", "two-thirds", 4)],
)
def test_founders_can_leave_only_while_enough_voters_remain(
    names: str, quorum: QuorumPolicy, left: int
) -> None:
    rules = open_rules(names, quorum)
    state = chain_of(rules, [])[1]
    gone = [event for peer in rules.founders[1:] for event in (Leaving(peer), PeerDown(peer))]
    value = wanted(rules, state, *gone)
    voters = state.voters if value is None else value.voters  # type: ignore[union-attr]
    assert voters == rules.founders[:left]


@pytest.mark.parametrize("forced", [False, True])
def test_roster_with_too_few_voters_is_refused(*, forced: bool) -> None:
    two = membership(A, B)
    gone = (Leaving(C), PeerDown(C))
    verdict = judged(RULES, START, two, *gone, forced=forced, late=True)
    assert verdict.reason == "it leaves 2 voters; losing one more would stop the run"
    assert judged(RULES, START, two, forced=forced, accused=(C,)).answer is Answer.YES


def test_founder_can_leave_at_once_if_it_keeps_its_vote() -> None:
    two = open_rules("a b")
    assert keeps_its_vote(founders_of(RULES, START), START, C)
    start = chain_of(two, [])[1]
    assert not keeps_its_vote(founders_of(two, start), start, B)
    assert not keeps_its_vote(None, START, C)


def test_proposer_sends_the_evidence_against_a_dropped_founder() -> None:
    reports = heard(RULES)
    lies = reports.accused[C] = lies_of(RULES, C)
    policy = Policy.of(RULES, START, reports, in_given_order, 0.0)
    assert policy.causes(membership(A, B)) == (lies,)
    assert policy.causes(membership(A, B, C)) == ()
    assert policy.causes(Skip(0)) == ()
    assert Policy.of(small_rules(), START, Reports(A), in_given_order, 0.0).causes(Skip(0)) == ()


# ── F4 ───────────────────────────────────────────────────────────────────────────────────────────


def test_returning_founder_is_a_voter_at_once() -> None:
    """A returning founder need not have trained before it votes, so a seed, which does not train,
    can return too.
    """
    state = chain_of(FOUR, [Roster(0, 0, (A, B, C), ())])[1]
    back = Roster(0, 0, (A, B, C, D), (S,))
    assert wanted(FOUR, state, Joining(D), Joining(S)) == back
    assert why_invalid(FOUR, state, back) == ""
    assert judged(FOUR, state, back, Joining(D), Joining(S)).answer is Answer.YES
    assert judged(FOUR, state, back, Joining(S)).reason == (
        "it makes d a voter, but this node has not heard it ask to join"
    )
    assert wanted(FOUR, state, Joining(D), PeerDown(D)) is None


def test_founder_becomes_a_voter_only_if_it_asked_to_join() -> None:
    """If a proposer could make any founder a voter, a liar could add founders that are down. The
    others would then have no quorum without the liar.
    """
    state = chain_of(FOUR, [Roster(0, 0, (A, B, C), ())])[1]
    back = Roster(0, 0, (A, B, C, D), ())
    assert judged(FOUR, state, back, late=True).answer is Answer.LATER
    assert judged(FOUR, state, back, Joining(D), late=True).answer is Answer.YES
    assert judged(FOUR, state, back, late=True, forced=True).answer is Answer.YES
    reports = heard(FOUR)
    doubtful = may_accept(FOUR, state, reports, back, 0.0, forced=True, doubtful=True)
    assert doubtful.answer is Answer.LATER  # until the height has been undecided for long enough


def test_founder_that_lied_is_not_readmitted() -> None:
    state = chain_of(FOUR, [Roster(0, 0, (A, B, C), ())])[1]
    reports = heard(FOUR, Joining(D))
    reports.accused[D] = lies_of(FOUR, D)
    assert what_to_propose(FOUR, state, reports, 0.0).value is None
    back = Roster(0, 0, (A, B, C, D), ())
    assert judged(FOUR, state, back, Joining(D), accused=(D,)).answer is Answer.NO


def test_returning_founders_never_outnumber_the_remaining_voters() -> None:
    five = open_rules("a b c d e")
    branched = replace(chain_of(five, [])[1], voters=(A,), since={A: 0})
    value = wanted(five, branched, *map(Joining, (B, C, D, E)))
    assert value == Roster(0, 0, (A, B), ())


def test_last_voter_stays_until_the_returning_founder_votes() -> None:
    two = open_rules("a b")
    alone = chain_of(two, [Roster(0, 0, (A,), ())])[1]
    assert wanted(two, alone, Leaving(A), Joining(B)) == Roster(0, 0, (A, B), ())


def test_nothing_is_proposed_if_all_founders_lied() -> None:
    reports = heard(RULES, Joining(S))
    reports.accused |= {peer: lies_of(RULES, peer) for peer in (A, B, C)}
    assert what_to_propose(RULES, START, reports, 0.0).value is None


# ── F5, and reduces without reports ────────────────────────────────────────────────────────────


def test_reduce_does_not_wait_for_a_founder_that_is_catching_up() -> None:
    ready = [Ready(peer, 0, 200, 2) for peer in (A, B)]
    value = wanted(RULES, START, *ready)
    assert value is None, "c is up, so it is waited for"
    back: list[AnyReport] = [PeerDown(C), PeerUp(C)]
    value = wanted(RULES, START, *ready, *back)
    assert isinstance(value, Roster)
    assert value.peers == (A, B)
    reports = heard(RULES, *back, Ready(C, 0, 200, 2))
    assert reports.returned == set()


def test_reduce_without_reports_is_retried_after_a_time() -> None:
    """All participants are liars that are up but never report anything."""
    rules = replace(RULES, reduce_s=60.0)
    parts = tuple(Participant(peer, 200, 2) for peer in (S, T))
    admitted = membership(A, B, C, learners=(S, T))
    opened = Roster(0, 0, (A, B, C), (S, T), parts)
    state = chain_of(rules, [admitted, opened])[1]
    reports = heard(rules)
    first, _ = reconsider(rules, state, reports, 10.0)
    assert (first.value, first.look_again_at) == (None, 70.0)
    reconsider(rules, state, reports, 70.0)
    then, _ = reconsider(rules, state, reports, 71.0)
    assert isinstance(then.value, Roster)
    assert may_accept(rules, state, reports, then.value, 71.0, forced=False).answer is Answer.YES


def test_proposer_sends_evidence_with_the_proposal_that_depends_on_it() -> None:
    """The announcement of the evidence was lost, so the other voters do not have it yet."""
    some = LedgerGroup(RULES)
    effects = some.send_events("b", Accused(evidence_against_c(some)))
    sent = [it.peer for it in effects if isinstance(it, Send) and type(it.message) is Accusation]
    assert sent == [A, C]
    some.mail = [it for it in some.mail if it not in announced(some, effects)]
    some.deliver()
    assert some["a"].state.voters == (A, B)


def announced(some: LedgerGroup, effects: list[Effect]) -> list[Unicast]:
    said = [effect.message for effect in effects if isinstance(effect, Announce)]
    return [unicast for unicast in some.mail[: 2 * len(said)] if unicast.message in said]


def evidence_against_c(some: LedgerGroup) -> Evidence:
    electorate = replace(some.electorate("c"))
    said = [
        Statement(None, 0, digest(what), electorate.sign(vote))
        for what in ("one", "another")
        for vote in [Statement(None, 0, digest(what), b"").message(RULES.run, 1)]
    ]
    return Evidence(RULES.run, 1, C, said[0], said[1])
