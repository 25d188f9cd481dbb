"""The checkers of fairness and of liars report violations, and accept correct behaviour."""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, SnapshotRef, Value, Vote
from p2ptrain.ledger.messages.messages import Accept
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.simulation.checkers.accountability import LiarsAreExposed
from p2ptrain.simulation.checkers.fairness import (
    STARVED_COMMITS,
    LeavesHaveCauses,
    NobodyIsStarved,
    NobodyIsUsurped,
)
from p2ptrain.simulation.checkers.lines import Lines
from p2ptrain.simulation.checkers.spec_rules import (
    OneEntryPerHeight,
    SnapshotsAreTrue,
    SnapshotsAreVouched,
    StatesAreNamed,
)
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision
from p2ptrain.simulation.clock import Clock
from p2ptrain.simulation.disk import SimDisk, signature_of
from p2ptrain.testing.ledgers import certify, chain_of, digest, peers, small_rules

A, B, C, D = peers("a b c d")
RULES = small_rules("a b c")
PARTS = (Participant(A, 200, 2), Participant(B, 200, 2))
WITHOUT_C = Roster(0, 0, (A, B, C), (), PARTS)
U = digest("u")


def decide(value: Value, before: LedgerState) -> Decision:
    certified = certify(RULES, before, value)
    return Decision(A, certified, before, apply(RULES, before, certified.entry), {}, {})


def well(*names: PeerId) -> Troubles:
    troubles = Troubles(Clock())
    for name in names:
        troubles.end(name)
    return troubles


def test_checker_finds_a_healthy_member_that_is_left_out() -> None:
    before = chain_of(RULES, [WITHOUT_C])[1]
    checker = NobodyIsStarved(troubles=well(A, B, C), orderly=True)
    checker.on_decision(decide(Commit(0, 0, U), before))
    assert checker.violations == ["NobodyIsStarved: c was left out of 1 commits up to step 0"]


def test_unhealthy_member_or_seed_can_be_left_out() -> None:
    before = chain_of(RULES, [WITHOUT_C])[1]
    for checker in (
        NobodyIsStarved(troubles=well(A, B), orderly=True),
        NobodyIsStarved(troubles=well(A, B, C), orderly=True, seeds=(C,)),
        NobodyIsStarved(troubles=well(A, B, C), orderly=False),
    ):
        checker.on_decision(decide(Commit(0, 0, U), before))
        assert checker.violations == []


def test_member_left_out_for_many_commits_counts_as_starved_in_any_world() -> None:
    before = chain_of(RULES, [WITHOUT_C])[1]
    checker = NobodyIsStarved(troubles=well(A, B, C), orderly=False)
    for _ in range(STARVED_COMMITS + 1):
        checker.on_decision(decide(Commit(0, 0, U), before))
    assert len(checker.violations) == 1


def test_checker_finds_a_member_dropped_without_a_cause() -> None:
    troubles = well(A, B, C)
    dropping = decide(Roster(0, 0, (A, B), ()), genesis(RULES))
    checker = LeavesHaveCauses(troubles=troubles, orderly=True)
    troubles.begin(C)
    checker.on_decision(dropping)
    assert checker.violations == []
    checker.on_decision(dropping)
    assert checker.violations == [
        "LeavesHaveCauses: c was dropped 2 times, but had trouble only 1 times"
    ]


def test_checker_finds_a_healthy_honest_member_that_is_dropped() -> None:
    dropping = decide(Roster(0, 0, (A, B), ()), genesis(RULES))
    for liars, troubles, objections in (
        ((), well(A, B, C), ["NobodyIsUsurped: c was dropped at 1 although it is healthy"]),
        ((C,), well(A, B, C), []),
        ((), well(A, B), []),
    ):
        checker = NobodyIsUsurped(liars=liars, troubles=troubles)
        checker.on_decision(dropping)
        checker.on_decision(decide(WITHOUT_C, genesis(RULES)))
        assert checker.violations == objections


LINES = Lines(genesis(RULES))
WITHOUT_C_TURNED = Roster(0, 0, (A, B, C), (), PARTS[::-1])


