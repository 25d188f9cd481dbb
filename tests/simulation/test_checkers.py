"""Each checker reports the violations of its rule, and accepts correct behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Branch,
    Certified,
    Commit,
    Entry,
    Participant,
    Roster,
    Skip,
    SnapshotRef,
    Vote,
    promise_message,
    vote_message,
)
from p2ptrain.ledger.history.base import Base
from p2ptrain.ledger.messages.messages import Accept, Accepted, Promise, PromiseProof
from p2ptrain.ledger.paxos.electorate import proof_of
from p2ptrain.simulation.checkers.branches import NobodyIsDrawnAway
from p2ptrain.simulation.checkers.commits import CommitsAreHeld, CommitsAreMade
from p2ptrain.simulation.checkers.lines import Lines
from p2ptrain.simulation.checkers.proposals import ProposalsAreEntitled, ProposalsAreSigned
from p2ptrain.simulation.checkers.spec_rules import (
    BlocksAreCommittedOnce,
    CertificatesVerify,
    EqualHeadsAgree,
    NewcomersAreFew,
    OneEntryPerHeight,
    StepsGoOn,
    VotesAreKept,
)
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision
from p2ptrain.simulation.clock import Clock
from p2ptrain.simulation.disk import SimDisk, signature_of, signer
from p2ptrain.simulation.rings import update_of
from p2ptrain.testing.ledgers import (
    LedgerGroup,
    accepted,
    certify,
    chain_of,
    digest,
    peers,
    proposal_of,
    small_rules,
)

A, B, C, D = peers("a b c d")
RULES = small_rules("a b c")
LINES = Lines(genesis(RULES))
PARTS = (Participant(A, 200, 2), Participant(B, 200, 2))
OPENING = Roster(0, 0, (A, B, C), (), PARTS)
U = digest("u")


def decision(
    certified: Certified,
    before: LedgerState,
    *,
    after: LedgerState | None = None,
    holders: str = "a b c",
    trained: Mapping[PeerId, tuple[int, ...]] | None = None,
) -> Decision:
    disks = {name: SimDisk() for name in (A, B, C)}
    for name in peers(holders):
        disks[name].updates.add(U)
    after = after or apply(RULES, before, certified.entry)
    done = {A: (0, 1), B: (2, 3)} if trained is None else trained
    return Decision(A, certified, before, after, disks, done)


def opening() -> Decision:
    return decision(certify(RULES, genesis(RULES), OPENING), genesis(RULES))


def commit(**changes: object) -> Decision:
    before = chain_of(RULES, [OPENING])[1]
    return decision(certify(RULES, before, Commit(0, 0, U)), before, **changes)  # type: ignore[arg-type]


def vote_of(voter: PeerId, round: int, entry: Entry) -> Accept:
    place = RULES.run, entry.height, round, entry.digest
    return Accept(Vote(*place, voter, signature_of(voter, vote_message(*place))))


ALL = (
    lambda: OneEntryPerHeight(),
    lambda: CertificatesVerify(rules=RULES),
    lambda: CommitsAreHeld(),
    lambda: EqualHeadsAgree(),
    lambda: BlocksAreCommittedOnce(),
    lambda: NewcomersAreFew(),
    lambda: StepsGoOn(rules=RULES),
)


@pytest.mark.parametrize("make", ALL)
def test_checkers_accept_a_good_chain(make: object) -> None:
    checker = make()  # type: ignore[operator]
    for it in (opening(), opening(), commit(), commit()):
        checker.on_decision(it)
    assert checker.violations == []


def test_checker_finds_two_entries_at_a_height() -> None:
    checker = OneEntryPerHeight()
    checker.on_decision(opening())
    other = certify(RULES, genesis(RULES), Roster(0, 0, (A, B, C), (D,)))
    checker.on_decision(decision(other, genesis(RULES)))
    assert len(checker.violations) == 1


def test_checker_finds_a_certificate_with_missing_or_forged_votes() -> None:
    good = certify(RULES, genesis(RULES), OPENING)
    votes = good.certificate.votes
    for bad in (votes[:1], (votes[0], (B, b"forged")), (votes[0], (D, b"stranger"))):
        checker = CertificatesVerify(rules=RULES)
        certified = replace(good, certificate=replace(good.certificate, votes=bad))
        checker.on_decision(decision(certified, genesis(RULES)))
        assert checker.violations == ["CertificatesVerify: entry 1 has only 1 valid votes of 3"]


def test_checker_finds_a_certificate_without_its_proposer() -> None:
    good = certify(RULES, genesis(RULES), OPENING)
    others = tuple(pair for pair in good.certificate.votes if pair[0] != B)
    certified = replace(good, certificate=replace(good.certificate, votes=others))
    checker = CertificatesVerify(rules=RULES)
    checker.on_decision(decision(certified, genesis(RULES)))
    text = "CertificatesVerify: entry 1 is certified without its proposer's vote"
    assert checker.violations == [text]


def test_checker_finds_a_vote_for_an_unsigned_proposal() -> None:
    checker = ProposalsAreSigned(lines=LINES, rules=RULES)
    entry = Entry(1, genesis(RULES).head, Skip(0))

    def promise(round: int, had: Accepted) -> Promise:
        message = promise_message(RULES.run, 1, round, had.round, entry.digest)
        return Promise(1, round, had, signature_of(A, message))

    checker.on_vote(B, proposal_of(RULES, 0, entry), SimDisk())
    checker.on_vote(C, proposal_of(RULES, 1, entry), SimDisk())
    checker.on_vote(A, promise(2, accepted(RULES, 0, entry)), SimDisk())
    assert checker.violations == []
    checker.on_vote(B, replace(proposal_of(RULES, 3, entry), signature=b"no"), SimDisk())
    vote = Vote(RULES.run, 1, 3, entry.digest, A, b"")
    checker.on_vote(A, Accept(vote), SimDisk())
    checker.on_vote(A, promise(4, Accepted(3, entry, b"no")), SimDisk())
    proof = PromiseProof(A, 3, entry.digest, b"no", b"")
    checker.on_vote(C, proposal_of(RULES, 4, entry, (proof,)), SimDisk())
    where = f"supports {entry.digest[:8]} in round 3 at height 1, but the proposer did not sign it"
    said = [f"ProposalsAreSigned: {name} {where}" for name in "aac"]
    assert checker.violations == said


def test_checker_finds_a_vote_that_the_promises_forbid() -> None:
    electorate = LedgerGroup(RULES).electorate("a")
    one, other = (Entry(1, genesis(RULES).head, Skip(step)) for step in range(2))

    def promise(voter: PeerId, had: Accepted | None) -> PromiseProof:
        mine = replace(electorate, me=voter, sign=signer(voter))
        return proof_of(voter, mine.promise(2, had))

    free, held = promise(A, None), promise(B, accepted(RULES, 0, one))
    own_round, later = (promise(C, accepted(RULES, round, other)) for round in (2, 3))
    unsigned = promise(C, Accepted(1, other, b"no"))
    stranger = promise(D, accepted(RULES, 1, other))
    for entry, proofs, entitled in (
        (one, (free, held), True),
        (one, (free, promise(C, None)), True),
        (other, (free, promise(C, accepted(RULES, 1, other)), held), True),
        (other, (free, held), False),
        (one, (free,), False),
        (one, (free, replace(held, signature=b"no")), False),
        (one, (free, promise(D, None)), False),
        (other, (free, own_round), False),
        (other, (free, later), False),
        (other, (free, unsigned), False),
        *((other, (free, held, bent), False) for bent in (own_round, later, unsigned, stranger)),
        *((one, (free, held, bent), True) for bent in (own_round, later, unsigned, stranger)),
    ):
        checker = ProposalsAreEntitled(lines=LINES, rules=RULES)
        checker.on_vote(A, proposal_of(RULES, 2, entry, proofs), SimDisk())
        checker.on_vote(B, Accept(Vote(RULES.run, 1, 2, entry.digest, B, b"")), SimDisk())
        assert (checker.violations == []) is entitled


def test_checker_finds_a_vote_for_an_update_that_the_voter_does_not_hold() -> None:
    checker = CommitsAreHeld()
    checker.on_decision(commit(holders="a b"))
    assert checker.violations == [f"CommitsAreHeld: c voted for update {U[:8]} without holding it"]


def test_checker_finds_a_commit_that_the_reduce_did_not_produce() -> None:
    before = chain_of(RULES, [OPENING])[1]
    made = certify(RULES, before, Commit(0, 0, update_of(before.head)))
    strict = CommitsAreMade(rules=RULES)
    among_liars = CommitsAreMade(rules=RULES, liars=frozenset({A, B}))
    strict.on_decision(decision(made, before))
    assert strict.violations == []
    for checker in (strict, among_liars):
        checker.on_decision(commit())
    assert strict.violations == [
        "CommitsAreMade: entry 2 commits an update that the reduce did not produce"
    ]
    assert among_liars.violations == []


@pytest.mark.parametrize(
    ("promised", "faults"),
    [
        ("a c", []),
        ("a b c", ["CommitsAreMade: a votes for an invented update in round 1 at height 2"]),
        ("a b", ["CommitsAreMade: a votes for an invented update in round 1 at height 2"]),
    ],
)
def test_checker_finds_an_invented_update_that_was_not_forced(
    promised: str, faults: list[str]
) -> None:
    """c lies and proposes the update in round 0. If b is down, a and c cannot know that b did not
    vote for it."""
    before = chain_of(RULES, [OPENING])[1]
    certified = certify(RULES, before, Commit(0, 0, U), round=1)
    claimed = PromiseProof(C, 0, certified.entry.digest, b"", b"")
    shown = tuple(
        claimed if voter == C else PromiseProof(voter, None, None, None, b"")
        for voter in peers(promised)
    )
    checker = CommitsAreMade(rules=RULES, liars=frozenset({C}))
    checker.on_vote(C, proposal_of(RULES, 0, certified.entry), SimDisk())
    for _ in range(2):  # A proposal is repeated.
        checker.on_vote(A, proposal_of(RULES, 1, certified.entry, shown), SimDisk())
    checker.on_vote(C, vote_of(C, 1, certified.entry), SimDisk())
    checker.on_decision(decision(certified, before))
    assert checker.violations == [f"{fault} without need" for fault in faults]


def test_blocks_of_an_invented_update_are_not_checked() -> None:
    """A stranger may get an update committed that it invented. It contains nobody's blocks."""
    before = chain_of(RULES, [OPENING])[1]
    made = certify(RULES, before, Commit(0, 0, update_of(before.head)))
    checker = BlocksAreCommittedOnce(strangers=frozenset({A}))
    checker.on_decision(commit(trained={}))
    assert checker.violations == []
    checker = BlocksAreCommittedOnce(strangers=frozenset({A}))
    checker.on_decision(decision(made, before, trained={}))
    assert checker.violations == [
        "BlocksAreCommittedOnce: step 0 commits blocks that b did not train on"
    ]


