"""Delegated votes in open runs (SPEC.md F1 to F4, F6, F7): which delegates vote, when a revoked one
leaves, and when delegates take the place of voters that are gone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import why_invalid
from p2ptrain.ledger.chain.decode_values import terms_from_plain, value_from_plain
from p2ptrain.ledger.chain.founders import delegates, founders_of
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, encode_state
from p2ptrain.ledger.chain.values import (
    DELEGATES_MAX,
    MEMBERS_MAX,
    Commit,
    Entry,
    Participant,
    Roster,
    Terms,
    Value,
)
from p2ptrain.ledger.history.decode_state import decode_state
from p2ptrain.ledger.messages.peer_reports import (
    AnyReport,
    Joining,
    KnownAmendments,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
)
from p2ptrain.ledger.paxos.height_policy import Answer, Judgement
from p2ptrain.ledger.policy.accept import may_accept
from p2ptrain.ledger.policy.policy import Policy, what_to_propose
from p2ptrain.ledger.policy.reduce_order import in_given_order
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B, C = peers("a b c")
S, T, U, V = peers("s t u v")
"""Members that are not founders."""

HOUR_S = 3600.0


def open_rules(names: str = "a b c") -> Rules:
    return replace(small_rules(names), founders_vote=True)


RULES = open_rules()


def delegating(number: int, step: int, *named: PeerId) -> Terms:
    return Terms(number, step, digest(f"amendment {number}"), voters=named)


def opened(
    step: int, voters: tuple[PeerId, ...], learners: tuple[PeerId, ...], terms: Terms | None = None
) -> list[Value]:
    """Return the values of an outer step in which all members take part."""
    parts = tuple(Participant(peer, 200, 2) for peer in (*voters, *learners))
    roster = Roster(step, 0, voters, learners, parts, terms=terms)
    return [roster, Commit(step, 0, digest(f"u{step}"))]


FOUNDERS, CROWD = (A, B, C), (S, T, U, V)
BEGIN = [Roster(0, 0, FOUNDERS, CROWD), *opened(0, FOUNDERS, CROWD, delegating(1, 1, S, T, U))]
"""Four volunteers take part in a step. The organiser delegates votes to three of them."""

NAMED = chain_of(RULES, BEGIN)[1]
SIX = (*FOUNDERS, S, T, U)
PROMOTED = [*BEGIN, *opened(1, SIX, (V,))]
VOTING = chain_of(RULES, PROMOTED)[1]
"""All six may vote and do."""


def after(terms: Terms, voters: tuple[PeerId, ...] = SIX) -> LedgerState:
    """Return the state in which `terms` are in force; they were agreed in the step before."""
    return chain_of(RULES, [*PROMOTED, *opened(2, voters, (V,), terms)])[1]


def heard(
    state: LedgerState, *events: AnyReport, rules: Rules = RULES, me: PeerId = V, at_s: float = 0.0
) -> Reports:
    reports = Reports(me)
    reports.know(rules, state)
    for event in events:
        reports.note_time(event, at_s)
        reports.note(event)
    return reports


def opening(
    state: LedgerState, *events: AnyReport, now: float = 0.0, rules: Rules = RULES
) -> tuple[tuple[PeerId, ...], tuple[PeerId, ...]]:
    """Return the voters and learners of the roster that opens the next reduce, when all members
    that are up are ready."""
    down = {event.peer for event in events if isinstance(event, PeerDown)}
    up = [peer for peer in state.members if peer not in down]
    ready = [Ready(peer, state.step, 200, 2) for peer in up]
    reports = heard(state, *ready, *events, rules=rules)
    value = what_to_propose(rules, state, reports, now).value
    assert isinstance(value, Roster)
    assert why_invalid(rules, state, value) == ""
    return value.voters, value.learners


def judged(
    state: LedgerState,
    value: Value,
    *events: AnyReport,
    now: float = 0.0,
    forced: bool = False,
    late: bool = False,
) -> Judgement:
    reports = heard(state, *events)
    return may_accept(RULES, state, reports, value, now, forced=forced, late=late)


def roster(
    state: LedgerState, voters: tuple[PeerId, ...], learners: tuple[PeerId, ...] = ()
) -> Roster:
    return Roster(state.step, state.attempt, voters, learners)


# ── the list ─────────────────────────────────────────────────────────────────────────────────────


def test_newest_list_in_force_names_the_delegates() -> None:
    agreed = (
        delegating(1, 2, S),
        Terms(2, 4, digest("lr"), 5),
        delegating(3, 6, T),
        delegating(4, 8),
    )
    named = [delegates(agreed, step) for step in (1, 2, 4, 6, 7, 8)]
    assert named == [set(), {S}, {S}, {T}, {T}, set()]


def test_roster_without_delegates_has_the_same_bytes_as_before() -> None:
    value = Roster(0, 0, FOUNDERS, (), terms=Terms(1, 2, digest("x"), 3))
    assert value.plain()["terms"] == [1, 2, digest("x"), 3]
    assert Entry(1, digest("parent"), value).digest[:8] == "76981e70"
    plain = Roster(0, 0, FOUNDERS, (), terms=delegating(1, 2)).plain()
    assert plain["terms"] == [1, 2, digest("amendment 1"), None, []]


def test_delegates_are_part_of_the_state_and_of_its_digest() -> None:
    assert decode_state(encode_state(VOTING)) == VOTING
    unnamed = tuple(replace(each, voters=None) for each in VOTING.terms)
    assert replace(VOTING, terms=unnamed).digest != VOTING.digest


@pytest.mark.parametrize(
    "named",
    [
        None,
        "s",
        ["t", "s"],
        ["s", "s"],
        [f"p{number:02}" for number in range(DELEGATES_MAX + 1)],
        [7],
    ],
)
def test_malformed_list_of_delegates_is_refused(named: object) -> None:
    good = delegating(1, 2, S, T)
    assert terms_from_plain(good.plain()) == good
    plain = Roster(0, 0, FOUNDERS, ()).plain()
    with pytest.raises(RemoteProtocolError):
        value_from_plain(plain | {"terms": [1, 2, digest("x"), None, named]})
    with pytest.raises(RemoteProtocolError):
        value_from_plain(plain | {"terms": [*good.plain(), None]})


def test_only_an_open_run_delegates_votes() -> None:
    rules = small_rules()
    state, named = chain_of(rules, [])[1], delegating(1, 1, S)
    value = Roster(0, 0, FOUNDERS, (S,), terms=named)
    fault = "amendment 1 delegates votes, but this is not an open run"
    assert why_invalid(rules, state, value) == fault
    assert why_invalid(rules, state, replace(value, terms=Terms(1, 1, digest("lr")))) == ""
    reports = heard(state, KnownAmendments(frozenset((named,))), Joining(S), rules=rules)
    proposed = Policy.of(rules, state, reports, in_given_order, 0.0).complete(
        replace(value, terms=None)
    )
    assert proposed == replace(value, terms=None)


# ── who becomes a voter ──────────────────────────────────────────────────────────────────────────


def test_proven_delegate_becomes_a_voter_and_others_do_not() -> None:
    assert NAMED.proven == set(CROWD)
    assert opening(NAMED) == ((*FOUNDERS, S, T, U), (V,))
    stranger = roster(NAMED, (*FOUNDERS, V), (S, T, U))
    assert why_invalid(RULES, NAMED, stranger) == (
        "v cannot be a voter: it is not a founder of this open run or a delegate"
    )


def test_delegate_votes_only_after_its_first_committed_step() -> None:
    early = [Roster(0, 0, FOUNDERS, (S, T)), *opened(0, FOUNDERS, (T,), delegating(1, 1, S, T))]
    part = tuple(Participant(peer, 200, 2) for peer in (*FOUNDERS, T))
    early[1] = Roster(0, 0, FOUNDERS, (S, T), part, terms=delegating(1, 1, S, T))
    state = chain_of(RULES, early)[1]
    assert opening(state) == ((*FOUNDERS, T), (S,))
    fault = why_invalid(RULES, state, roster(state, (*FOUNDERS, S), (T,)))
    assert fault == "s cannot become a voter before it takes part in a committed update"


def test_list_is_not_in_force_before_its_step() -> None:
    later = [*BEGIN[:1], *opened(0, FOUNDERS, CROWD, delegating(1, 2, S))]
    state = chain_of(RULES, later)[1]
    assert opening(state) == (FOUNDERS, CROWD)
    assert "s cannot be a voter" in why_invalid(RULES, state, roster(state, (*FOUNDERS, S)))


def test_delegates_that_vanish_cannot_cost_the_others_their_quorum() -> None:
    """The voters that are up must remain a quorum if all new voters vanish."""
    assert opening(NAMED, PeerDown(C))[0] == (*FOUNDERS, S), "two of four, with the first-ranked"
    assert opening(NAMED, PeerDown(A))[0] == FOUNDERS, "two of four, without it"
    one, start = open_rules("a"), [Roster(0, 0, (A,), (S, T))]
    state = chain_of(one, [*start, *opened(0, (A,), (S, T), delegating(1, 1, S, T))])[1]
    assert opening(state, rules=one) == ((A, S), (T,)), "at most as many as remain"


def test_voter_doubts_a_roster_whose_new_delegates_may_not_vanish() -> None:
    """The proposer did not know that A is down. Without S, only two of four voters would be up."""
    promoting = roster(NAMED, (*FOUNDERS, S), (T, U, V))
    refusal = "without its new voters, this node considers too few of the others up for a quorum"
    assert judged(NAMED, promoting, PeerDown(A)) == Judgement(Answer.LATER, refusal)
    assert judged(NAMED, promoting, PeerDown(C)).answer is Answer.YES, "half, with the first-ranked"
    assert judged(NAMED, promoting, PeerDown(A), late=True).answer is Answer.YES


def test_delegate_that_is_down_or_leaves_is_not_promoted() -> None:
    assert opening(NAMED, PeerDown(S))[0] == (*FOUNDERS, T, U)
    assert opening(NAMED, Leaving(S))[0] == (*FOUNDERS, T, U)
    promoting = roster(NAMED, (*FOUNDERS, S), (T, U, V))
    refusal = "it makes s a voter, but this node considers that peer down"
    verdict = may_accept(
        RULES, NAMED, heard(NAMED, PeerDown(S), me=A), promoting, 0.0, forced=False, late=True
    )
    assert verdict == Judgement(Answer.LATER, refusal)
    assert judged(NAMED, promoting).answer is Answer.YES


def test_delegate_that_votes_is_not_demoted() -> None:
    demoting = roster(VOTING, (*FOUNDERS, T, U), (S, V))
    assert why_invalid(RULES, VOTING, demoting) == "s is a voter and cannot become a learner"


def test_places_are_kept_for_founders_and_for_delegates_that_are_away() -> None:
    crowd = tuple(PeerId(f"x{number:04}") for number in range(MEMBERS_MAX))
    state = chain_of(RULES, [*BEGIN, roster(NAMED, FOUNDERS, (V,))])[1]
    reports = heard(state, *map(Joining, crowd))
    value = what_to_propose(RULES, state, reports, 0.0).value
    assert isinstance(value, Roster)
    assert len(value.members) == MEMBERS_MAX - 3
    reports.note(Joining(S))
    value = what_to_propose(RULES, state, reports, 0.0).value
    assert isinstance(value, Roster)
    assert (len(value.members), S in value.learners) == (MEMBERS_MAX - 2, True)
    full = roster(state, (*FOUNDERS, S), crowd[: MEMBERS_MAX - 4])
    assert len(full.members) == MEMBERS_MAX
    over = roster(VOTING, (A, B, S, T, U), (V, *crowd[: MEMBERS_MAX - 6]))
    assert why_invalid(RULES, VOTING, over) == (
        f"it has {MEMBERS_MAX - 2} learners and delegates; the maximum is {MEMBERS_MAX - 3}"
    )


# ── who stops being a voter ──────────────────────────────────────────────────────────────────────


def test_revoked_delegate_becomes_a_learner_with_the_first_roster() -> None:
    state = after(delegating(2, 3, T, U))
    assert state.voters == SIX, "it still votes on that roster"
    assert opening(state) == ((*FOUNDERS, T, U), (V, S))
    kept = roster(state, SIX, ())
    assert (
        why_invalid(RULES, state, kept) == "s cannot stay a voter: its delegated vote was revoked"
    )
    without = roster(state, (*FOUNDERS, T, U), (V, S))
    for forced in (False, True):
        assert judged(state, without, forced=forced).answer is Answer.YES
    learning = chain_of(RULES, [*PROMOTED, *opened(2, SIX, (V,), delegating(2, 3, T, U)), without])
    assert (S in learning[1].leases, S in learning[1].proven) == (True, False)


def test_revoked_delegate_that_is_down_loses_its_place() -> None:
    state = after(delegating(2, 3, T, U))
    assert opening(state, PeerDown(S)) == ((*FOUNDERS, T, U), (V,))


def test_all_delegates_can_be_revoked_while_founders_vote() -> None:
    state = after(delegating(2, 3))
    assert opening(state) == (FOUNDERS, (V, S, T, U))
    assert judged(state, roster(state, FOUNDERS, (V, S, T, U))).answer is Answer.YES
    reports = heard(state, Leaving(C), PeerDown(C))
    value = what_to_propose(RULES, state, reports, 0.0).value
    assert value is None, "three voters must remain, and the revoked ones do not count"


ALONE = chain_of(RULES, [*PROMOTED, *opened(2, (S, T, U), (V,), delegating(2, 3, V))])[1]
"""Only delegates are left, and the organiser revokes all their votes in favour of another peer."""


def test_revocation_does_not_leave_the_run_without_voters() -> None:
    assert opening(ALONE) == ((S, T, V), (U,)), "u was the lowest-ranked"
    assert why_invalid(RULES, ALONE, roster(ALONE, (S, T, U), ())) == ""
    assert "its delegated vote was revoked" in why_invalid(
        RULES, ALONE, roster(ALONE, (S, T, U, V), ())
    )
    first = [*opened(2, (S, T, U), (V,), delegating(2, 3, V)), roster(ALONE, (S, T, V), (U,))]
    back = chain_of(RULES, [*PROMOTED, *first])[1]
    reports = heard(back, *map(Joining, FOUNDERS))
    value = what_to_propose(RULES, back, reports, 0.0).value
    assert value == roster(back, (S, V, A), (U, T)), "one founder takes the place of one delegate"


def test_amendment_that_would_stop_the_run_is_not_agreed() -> None:
    """The founders are gone, but the organiser revokes the votes of the delegates."""
    stops, fine = delegating(2, 3), delegating(3, 4, S, T, U, V)
    gone: list[AnyReport] = [PeerDown(B), PeerDown(C)]
    known = KnownAmendments(frozenset((stops, fine)))
    value = roster(VOTING, SIX, ())
    reason = "amendment 2 leaves 1 of 3 voters up: not a quorum"
    for events, named in (([*gone, known], fine), ([known], stops)):
        reports = heard(VOTING, *events)
        policy = Policy.of(RULES, VOTING, reports, in_given_order, 0.0)
        assert policy.complete(value) == replace(value, terms=named)
    with_it = replace(value, learners=(V, *peers("x")), terms=stops)
    told: list[AnyReport] = [*gone, known, Joining(peers("x")[0])]
    assert judged(VOTING, with_it, *told) == Judgement(Answer.LATER, reason)
    assert judged(VOTING, with_it, known, told[-1]).answer is Answer.YES
    assert judged(VOTING, with_it, *told, late=True).answer is Answer.YES
    nobody = after(delegating(2, 3, S, T, U), (S, T, U))
    none_left = replace(roster(nobody, (S, T, U), (V, *peers("x"))), terms=delegating(3, 4))
    asked: list[AnyReport] = [KnownAmendments(frozenset((delegating(3, 4),))), told[-1]]
    assert "leaves 0 of 0 voters up" in judged(nobody, none_left, *asked).reason


# ── voters that are gone for good ────────────────────────────────────────────────────────────────


def test_voter_that_is_down_for_long_is_replaced() -> None:
    gone = [PeerDown(A)]
    assert opening(VOTING, *gone, now=RULES.absent_s - 1)[0] == SIX
    assert opening(VOTING, *gone, now=RULES.absent_s)[0] == (B, C, S, T, U)
    without = roster(VOTING, (B, C, S, T, U), (V,))
    early = judged(VOTING, without, *gone, now=RULES.absent_s / 2 - 1, late=True)
    assert early.reason == "it takes the vote from a, which has not left"
    assert judged(VOTING, without, *gone, now=RULES.absent_s / 2).answer is Answer.YES
    back: list[AnyReport] = [*gone, PeerUp(A), *gone]
    reports = heard(VOTING, *gone)
    for event in back[1:]:
        reports.note_time(event, 1000.0)
        reports.note(event)
    verdict = may_accept(RULES, VOTING, reports, without, 1700.0, forced=False)
    assert verdict.answer is Answer.LATER, "the time counts from its last absence"


def test_delegates_that_are_gone_are_replaced_too() -> None:
    assert opening(VOTING, PeerDown(T), now=HOUR_S) == ((*FOUNDERS, S, U), (V,))


def test_absence_does_not_count_without_delegates() -> None:
    four = open_rules("a b c d")
    state = chain_of(four, [])[1]
    assert opening(state, PeerDown(C), now=HOUR_S, rules=four)[0] == four.founders
    without = roster(state, tuple(peers("a b d")))
    verdict = may_accept(
        four, state, heard(state, PeerDown(C), rules=four, me=A), without, HOUR_S, forced=False
    )
    assert verdict.reason == "it takes the vote from c, which has not left"


def test_absence_leaves_three_voters() -> None:
    three = chain_of(RULES, [*PROMOTED, *opened(2, (S, T, U), (V,))])[1]
    assert opening(three, PeerDown(T), now=HOUR_S)[0] == (S, T, U)
    two = roster(three, (S, U), (V,))
    assert judged(three, two, PeerDown(T), now=HOUR_S, forced=True).answer is Answer.LATER
    gone = list(map(PeerDown, FOUNDERS))
    assert opening(VOTING, *gone, now=HOUR_S)[0] == (S, T, U)


def test_two_voters_do_not_drop_each_other_for_absence() -> None:
    one = open_rules("a")
    begin = [Roster(0, 0, (A,), (S, T)), *opened(0, (A,), (S, T), delegating(1, 1, S))]
    state = chain_of(one, [*begin, *opened(1, (A, S), (T,))])[1]
    assert opening(state, PeerDown(S), now=HOUR_S, rules=one)[0] == (A, S)
    assert judged_in(one, state, roster(state, (A,), (T,)), PeerDown(S)).answer is Answer.LATER


def judged_in(rules: Rules, state: LedgerState, value: Value, *events: AnyReport) -> Judgement:
    reports = heard(state, *events, rules=rules, me=A)
    return may_accept(rules, state, reports, value, HOUR_S, forced=False)


def test_new_delegate_takes_the_place_of_an_absent_founder() -> None:
    """Two of three founders are up. With the absent one, a delegate that vanishes would cost them
    their quorum; in its place, it would not.
    """
    assert opening(NAMED, PeerDown(A), now=HOUR_S)[0] == (B, C, S, T)


def test_founder_that_was_dropped_votes_again_when_it_asks() -> None:
    dropped = chain_of(RULES, [*PROMOTED, roster(VOTING, (B, C, S, T, U), (V,))])[1]
    reports = heard(dropped, Joining(A))
    value = what_to_propose(RULES, dropped, reports, 0.0).value
    assert value == roster(dropped, (B, C, S, T, U, A), (V,))


def test_run_goes_on_after_all_founders_are_gone() -> None:
    """Each founder is dropped while the others are a quorum. In the end, only delegates vote."""
    values, state = list(PROMOTED), VOTING
    for founder in FOUNDERS:
        voters, learners = opening(state, PeerDown(founder), now=HOUR_S)
        values += opened(state.step, voters, learners)
        state = chain_of(RULES, values)[1]
    assert (state.voters, state.learners) == ((S, T, U), (V,))
    limits = founders_of(RULES, state)
    assert limits is not None
    assert (limits.voters_min, limits.delegates) == (3, frozenset((S, T, U)))
