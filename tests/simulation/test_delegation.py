"""Runs whose organiser delegates votes go on without the founders (SPEC.md, F6 and F7)."""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Commit,
    Entry,
    Participant,
    Roster,
    Skip,
    Terms,
    Value,
)
from p2ptrain.simulation import PROFILES
from p2ptrain.simulation.checkers.delegation_watch import (
    ADMITTED_ENTRIES,
    COMMITS,
    ROSTERS_MAX,
    DelegatesMayVanish,
    RevocationsAreBorne,
    RevokedLeave,
    TheAbsentAreReplaced,
    VolunteersTrain,
)
from p2ptrain.simulation.checkers.founders_watch import OneLossIsBorne, OnlyFoundersVote
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.clock import Clock
from p2ptrain.simulation.delegating import NEWCOMER
from p2ptrain.simulation.run import run_to_end, violations_in, world_of
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B, C, S, T, U = peers("a b c s t u")
RULES = replace(small_rules("a b c"), founders_vote=True, absent_s=4.0)
NOBODY = frozenset[PeerId]()


def named(step: int, *voters: PeerId) -> Terms:
    return Terms(step, step, digest(f"list {step}"), voters=voters)


def state(voters: tuple[PeerId, ...], *lists: Terms, step: int = 3) -> LedgerState:
    """Return a state with these voters. The other delegates and founders are no members."""
    return replace(chain_of(RULES, [])[1], voters=voters, step=step, terms=lists)


def decided(before: LedgerState, value: Value, **changes: object) -> Decision:
    """Return the decision on `value`, with the votes of all voters."""
    entry = Entry(before.height + 1, before.head, value)
    votes = tuple((voter, b"") for voter in sorted(before.voters))
    certificate = Certificate(entry.height, 0, entry.digest, votes)
    after = replace(before, height=entry.height, head=entry.digest, **changes)  # type: ignore[arg-type]
    return Decision(A, Certified(entry, certificate), before, after, {}, {})


def roster(before: LedgerState, *voters: PeerId, terms: Terms | None = None) -> Decision:
    value = Roster(before.step, 0, voters, (), terms=terms)
    return decided(before, value, voters=voters)


def at(now_s: float, *away: PeerId, back: tuple[PeerId, ...] = (A, B, C, S, T, U)) -> Troubles:
    """Return the troubles at `now_s`, if `away` went at time 0."""
    clock = Clock()
    troubles = Troubles(clock)
    for peer in back:
        troubles.end(peer)
    for peer in away:
        troubles.begin(peer)
    clock.at(now_s, lambda: None)
    clock.step()
    return troubles


def objections(checker: Watch, *decisions: Decision) -> list[str]:
    for each in decisions:
        checker.on_decision(each)
    return [text.split(": ", 1)[1] for text in checker.violations]


def test_checker_finds_a_voter_that_was_never_a_delegate() -> None:
    fine = state((A, B, C, S), named(3, S))
    assert objections(OnlyFoundersVote(RULES), roster(fine, A, B, C, S)) == []
    early = state((A, B, C, S), named(4, S))
    assert objections(OnlyFoundersVote(RULES), roster(early, A, B, C)) == ["s voted at height 1"]


def test_checker_finds_a_revoked_voter_that_stays() -> None:
    revoked = state((A, B, C, S, T), named(2, S, T), named(3, S))
    assert objections(RevokedLeave(RULES), roster(revoked, A, B, C, S)) == []
    assert objections(RevokedLeave(RULES), roster(revoked, A, B, C, S, T)) == [
        "t still votes after entry 1"
    ]
    few = state((S, T, U), named(2, S, T, U), named(3, S))
    assert objections(RevokedLeave(RULES), roster(few, S, T, U)) == []


def test_checker_finds_an_amendment_that_stops_the_run() -> None:
    all_vote = state((A, B, C, S, T), named(2, S, T))
    ends = roster(all_vote, A, B, C, S, T, terms=named(4))
    assert objections(RevocationsAreBorne(RULES, at(20.0, A), NOBODY), ends) == []
    assert objections(RevocationsAreBorne(RULES, at(20.0, A, B), NOBODY), ends) == [
        "entry 1 revokes so many votes that the run stops"
    ]
    assert objections(RevocationsAreBorne(RULES, at(5.0, A, B), NOBODY), ends) == []


def test_checker_finds_too_many_new_delegates() -> None:
    before = state((A, B, C), named(2, S, T, U))
    many = roster(before, A, B, C, S, T, U)
    assert objections(DelegatesMayVanish(RULES, at(20.0), NOBODY), many) == []
    assert objections(DelegatesMayVanish(RULES, at(20.0, A), NOBODY), many) == [
        "entry 1 makes voters of 3 delegates at once"
    ]
    assert objections(DelegatesMayVanish(RULES, at(20.0, A), frozenset((C,))), many) == []


def test_checker_finds_a_voter_that_is_not_replaced() -> None:
    before = state((A, B, C, S), named(2, S))
    value = Roster(3, 0, (A, B, C, S), (), (Participant(B, 1, 1),))
    opens, skipped = decided(before, value), decided(before, Skip(3))
    checker = TheAbsentAreReplaced(RULES, at(20.0, A), named_s=1.0)
    assert objections(checker, opens, skipped, *[opens] * ROSTERS_MAX) == []
    assert objections(checker, opens) == ["a is gone, but keeps its vote at height 1"]
    present = TheAbsentAreReplaced(RULES, at(20.0), named_s=1.0)
    assert objections(present, *[opens] * 9) == []


def test_checker_finds_an_electorate_of_two() -> None:
    before = state((A, B, S), named(2, S))
    assert objections(OneLossIsBorne(RULES, NOBODY), roster(before, A, S)) == [
        "only 2 voters are left at height 1"
    ]
    assert objections(OneLossIsBorne(RULES, frozenset((B,))), roster(before, A, S)) == []


def test_checker_finds_a_volunteer_that_does_not_take_part() -> None:
    before = state((A, B, C))
    there = roster(before, A, B, C)
    entries = [there] * (ADMITTED_ENTRIES + 1)
    assert objections(VolunteersTrain(at(30.0, back=(S,)), NOBODY), *entries) == []
    assert objections(VolunteersTrain(at(50.0, back=(S,)), NOBODY), *entries[1:]) == []
    assert objections(VolunteersTrain(at(50.0, back=(S,)), NOBODY), *entries, there) == [
        "s is not a member at height 1"
    ]
    member = replace(before, learners=(S,), since={**before.since, S: 1})
    commits = [decided(member, Commit(3, 0, digest("u"))) for _ in range(COMMITS + 1)]
    idle = VolunteersTrain(at(1.0, back=(S,)), NOBODY)
    assert objections(idle, *commits) == ["s has not trained at height 1"]


def test_run_goes_on_and_admits_volunteers_after_the_founders_are_gone() -> None:
    """If this did not happen in most worlds, the campaigns would prove nothing."""
    worlds = [world_of(seed, peers=3, steps=16, profile=PROFILES["delegated"]) for seed in range(6)]
    assert [(run_to_end(world), violations_in(world)) for world in worlds] == [("", [])] * 6
    ended = [world for world in worlds if world.delegating.ended_s is not None]
    assert len(ended) >= 4
    for world in ended:
        assert not set(world.rules.founders).intersection(world.latest.voters)
    assert sum(NEWCOMER in world.latest.tokens_by_peer for world in ended) >= 3
    lying = {peer for world in worlds for peer in world.liars if peer in world.volunteers}
    assert lying == {"d5"}