def test_checker_finds_differing_states_and_differing_thetas() -> None:
    checker = EqualHeadsAgree()
    checker.on_state(A, genesis(RULES))
    checker.on_state(B, replace(genesis(RULES), tokens=1))
    checker.on_applied(A, 1, digest("x"))
    checker.on_applied(B, 1, digest("y"))
    assert len(checker.violations) == 2


def test_checker_finds_untrained_repeated_and_lost_blocks() -> None:
    checker = BlocksAreCommittedOnce()
    checker.on_decision(commit(trained={A: (0, 1), B: (2, 9)}))
    assert checker.violations == [
        "BlocksAreCommittedOnce: step 0 commits blocks that b did not train on"
    ]
    again = BlocksAreCommittedOnce(committed={commit().before.head: frozenset({2})})
    again.on_decision(commit())
    assert again.violations[0] == "BlocksAreCommittedOnce: block 2 is committed a second time"
    lost = BlocksAreCommittedOnce()
    state = replace(genesis(RULES), lease_book=Leases({A: (0, 1)}, (), 4))
    lost.on_decision(decision(certify(RULES, genesis(RULES), OPENING), genesis(RULES), after=state))
    assert "is lost or in two places" in lost.violations[0]


def test_checker_finds_newcomers_that_are_too_many_or_too_early() -> None:
    checker = NewcomersAreFew()
    roster = Roster(0, 0, (A, C, D), ())
    after = replace(genesis(RULES), voters=(A, C, D))
    before = replace(genesis(RULES), voters=(A,))
    checker.on_decision(decision(certify(RULES, before, roster), before, after=after))
    assert len(checker.violations) == 2


