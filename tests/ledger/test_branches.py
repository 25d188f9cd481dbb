"""SPEC.md B1 to B8: peers continue on a branch after the quorum is lost, and the branch heals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.branches.branch_proposal import BranchProposer, Presence, may_branch
from p2ptrain.ledger.branches.rival_chains import Rivals, Winner
from p2ptrain.ledger.chain.apply import apply, genesis, why_invalid
from p2ptrain.ledger.chain.bounded_table import PEERS_MAX
from p2ptrain.ledger.chain.branch_rank import Rank, rank_of
from p2ptrain.ledger.chain.state import STRETCHES_MAX, LedgerState, Phase, Stretch
from p2ptrain.ledger.chain.values import (
    Branch,
    Certificate,
    Certified,
    Commit,
    Entry,
    Heal,
    Participant,
    Roster,
    Skip,
    branch_message,
)
from p2ptrain.ledger.chain.verify import check_certified, replay
from p2ptrain.ledger.messages.effects import AskEntries, Decided, Effect, Rejoin, Send
from p2ptrain.ledger.messages.events import CloneFound, PeerHeight, Received, Tick
from p2ptrain.ledger.messages.messages import (
    Entries,
    Message,
    Outcome,
    Prepare,
    ProposeBranch,
    RefuseBranch,
    Refused,
    SignBranch,
)
from p2ptrain.ledger.messages.peer_reports import Joining, PeerDown, PeerUp, Ready, ReduceDone
from p2ptrain.ledger.paxos.height_policy import Answer
from p2ptrain.ledger.policy.accept import may_accept
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.simulation.disk import signature_of, signer, verify
from p2ptrain.testing.ledgers import LedgerGroup, certify, digest, peers, small_rules
from p2ptrain.testing.ledgers import proposal_of as asked_in_round_0

A, B, C, D, E = peers("a b c d e")
RULES = small_rules("a b c d e", participants_min=2, branch_after_s=60.0)
START = genesis(RULES)
PAIR = Branch(0, (A, B))


def signed(state: LedgerState, branch: Branch, voters: tuple[PeerId, ...] = ()) -> Certified:
    entry = Entry(state.height + 1, state.head, branch)
    message = branch_message(state.line, entry)
    votes = ((voter, signature_of(voter, message)) for voter in voters or branch.voters)
    return Certified(entry, Certificate(entry.height, 0, entry.digest, tuple(sorted(votes))))


def after(state: LedgerState, certified: Certified) -> LedgerState:
    return check_certified(RULES, state, certified, verify)


ON_A_BRANCH = after(START, signed(START, PAIR))


def opened(state: LedgerState) -> Certified:
    parts = tuple(Participant(peer, 200, 2) for peer in state.voters[:2])
    return certify(RULES, state, Roster(state.step, state.attempt, state.voters, (), parts))


# ── B1, B2: the contents of a branch
# ─────────────────────────────────────────────────────────────────────


def test_b2_branch_takes_leases_from_absent_voters_and_ends_the_reduce() -> None:
    reducing = after(START, opened(START))
    branched = after(reducing, signed(reducing, PAIR))
    assert (branched.phase, branched.roster, branched.attempt) == (Phase.GATHER, None, 1)
    assert branched.tries == 0
    assert branched.lease_book.returned == (4, 5, 6, 7, 8, 9)
    assert branched.line == branched.head
    assert branched.past == (Stretch(RULES.run, 1, 0, 0, (C, D, E)),)
    assert branched.decided == {RULES.run: 1, branched.line: 2}


@pytest.mark.parametrize(
    ("branch", "fault"),
    [
        (Branch(0, (B, A)), "its voters are not a subset of the current voters in the same order"),
        (Branch(0, (A, PeerId("x"))), "its voters are not a subset"),
        (
            Branch(0, (A,), (PeerId("x"),)),
            "its learners are not a subset of the current learners in the same order",
        ),
        (Branch(0, (A, B, C)), "its voters are a quorum, so they do not need a branch"),
        (Branch(1, (A,)), "it is for outer step 1"),
    ],
)
def test_b2_malformed_branch_is_refused(branch: Branch, fault: str) -> None:
    assert why_invalid(RULES, START, branch).startswith(fault)


def test_b2_run_that_waits_does_not_branch_and_branches_are_bounded() -> None:
    waits = replace(RULES, quorum_loss="wait")
    assert why_invalid(waits, START, PAIR) == "this run waits for its quorum and does not branch"
    deep = replace(ON_A_BRANCH, past=ON_A_BRANCH.past * STRETCHES_MAX)
    assert "branches deep" in why_invalid(RULES, deep, Branch(0, (B,)))
    assert (
        why_invalid(RULES, START, Heal(0, 1, digest("x")))
        == "this chain is not a branch that could heal"
    )


def test_b2_branch_needs_signatures_of_exactly_its_voters() -> None:
    good = signed(START, PAIR)
    votes = certify(RULES, START, PAIR)
    forged = replace(good.certificate, votes=((A, b"x"), (B, b"y")))
    for bad in (signed(START, PAIR, (A,)), signed(START, PAIR, (A, B, C)), votes):
        with pytest.raises(RemoteProtocolError, match="signed by exactly its voters"):
            after(START, bad)
    with pytest.raises(RemoteProtocolError, match="the signature of a is not valid"):
        after(START, replace(good, certificate=forged))
    reports = Reports(C)
    assert may_accept(RULES, START, reports, PAIR, 0.0, forced=True).answer is Answer.NO
    assert replay(RULES, [good], verify) == ON_A_BRANCH


def test_b1_votes_of_one_line_do_not_count_on_another() -> None:
    follows = certify(RULES, ON_A_BRANCH, Skip(0))
    with pytest.raises(RemoteProtocolError, match="the signature of a is not valid"):
        after(replace(ON_A_BRANCH, line=RULES.run), follows)


def test_only_certain_entries_can_follow_a_heal_or_the_end() -> None:
    healed = apply(RULES, ON_A_BRANCH, Entry(2, ON_A_BRANCH.head, Heal(0, 1, digest("main"))))
    assert healed.phase is Phase.HEALED
    assert why_invalid(RULES, healed, Skip(0)) == "this branch has healed"
    ended = replace(START, phase=Phase.ENDED)
    assert why_invalid(RULES, ended, Skip(0)) == "the run has ended"
    assert after(ended, signed(ended, PAIR)).phase is Phase.ENDED
    assert may_branch(ended, outranked=True)
    assert not may_branch(ended, outranked=False)
    assert not may_branch(healed, outranked=True)


# ── B3: the time of a branch
# ─────────────────────────────────────────────────────────────────────────────────────


def branching(me: PeerId = A, now: float = 0.0) -> BranchProposer:
    return BranchProposer(RULES, me, signer(me), verify, now)


PRESENT = Presence((A, B), ())


def test_b3_branch_is_due_some_time_after_the_last_quorum() -> None:
    it = branching()
    it.note_presence(START, PRESENT, 30.0)
    assert (it.due_at, it.is_due(59.0), it.is_due(60.0)) == (60.0, False, True)
    it.note_presence(START, Presence((A, B, C), ()), 59.0)
    assert (it.due_at, it.is_due(99.0), it.next_deadline(99.0)) == (None, False, None)
    it.note_presence(START, PRESENT, 70.0)
    assert it.next_deadline(71.0) == 130.0


def test_b3_quorum_too_small_to_average_does_not_count() -> None:
    rules = small_rules("a b", participants_min=2, branch_after_s=60.0)
    it = BranchProposer(rules, A, signer(A), verify, 0.0)
    it.note_presence(genesis(rules), Presence((A,), ()), 1.0)
    assert it.due_at == 60.0
    assert it.propose(genesis(rules), Presence((A,), ()), 61.0) == []
    assert it.outcome() is None


def proposal_of(it: BranchProposer, entry: Entry, sender: PeerId = A, now: float = 61.0) -> Message:
    (*_, said) = it.receive(sender, ProposeBranch(entry), START, now)
    assert isinstance(said, Send)
    return said.message


def test_b3_voter_refuses_to_sign_an_invalid_or_early_branch() -> None:
    it, entry = branching(B), Entry(1, START.head, PAIR)
    assert isinstance(proposal_of(it, entry), SignBranch)
    refusals = {
        "the entry is not a branch": (replace(entry, value=Skip(0)), A, 61.0),
        "this node is at height 0 of a different chain": (Entry(2, digest("x"), PAIR), A, 61.0),
        "only the first-ranked remaining voter may propose a branch": (entry, C, 61.0),
        "its voters are a quorum": (replace(entry, value=Branch(0, (A, B, C))), A, 61.0),
        "this node saw a quorum recently; it can branch off in 20 s": (
            entry,
            A,
            40.0,
        ),
    }
    for reason, (proposal, sender, now) in refusals.items():
        said = proposal_of(it, proposal, sender, now)
        assert isinstance(said, RefuseBranch)
        assert said.reason.startswith(reason)
    it.note_presence(START, Presence((A, B, C), ()), 61.0)
    assert proposal_of(it, entry) == RefuseBranch(1, "this node sees a quorum")


def test_b3_proposer_resends_and_counts_only_valid_signatures() -> None:
    it, entry = branching(), Entry(1, START.head, PAIR)
    first = it.propose(START, PRESENT, 60.0)
    assert first[1:] == [Send(B, ProposeBranch(entry))]
    assert it.propose(START, PRESENT, 60.1) == []
    assert it.propose(START, PRESENT, 60.6) == [Send(B, ProposeBranch(entry))]
    good = signature_of(B, branch_message(START.line, entry))
    for sender, message in (
        (B, SignBranch(1, digest("another"), good)),
        (C, SignBranch(1, entry.digest, good)),
        (B, SignBranch(1, entry.digest, b"noise")),
    ):
        it.receive(sender, message, START, 61.0)
        assert it.outcome() is None
    it.receive(B, SignBranch(1, entry.digest, good), START, 61.0)
    assert it.outcome() == signed(START, PAIR)
    assert it.propose(START, Presence((B,), ()), 62.0) == []
    assert it.outcome() is None


AFTER_S = 60.0


def three_of_seven(silent: str) -> LedgerGroup:
    """Return a group with three of seven voters; the other four are gone and never return. The
    peers in `silent` count as up, but do not answer.
    """
    rules = small_rules("a b c d e f g", branch_after_s=AFTER_S)
    some = LedgerGroup(rules, names=(A, B, C))
    some.send_to_all(*(PeerHeight(peer, 0, rules.run) for peer in (A, B, C)))
    for peer in peers(silent):
        some.crash(peer)
    return some


@pytest.mark.parametrize(
    ("silent", "voters", "at_s"),
    [
        ("", (A, B, C), AFTER_S),
        ("b", (A, C), 2 * AFTER_S),
        ("b c", (A,), 2 * AFTER_S),
        ("a", (B, C), 3 * AFTER_S),
        ("a c", (B,), 4 * AFTER_S),
        ("a b", (C,), 5 * AFTER_S),
    ],
)
def test_b3_silent_peer_does_not_block_a_branch(
    silent: str, voters: tuple[PeerId, ...], at_s: float
) -> None:
    some = three_of_seven(silent)
    some.wait(at_s - 0.1)
    assert set(some.heights().values()) == {0}
    some.wait(5.0)  # the longest time until a proposal is sent again
    for ledger in some.ledgers.values():
        (branch,) = ledger.chain
        assert branch.entry.value == Branch(0, voters)


def test_b3_branch_waits_for_a_peer_that_started_later() -> None:
    some = three_of_seven("c")
    some.wait(AFTER_S / 2)
    some.start("c")
    some.send_events("c", *(PeerHeight(peer, 0, some.rules.run) for peer in (A, B)))
    some.wait(AFTER_S + 5.0)
    assert some["c"].chain[0].entry.value == Branch(0, (A, B, C))


def test_b3_peer_that_has_signed_does_not_count_as_silent() -> None:
    """B signs at once. C never signs, and is left out after its waiting time. D is present only for
    a moment.
    """
    rules = small_rules("a b c d e f g h i", branch_after_s=AFTER_S)
    state, it = genesis(rules), BranchProposer(rules, A, signer(A), verify, 0.0)

    def named(now: float, *here: PeerId) -> tuple[PeerId, ...]:
        effects = it.propose(state, Presence((A, *here), ()), now)
        for effect in effects:
            if isinstance(effect, Send) and effect.peer == B:
                assert isinstance(effect.message, ProposeBranch)
                entry = effect.message.entry
                good = signature_of(B, branch_message(state.line, entry))
                it.receive(B, SignBranch(1, entry.digest, good), state, now)
        return proposed_voters(effects)

    assert named(60.0, B, C) == (A, B, C)
    assert named(119.0, B, C, D) == (A, B, C, D)
    assert named(120.0, B, C, D) == (A, B, D)
    assert named(130.0, B, C) == (A, B)
    assert it.outcome() is not None


NAMES = "a b c d e f g h i"


def proposal(
    it: BranchProposer, state: LedgerState, here: Presence, now: float
) -> tuple[PeerId, ...]:
    """Return the voters of the branch that `it` proposes now. If `it` is the only voter, it sends
    no proposal, so return the voters of the branch that it has signed.
    """
    it.note_presence(state, here, now)
    effects, alone = it.propose(state, here, now), it.outcome()
    return proposed_voters(effects) if alone is None else tuple(alone.certificate.voters)


def proposed_voters(effects: list[Effect]) -> tuple[PeerId, ...]:
    """Return the voters of the branch that these effects propose to others."""
    said = [effect.message for effect in effects if isinstance(effect, Send)]
    (value,) = {message.entry.value for message in said if isinstance(message, ProposeBranch)}
    assert isinstance(value, Branch)
    return value.voters


def test_b3_returned_peer_is_asked_again() -> None:
    """B never signs. C was asked, disconnected, and returned just before it would have been left
    out.
    """
    rules = small_rules(NAMES, branch_after_s=AFTER_S)
    state, it = genesis(rules), BranchProposer(rules, A, signer(A), verify, 0.0)
    assert proposal(it, state, Presence((A, B, C), ()), 60.0) == (A, B, C)
    for now in (70.0, 70.5, 100.0):
        assert proposal(it, state, Presence((A, B), ()), now) == (A, B)
    for now in (119.0, 120.0, 178.0):
        voters = proposal(it, state, Presence((A, B, C), ()), now)
        assert voters == ((A, B, C) if now < 120.0 else (A, C))
    assert proposal(it, state, Presence((A, B, C), ()), 179.0) == (A,)


def test_b3_peer_with_short_absences_is_left_out_after_its_time() -> None:
    """A voter has branch_after_s to sign. That time does not start again after an absence that is
    too short for the others to sign without this voter.
    """
    rules = small_rules(NAMES, branch_after_s=AFTER_S)
    state, it = genesis(rules), BranchProposer(rules, A, signer(A), verify, 0.0)
    for now in (60.0, 80.0, 100.0):
        assert proposal(it, state, Presence((A, B, C), ()), now) == (A, B, C)
        assert proposal(it, state, Presence((A, B), ()), now + 10.0) == (A, B)
        assert proposal(it, state, Presence((A, B, C), ()), now + 10.2) == (A, B, C)
    assert proposal(it, state, Presence((A, B, C), ()), 120.0) == (A,)


def test_b3_outdated_proposal_is_not_repeated() -> None:
    """A quorum is back, but it is too small to average. The proposer does nothing until some of
    these peers leave again.
    """
    rules = small_rules("a b c d e", participants_min=4, branch_after_s=AFTER_S)
    state, it = genesis(rules), BranchProposer(rules, A, signer(A), verify, 0.0)
    state = replace(state, learners=(PeerId("x"), PeerId("y")))
    few = Presence((A, B), state.learners)
    assert proposal(it, state, few, 60.0) == (A, B)
    too_few = Presence((A, B, C), ())
    it.note_presence(state, too_few, 61.0)
    assert it.propose(state, too_few, 61.0) == []
    assert (it.outcome(), it.next_deadline(61.0)) == (None, None)
    assert proposal(it, state, few, 200.0) == (A, B)
    assert it.next_deadline(200.0) == 200.5


def test_b3_named_voter_follows_and_the_others_wait() -> None:
    for me, at_once in ((A, True), (C, False)):
        it = branching(me)
        assert it.adoptable(1.0) is None
        it.offer(signed(START, PAIR))
        it.offer(signed(START, Branch(0, (D,))))
        assert (it.adoptable(1.0) is not None) is at_once
        assert it.adoptable(61.0) == signed(START, PAIR)
        it.note_presence(START, Presence((A, B, C), ()), 62.0)
        assert it.adoptable(200.0) is None


# ── B4: the rank of chains ───────────────────────────────────────────────────────────────


def rank(past: list[Stretch], line: str, height: int, tokens: int) -> Rank:
    at = {"past": tuple(past), "line": line, "height": height, "tokens": tokens}
    return rank_of(replace(START, **at))  # type: ignore[arg-type]


def test_b4_chains_are_ordered_by_rank() -> None:
    run, low, high = (char * 64 for char in "abc")
    base = Stretch(run, 5, 2, 100, ())  # type: ignore[arg-type]
    branch = rank([base], low, 9, 300)
    assert rank([], run, 6, 100) > branch
    assert rank([base], high, 8, 301) > branch
    assert rank([base], high, 99, 300) < branch
    assert rank([], run, 5, 100) < branch


def test_b4_branch_with_more_voters_outranks_one_with_more_tokens() -> None:
    """One liar can branch off alone and invent tokens, but it cannot sign for others."""
    run, low, high = (char * 64 for char in "abc")
    alone = Stretch(run, 5, 2, 100, (B, C, D))  # type: ignore[arg-type]
    pair = Stretch(run, 5, 2, 100, (C, D))  # type: ignore[arg-type]
    invented = rank([alone], low, 90, 1 << 50)
    assert invented < rank([pair], high, 6, 100)
    assert invented < rank([], run, 6, 100)


def test_b6_rank_of_chains_is_transitive() -> None:
    run, a, b, a_1 = (char * 64 for char in "0abc")
    base = Stretch(run, 5, 2, 0, ())  # type: ignore[arg-type]
    left = Stretch(a, 7, 3, 5, ())  # type: ignore[arg-type]
    on_a = rank([base], a, 9, 10)
    on_b = rank([base], b, 9, 20)
    on_a_1 = rank([base, left], a_1, 20, 30)
    assert on_b > on_a > on_a_1
    assert on_b > on_a_1


# ── B5, B7: a branch meets another chain ─────────────────────────────────────────────────────────


def group(me: str, *chain: Certified) -> LedgerGroup:
    some = LedgerGroup(RULES, names=(PeerId(me),))
    some.disks[PeerId(me)].chain.extend(chain)
    some.start(me)
    return some


MAIN = opened(START)
MAIN_STATE = after(START, MAIN)


def test_b5_branch_heals_only_to_a_verified_chain() -> None:
    some = group("a", signed(START, Branch(0, (A,))))
    (ask,) = some.send_events("a", PeerHeight(C, 1, RULES.run))
    assert ask == AskEntries(C, 1)
    effects = some.send_events("a", Received(C, Entries(1, (MAIN,))))
    (decided,) = (each for each in effects if isinstance(each, Decided))
    assert decided.certified.entry.value == Heal(0, 1, MAIN.entry.digest)
    assert effects[-1] == Rejoin(0, (MAIN,))
    assert some["a"].state == MAIN_STATE
    reports = Reports(A)
    heal, state = Heal(0, 1, MAIN.entry.digest), ON_A_BRANCH
    assert may_accept(RULES, state, reports, heal, 0.0, forced=True).answer is Answer.LATER
    reports.outranked_by = MAIN.entry
    assert may_accept(RULES, state, reports, heal, 0.0, forced=False).answer is Answer.YES
    other = replace(heal, entry=digest("another"))
    assert may_accept(RULES, state, reports, other, 0.0, forced=False).answer is Answer.LATER
    assert may_accept(RULES, state, reports, other, 0.0, forced=True).answer is Answer.YES


def test_b5_ended_ledger_sends_nothing() -> None:
    some = group("a", signed(START, Branch(0, (A,))))
    over = some["a"]
    some.send_events("a", PeerHeight(C, 1, RULES.run))
    some.send_events("a", Received(C, Entries(1, (MAIN,))))
    assert over is not some["a"]
    assert over.handle(PeerDown(B), 5.0) == []
    assert over.next_deadline() is None


def test_b5_invalid_or_healed_chain_is_not_followed() -> None:
    forged = replace(MAIN, certificate=replace(MAIN.certificate, votes=((A, b"x"),)))
    some = group("a", signed(START, Branch(0, (A,))))
    some.send_events("a", PeerHeight(C, 1, RULES.run))
    some.send_events("a", Received(C, Entries(1, (forged,))))
    assert "c sent an invalid chain" in some.notes[-1][1]
    theirs = signed(START, Branch(0, (C, D)))
    state = after(START, theirs)
    heal = certify(RULES, state, Heal(0, 1, digest("elsewhere")))
    some.now = 10.0
    some.send_events("a", PeerHeight(C, 2, state.line))
    some.send_events("a", Received(C, Entries(2, (theirs, heal))))
    assert some["a"].state.height == 1


def test_peer_on_another_line_counts_as_down() -> None:
    some = group("a")
    elsewhere = ON_A_BRANCH.line
    some.send_events("a", PeerHeight(B, 1, elsewhere))
    reports = some["a"].reports
    assert reports.down == {B}
    for report in (Ready(B, 0, 200, 2), Joining(B), ReduceDone(B, 0, 0, digest("u")), PeerUp(B)):
        some.send_events("a", report)
    assert (reports.ready, reports.done, reports.joining, reports.down) == ({}, {}, {}, {B})
    some.send_events("a", Received(B, Prepare(5, 1)))
    assert some["a"].next_deadline() is not None
    some.send_events("a", PeerHeight(B, 0, RULES.run), PeerDown(B), PeerHeight(B, 1, elsewhere))
    some.send_events("a", PeerHeight(B, 0, RULES.run))
    assert reports.down == {B}
    some.send_events("a", PeerUp(B))
    assert reports.down == set()


def test_entry_of_another_line_is_not_reported_as_invalid() -> None:
    some = group("a", MAIN)
    branch = signed(START, Branch(0, (D, E)))
    some.send_events("a", PeerHeight(D, 1, branch.entry.digest), Received(D, Outcome(branch)))
    assert some["a"].state == MAIN_STATE


def test_run_without_branches_ignores_messages_about_them() -> None:
    some = LedgerGroup(small_rules("a b c"))
    entry = Entry(1, some["a"].state.head, Branch(0, (B,)))
    some.send_events("a", Received(B, ProposeBranch(entry)))
    assert some.notes == [(A, "b sent a message about a branch, but this run does not branch")]


def test_status_reports_a_lost_quorum_and_a_branch() -> None:
    some = group("a")
    some.send_events("a", PeerDown(B))
    words = some["a"].status(20.0).branch
    assert words == "no quorum for 20 s; the connected voters branch off in 40 s"
    branched = group("a", signed(START, PAIR))
    said = branched["a"].status(70.0).branch
    assert said.startswith("on a branch since outer step 0, without c, d, e; no quorum for 70 s")
    assert said.endswith("branch off now")


def test_b3_branch_of_our_own_branch_is_followed_once_the_wait_is_over() -> None:
    first = signed(START, PAIR)
    second = signed(ON_A_BRANCH, Branch(0, (B,)))
    some = group("a", first)
    some.send_events("a", PeerHeight(C, 2, second.entry.digest))
    some.send_events("a", Received(C, Entries(2, (first, second))))
    assert some["a"].state == ON_A_BRANCH
    some.now = 61.0
    some.send_events("a", Tick())
    assert some["a"].state == after(ON_A_BRANCH, second)


def test_peer_that_must_not_vote_does_not_sign_a_branch() -> None:
    some = group("b")
    some.send_events("b", CloneFound("a copy was seen"))
    entry = Entry(1, START.head, PAIR)
    some.now = 61.0
    (said,) = (
        it
        for it in some.send_events("b", Received(A, ProposeBranch(entry)))
        if isinstance(it, Send)
    )
    assert said == Send(A, RefuseBranch(1, "this process must not use its vote"))
    assert some.notes[-1] == (B, "a sent a message about a branch, but this process does not vote")
    refused = some.send_events("b", Received(A, said.message))
    assert not any(isinstance(effect, Send) for effect in refused)


def test_b1_peer_that_returns_to_a_line_keeps_its_promises() -> None:
    """The promises count even if the log of votes was rewritten while the peer was on the other
    line.
    """
    some = group("a")
    some.send_events("a", Received(C, Prepare(1, 1)))
    promise = some["a"].records()
    assert len(promise) == 1
    some.send_events("a", Received(B, Outcome(signed(START, PAIR))))
    assert some["a"].state == ON_A_BRANCH
    assert some["a"].records() == promise
    disk = some.disks[A]
    disk.records[:], disk.chain[:] = some["a"].records(), []
    some.start("a")
    some.mail.clear()
    some.send_events("a", Received(B, asked_in_round_0(RULES, 0, MAIN.entry)))
    refused = Refused(1, 0, 1, "this node has promised a later round")
    assert [(it.receiver, it.message) for it in some.mail] == [(B, refused)]


def test_number_of_remembered_positions_of_strangers_is_bounded() -> None:
    some = group("a")
    for number in range(PEERS_MAX):
        some.send_events("a", PeerHeight(PeerId(f"x{number}"), 0, RULES.run))
    last, late = PeerId(f"x{PEERS_MAX - 1}"), PeerId("late")
    some.send_events("a", *(PeerHeight(peer, 1, ON_A_BRANCH.line) for peer in (late, B, last)))
    assert some["a"].reports.down == {B, last}


def test_status_does_not_mention_branches_while_a_quorum_is_up() -> None:
    some = group("a")
    some.send_events("a", PeerHeight(B, 0, RULES.run), PeerHeight(C, 0, RULES.run))
    assert some["a"].status(1.0).branch == ""
    some.send_events("a", PeerDown(B))
    assert some["a"].status(1.0).branch.startswith("no quorum for 1 s")


LOW, HIGH = sorted(
    (signed(START, Branch(0, pair)) for pair in ((A, B), (C, D))), key=lambda it: it.entry.digest
)
"""Two branches of the same entry. While equally many tokens are committed on both, LOW outranks
HIGH.
"""


def shown(ours: Certified, theirs: Certified, *, height: int = 1) -> tuple[Rivals, list[Effect]]:
    """Let a node with chain `ours` ask C for its entries. C claims `height` entries, and answers
    with `theirs`.
    """
    rivals, state = Rivals(RULES, verify), after(START, ours)
    rivals.base = START
    place: dict[PeerId, tuple[RunId | Digest, int]] = {C: (theirs.entry.digest, height)}
    assert rivals.ask(place, state, set(), 0.0) == [AskEntries(C, 1)]
    return rivals, rivals.receive_entries(height, [theirs], state, {1: ours}.get, 0.1)


def test_b4_chain_that_has_outgrown_a_rival_does_not_follow_it() -> None:
    rivals, _ = shown(HIGH, LOW)
    assert rivals.winner == Winner(0, (LOW,), after(START, LOW))
    state = after(START, HIGH)
    reducing = after(state, opened(state))
    rivals.entered(state, reducing)
    assert rivals.winner is not None
    rivals.entered(reducing, after(reducing, certify(RULES, reducing, Commit(0, 0, digest("u")))))
    assert rivals.winner is None


def test_b4_lower_ranked_chain_is_asked_for_again_when_it_grows() -> None:
    rivals, effects = shown(LOW, HIGH)
    state, line = after(START, LOW), HIGH.entry.digest
    assert (rivals.winner, effects) == (None, [])
    assert rivals.ask({C: (line, 1)}, state, set(), 10.0) == []
    assert rivals.ask({C: (line, 2)}, state, set(), 20.0) == [AskEntries(C, 1)]


def test_every_second_request_is_sent_to_a_member() -> None:
    rivals, state = Rivals(RULES, verify), after(START, HIGH)
    rivals.base = START
    line = digest("another line")
    asked = list[object]()
    for turn in range(6):
        names = {PeerId(f"0{turn}-{n}"): (line, 9) for n in range(50)}
        asked += rivals.ask({**names, C: (line, 9)}, state, set(), 10.0 * turn)
    assert [each == AskEntries(C, 1) for each in asked] == [True, False] * 3


def test_memory_of_rivals_is_bounded() -> None:
    rivals, state = Rivals(RULES, verify), after(START, LOW)
    rivals.base = START
    there: tuple[RunId | Digest, int] = (digest("another line"), 0)
    names = [PeerId(f"x{n}") for n in range(PEERS_MAX + 1)]
    for n, name in enumerate(names):
        rivals.ask({name: there}, state, set(), 10.0 * n)
        rivals.receive_entries(0, [], state, {1: LOW}.get, 10.0 * n)
    later, unasked = 10.0 * len(names), PeerId("z")
    assert rivals.ask({names[1]: there, names[-1]: there}, state, set(), later) == []
    places = dict.fromkeys((names[0], unasked), there)
    assert rivals.ask(places, state, set(), later) == [AskEntries(names[0], 1)], (
        "the oldest remembered peer must be forgotten"
    )


def test_b5_a_long_chain_is_asked_for_page_by_page() -> None:
    rivals, effects = shown(LOW, HIGH, height=3)
    assert (rivals.winner, effects) == (None, [AskEntries(C, 2)])
    state = after(START, HIGH)
    roster = opened(state)
    reducing = after(state, roster)
    commit = certify(RULES, reducing, Commit(0, 0, digest("u")))
    page = [roster, commit]
    assert rivals.expects(C, page)
    rivals.receive_entries(3, page, after(START, LOW), {1: LOW}.get, 0.2)
    assert rivals.winner == Winner(0, (HIGH, *page), after(reducing, commit))


def test_b7_returning_peer_is_asked_for_other_chains() -> None:
    """Seed 1097 of the simulation profile `islands` found this case. The chain that outranks ours
    has ended and does not grow, so only the return of its peer can trigger the request.
    """
    some = group("a", signed(START, Branch(0, (A,))))
    assert some.send_events("a", PeerHeight(C, 1, RULES.run)) == [AskEntries(C, 1)]
    some.now = 10.0
    assert some.send_events("a", PeerDown(C), Tick(), PeerHeight(C, 1, RULES.run)) == []
    some.now = 40.0
    assert some.send_events("a", PeerUp(C)) == [AskEntries(C, 1)]


def test_b7_silent_peers_do_not_block_requests_to_others() -> None:
    rivals, state = Rivals(RULES, verify), after(START, HIGH)
    rivals.base = START
    there: tuple[RunId | Digest, int] = (LOW.entry.digest, 1)
    places = dict.fromkeys((B, C, D, E), there)
    asked = [rivals.ask(places, state, set(), 2.0 * n) for n in range(8)]
    assert asked == [[AskEntries(peer, 1)] for peer in (B, C, D, E, B, C, D, E)]