def test_fork_with_proof_against_enough_liars_is_not_a_violation() -> None:
    for liars, objections in (((A, B, C), 0), ((), 1)):
        exposure = LiarsAreExposed(lines=LINES, rules=RULES, liars=frozenset(liars))
        checker = OneEntryPerHeight(exposure=exposure)
        for value in (WITHOUT_C, WITHOUT_C_TURNED):
            decision = decide(value, genesis(RULES))
            exposure.on_decision(decision)
            checker.on_decision(decision)
        assert {peer for peer, _, _ in exposure.proofs} == {A, B, C}
        assert len(exposure.forks) == 1
        assert len(checker.violations) == objections


def vote_of(voter: PeerId, entry: Digest) -> Accept:
    unsigned = Vote(RULES.run, 1, 0, entry, voter, b"")
    return Accept(replace(unsigned, signature=signature_of(voter, unsigned.message)))


def test_contradictions_about_other_entries_do_not_excuse_a_fork() -> None:
    forked = [decide(value, genesis(RULES)) for value in (WITHOUT_C, WITHOUT_C_TURNED)]
    x, y, one_of_them = digest("x"), digest("y"), forked[1].certified.entry.digest
    for lies, guilty in (((x, y), "nobody"), ((x, one_of_them), "d")):
        exposure = LiarsAreExposed(lines=LINES, rules=RULES, liars=frozenset({D}))
        for lie in lies:
            exposure.on_vote(D, vote_of(D, lie), SimDisk())
        for decision in forked:
            exposure.on_decision(decision)
        assert exposure.forks == [f"height 1 has two entries; proved guilty: {guilty}"]
        assert (exposure.forks[0] in str(exposure.violations)) is (guilty == "nobody")


def test_fork_of_a_two_thirds_quorum_is_never_excused() -> None:
    rules = replace(RULES, quorum="two-thirds")
    exposure = LiarsAreExposed(lines=LINES, rules=rules, liars=frozenset((A, B, C)))
    for value in (WITHOUT_C, WITHOUT_C_TURNED):
        exposure.on_decision(decide(value, genesis(RULES)))
    assert exposure.violations == [
        "LiarsAreExposed: height 1 has two entries; proved guilty: a, b, c"
    ]


def test_checker_finds_a_snapshot_that_no_node_has() -> None:
    before = chain_of(RULES, [WITHOUT_C])[1]
    checker = SnapshotsAreTrue(rules=RULES)
    checker.on_applied(A, 0, digest("theta"))
    for theta, objections in (("theta", 0), ("another", 1)):
        value = Commit(0, 0, U, SnapshotRef(0, digest(theta)), before.digest)
        checker.on_decision(decide(value, before))
        assert len(checker.violations) == objections


def test_checker_finds_a_snapshot_that_was_not_written_by_a_quorum() -> None:
    before = chain_of(RULES, [WITHOUT_C])[1]
    disks: dict[PeerId, SimDisk] = {peer: SimDisk() for peer in before.voters}
    decision = decide(Commit(0, 0, U, SnapshotRef(0, U), before.digest), before)
    named = replace(decision, disks=disks)
    for writer, liars, objections in ((A, (), 1), (A, (C,), 0), (B, (), 0)):
        disks[writer].written.add(SnapshotTaken(writer, 0, U))
        checker = SnapshotsAreVouched(rules=RULES, liars=frozenset(liars))
        checker.on_decision(named)
        assert len(checker.violations) == objections


def test_checker_finds_a_commit_that_names_a_wrong_state() -> None:
    before = chain_of(RULES, [WITHOUT_C])[1]
    checker = StatesAreNamed()
    good = decide(Commit(0, 0, U, SnapshotRef(0, U), before.digest), before)
    checker.on_decision(good)
    assert checker.violations == []
    entry = replace(good.certified.entry, value=Commit(0, 0, U, SnapshotRef(0, U), U))
    checker.on_decision(replace(good, certified=replace(good.certified, entry=entry)))
    assert checker.violations == ["StatesAreNamed: entry 2 does not name the state before it"]