def test_checker_finds_an_outer_step_that_is_left_out() -> None:
    checker = StepsGoOn(rules=RULES)
    after = replace(apply(RULES, genesis(RULES), opening().certified.entry), step=2)
    checker.on_decision(decision(opening().certified, genesis(RULES), after=after))
    assert checker.violations == ["StepsGoOn: entry 1 leads from step 0 to 2"]


# ── votes ────────────────────────────────────────────────────────────────────────────────────────

ONE, OTHER = Entry(1, genesis(RULES).head, Skip(0)), Entry(1, genesis(RULES).head, Skip(1))


class Voter:
    """A voter that can make any statement, and by default writes it to its disk first."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.checker = VotesAreKept(lines=LINES)
        self.disk = disk or SimDisk()

    def votes(self, round: int, entry: Entry = ONE) -> None:
        self.disk.records.append(f'{{"accepted":[],{self._where(round)}}}'.encode())
        self.votes_unwritten(round, entry)

    def votes_unwritten(self, round: int, entry: Entry = ONE) -> None:
        vote = Vote(RULES.run, 1, round, entry.digest, A, b"")
        self.checker.on_vote(A, Accept(vote), self.disk)

    def promises(self, round: int, accepted: int | None = None, height: int = 1) -> None:
        self.disk.records.append(f'{{"accepted":null,{self._where(round, height)}}}'.encode())
        said = None if accepted is None else Accepted(accepted, ONE, b"")
        last = (None, None) if said is None else (said.round, said.entry.digest)
        signature = signature_of(A, promise_message(RULES.run, height, round, *last))
        self.checker.on_vote(A, Promise(height, round, said, signature), self.disk)

    def _where(self, round: int, height: int = 1) -> str:
        return f'"height":{height},"line":"{RULES.run}","round":{round}'


def test_checker_accepts_a_voter_that_keeps_its_promises() -> None:
    voter = Voter()
    voter.votes(0)
    voter.promises(2, accepted=0)
    voter.votes(0)
    voter.votes(2)
    voter.promises(5, accepted=2)
    assert voter.checker.violations == []


def test_checker_finds_two_votes_in_a_round() -> None:
    voter = Voter()
    voter.votes(0, ONE)
    voter.votes(0, OTHER)
    assert voter.checker.violations == ["VotesAreKept: a voted twice at height 1, round 0"]


def test_checker_finds_a_vote_below_a_promise() -> None:
    voter = Voter()
    voter.promises(2)
    voter.votes(1)
    assert voter.checker.violations == [
        "VotesAreKept: a voted in round 1 at height 1, but had promised round 2"
    ]


def test_checker_finds_a_promise_that_forgets_a_vote() -> None:
    voter = Voter()
    voter.votes(1)
    voter.promises(2)
    assert voter.checker.violations == [
        "VotesAreKept: a's promise omits its vote of round 1 at height 1"
    ]


def test_checker_finds_a_promise_without_a_valid_signature() -> None:
    voter = Voter()
    voter.checker.on_vote(A, Promise(1, 2, None, b"noise"), voter.disk)
    assert voter.checker.violations == [
        "VotesAreKept: a promised round 2 at height 1 on an unknown line"
    ]


def test_checker_finds_a_vote_that_is_not_on_disk() -> None:
    voter = Voter()
    voter.promises(3)
    voter.votes_unwritten(3)
    assert voter.checker.violations == [
        "VotesAreKept: a sent a message for height 1, round 3, before storing it"
    ]


def test_checker_finds_a_vote_before_the_entries_below_it_are_on_disk() -> None:
    """A chain that begins at a base, a certified state, counts as complete."""
    sealed = Commit(0, 0, U, snapshot=SnapshotRef(0, U), state=U)
    chain, _ = chain_of(RULES, [OPENING, sealed, replace(OPENING, step=1)])
    base = Base(chain_of(RULES, [OPENING])[1], chain[1])
    for disk, height in (
        (SimDisk(), 0),
        (SimDisk(chain[:1]), 1),
        (SimDisk(base=base), 2),
        (SimDisk(chain[2:], base=base), 3),
    ):
        voter = Voter(disk)
        voter.promises(1, height=height + 1)
        assert voter.checker.violations == []
        voter.promises(1, height=height + 2)
        assert voter.checker.violations == [
            f"VotesAreKept: a sent a message about height {height + 2}, "
            f"but its disk ends at {height}"
        ]


BRANCHING = small_rules("a b c d", branch_after_s=8.0)


def drawn_away(*, got_opening_at: float, branched_at: float) -> list[str]:
    """Return the violations if `b` decides the first entry at time 0, `a` gets this entry at
    `got_opening_at`, and `a` follows a branch without `a` at `branched_at`.
    """
    clock = Clock()
    checker = NobodyIsDrawnAway(rules=BRANCHING, troubles=Troubles(clock))
    before = genesis(BRANCHING)
    first = certify(BRANCHING, before, replace(OPENING, voters=(A, B, C, D)))
    second = replace(decision(first, before), after=apply(BRANCHING, before, first.entry))
    on_it = second.after
    branch = Branch(0, (B,))
    parts = Certified(Entry(2, on_it.head, branch), first.certificate)
    third = Decision(A, parts, on_it, on_it, {}, {})
    for at, seen in (
        (0.0, replace(second, node=B)),
        (got_opening_at, second),
        (branched_at, third),
    ):
        clock.at(at, partial(checker.on_decision, seen))
    while clock.step():
        pass
    return checker.violations


def test_checker_finds_a_branch_followed_too_soon_after_a_decision() -> None:
    assert drawn_away(got_opening_at=0.1, branched_at=2.5) == [
        "NobodyIsDrawnAway: a joins a branch that does not name it, "
        "only 2.5 s after the last entry of its chain"
    ]


def test_late_copy_of_an_old_entry_does_not_prove_a_quorum() -> None:
    """Seed 234 of the profile `branch` found this case: even a minority can send old entries. So an
    old entry does not show that a quorum is connected.
    """
    assert drawn_away(got_opening_at=7.0, branched_at=9.0) == []
