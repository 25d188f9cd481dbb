"""Tests of SPEC.md, rule by rule, mostly as short scripts for tests/ledger/transcript_player."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import apply, genesis, why_invalid
from p2ptrain.ledger.chain.values import Commit, Entry, Participant, Roster, Skip, SnapshotRef
from p2ptrain.ledger.chain.verify import replay
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.base import Checkpoint
from p2ptrain.ledger.history.check_base import check_base
from p2ptrain.ledger.history.pruning import base_at
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.ledger.messages.effects import Effect, Note, Persist, Send
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import Accept, Outcome, Prepare, Refused
from p2ptrain.ledger.messages.peer_reports import (
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    UpdateHeld,
)
from p2ptrain.ledger.paxos.electorate import proof_of
from p2ptrain.ledger.paxos.proposer import Proposer
from p2ptrain.simulation.disk import signer, verify
from p2ptrain.testing.ledgers import (
    LedgerGroup,
    accepted,
    certify,
    digest,
    peers,
    proposal_of,
    small_rules,
)
from tests.exploration.harness.search import Bound, explore
from tests.ledger.transcript_player.blocks import Block, played

A, B, C = peers("a b c")


def told(*commands: str) -> list[str]:
    """Play the commands, check the `expect` commands among them, and return the trace: one line for
    each action of a ledger.
    """
    (block,) = played([Block(1, commands, ())])
    return list(block.expected)


ALL_READY = ("members a b c", "ready a b c")
REDUCING = (*ALL_READY, "deliver")


# ── terms ────────────────────────────────────────────────────────────────────────────────────────


def test_proposer_of_a_round_is_chosen_by_height_plus_round() -> None:
    electorate = LedgerGroup(small_rules()).electorate("a")
    assert [electorate.proposer(round) for round in range(4)] == [B, C, A, B]


def test_the_parent_of_entry_1_is_the_run_id() -> None:
    rules = small_rules()
    assert str(genesis(rules).head) == rules.run


@pytest.mark.parametrize(
    ("voters", "present", "is_quorum"),
    [("a b c", "b c", True), ("a b c d", "a d", True), ("a b c d", "c d", False)],
)
def test_quorum_is_more_than_half_or_half_with_the_first(
    voters: str, present: str, is_quorum: bool
) -> None:
    electorate = LedgerGroup(small_rules(voters)).electorate("a")
    assert electorate.reached(frozenset(peers(present))) is is_quorum


# ── R1 to R6 ─────────────────────────────────────────────────────────────────────────────────────


def test_r1_statement_is_written_before_it_is_sent() -> None:
    lines = told(*ALL_READY, "deliver b->a propose", "down b at c", "deliver c->a prepare")
    for said, written in (("a -> b: accept 1/0", "a writes vote"), ("a -> c: promise", "promise")):
        (place,) = (i for i, line in enumerate(lines) if line.startswith(said))
        assert written in lines[place - 1]


def test_r1_restarted_voter_keeps_its_promise() -> None:
    told(
        *ALL_READY,
        "down b at c",
        "deliver c->a prepare",
        "crash a",
        "restart a",
        "expect a round 1",
    )


def test_r2_prepare_of_a_later_round_is_answered() -> None:
    lines = told(*ALL_READY, "down b at c", "deliver c->a prepare")
    assert lines[-2:] == ["a writes promise 1/1", "a -> c: promise 1/1, free"]


def test_r3_proposal_before_the_promised_round_is_refused() -> None:
    lines = told(*ALL_READY, "down b at c", "deliver c->a prepare", "deliver b->a propose")
    assert lines[-1] == "a -> b: refuse 1/0, promised 1: this node has promised a later round"


def test_r3_proposal_without_its_proposers_vote_is_refused() -> None:
    start = (*ALL_READY, "tamper b->a propose signature")
    lines = told(*start, "deliver b->a propose", "expect a height 0")
    said = "ignoring a proposal for b's round 0: the proposer's signature is wrong"
    assert lines[-1] == f"a notes: {said}"


def test_r5_promise_with_a_claim_that_was_never_proposed_is_ignored() -> None:
    lines = told(
        *(*ALL_READY, "deliver b->a propose", "crash b", "down b", "deliver c->a prepare"),
        *("tamper a->c promise claim", "deliver a->c promise", "expect a,c height 0"),
    )
    said = "ignoring a promise of a: a claims to have accepted an entry that was never proposed"
    assert lines[-1] == f"c notes: {said}"


def test_r6_certificate_without_its_proposers_vote_is_invalid() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver(lambda unicast: not isinstance(unicast.message, Outcome))
    certified = certify(some.rules, some["a"].state, some["b"].chain[0].entry.value)
    others = tuple(pair for pair in certified.certificate.votes if pair[0] != B)
    without = replace(certified, certificate=replace(certified.certificate, votes=others))
    some.send_events("a", Received(C, Outcome(without)))
    assert some["a"].state.height == 0
    assert "it lacks the vote of its proposer, b" in some.notes[-1][1]


def test_r4_proposers_own_vote_is_durable_before_it_proposes() -> None:
    lines = told(*ALL_READY)
    assert [line.split(" e1")[0] for line in lines] == [
        "b writes vote 1/0",
        "b -> a c: propose 1/0",
    ]


def test_r4_restarted_proposer_of_round_0_repeats_its_value() -> None:
    lines = told(*ALL_READY, "drop", "crash b", "restart b", "down c at b", "ready a b at b")
    assert lines[-1] == "b -> a c: propose 1/0 e1"


def test_r4_restarted_proposer_does_not_lead_a_round_it_promised_before() -> None:
    start = ("members a b c", "crash b", "down b", "ready a c", "drop", "crash c", "restart c")
    before = told(*start)
    assert told(*start, "down b at c", "ready a c at c") == before


def test_r5_the_entry_accepted_in_the_highest_round_is_proposed() -> None:
    lines = told(*ALL_READY, "deliver b->a propose", "crash b", "down b", "deliver")
    assert "a -> c: promise 1/1, voted 0 e1" in lines
    assert "c -> a b: propose 1/1 e1, promised by c a" in lines


def test_r5_commit_without_its_update_is_passed_over_if_not_chosen() -> None:
    told(*REDUCING, "says c u0", "done b u0", "fail a", "tick 40", "expect * attempt 2")


def test_r5_entry_that_only_its_proposer_accepted_is_passed_over() -> None:
    """c lies: it votes for its own invention in round 1. Before that, b accepted another entry in
    round 0. Neither a nor b voted for the invention, so it was not chosen.
    """
    some = LedgerGroup(small_rules())
    state = some["a"].state
    honest, invented = (Entry(1, state.head, Skip(step)) for step in (0, 1))
    claims = {A: None, B: (0, honest), C: (1, invented)}
    proposer = Proposer(some.electorate("a"), 2)
    for voter, claim in claims.items():
        shown = None if claim is None else accepted(some.rules, *claim)
        proposer.count_promise(voter, some.electorate(voter).promise(2, shown))
    entry, promises = proposer.choice(lambda entry, _: entry == invented)
    assert (entry, [proof.voter for proof in promises]) == (honest, [A, B])
    entry, promises = proposer.choice(lambda entry, _: False)
    assert (entry, [proof.voter for proof in promises]) == (invented, [A, B, C])
    entry, promises = proposer.choice(lambda entry, _: True)
    assert (entry, [proof.voter for proof in promises]) == (honest, [A, B]), (
        "b and c may have chosen it, since c did not show its vote of round 0"
    )


ROTTEN = (
    *(*REDUCING, "snapshot a b c 0 rotten at c", "snapshot a b 0 good at a b"),
    *("done a b c u0", "deliver"),
)
"""Commands of a story in which `c` lies. It proposes and accepts a Commit with a snapshot that `a`
and `b` know to be wrong.
"""


def test_r5_voter_that_disagrees_asks_all_live_peers_first() -> None:
    lines = told(
        *(*ROTTEN, "down c at a", "drop a->b prepare", "deliver a->c prepare"),
        *("deliver c->a promise", "expect a height 1", "tick 1"),
        "expect * entry 2 commit 0.0 u0, snapshot 0=good",
    )
    assert "a notes: no vote yet: this node's snapshot of step 0 is good" in lines


def test_r5_voter_must_accept_a_value_that_may_be_chosen() -> None:
    told(
        *(*ROTTEN, "crash b", "down b at a c", "tick 3"),
        "expect a,c entry 2 commit 0.0 u0, snapshot 0=rotten",
    )


@pytest.mark.parametrize(
    ("round", "after_s", "accepts"), [(1, 0, False), (4, 0, False), (4, 9, False), (4, 10, True)]
)
def test_r5_doubtful_value_that_a_voter_contradicts_is_refused_for_a_time(
    round: int, after_s: int, accepts: bool
) -> None:
    """The refusal lasts for 10 s, whichever round the proposal names. Without this limit, a voter
    that is up but never sends its promise would block the others for ever.
    """
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    some.hold_update(digest("u"), "a b c")
    some.send_events("b", SnapshotTaken(B, 0, digest("good")))
    state = some["b"].state
    rotten = Commit(0, 0, digest("u"), SnapshotRef(0, digest("rotten")), state.digest)
    entry = Entry(2, state.head, rotten)
    claim = accepted(some.rules, 0, entry)
    promises = (
        proof_of(A, some.electorate("a").promise(round, None)),
        proof_of(C, some.electorate("c").promise(round, claim)),
    )
    proposal = proposal_of(some.rules, round, entry, promises)
    some.send_events("b", *(ReduceDone(peer, 0, 0, digest("u")) for peer in (A, C)))
    some.now += after_s
    effects = some.send_events("b", Received(A, proposal))
    answers = [effect.message for effect in effects if isinstance(effect, Send)]
    assert [type(answer) for answer in answers] == [Accept if accepts else Refused]


def test_r6_certificate_consists_of_the_votes_of_a_quorum() -> None:
    told(*ALL_READY, "deliver b->a propose", "deliver a->b accept", "expect b votes 1 a b")


def test_r6_entry_is_appended_before_messages_of_later_heights() -> None:
    lines = told("members a b", "leave a", "ready b", "deliver")
    assert lines.index("b appends e1") < lines.index("b -> all: outcome e1 by a b")


# ── proposing and accepting ──────────────────────────────────────────────────────────────────────


def test_commit_is_accepted_only_by_voters_that_hold_its_update() -> None:
    lines = told(
        *REDUCING, "says b u0", "done c u0", "deliver", "expect * height 1", "holds a u0", "deliver"
    )
    assert lines.index("a fetches u0 from b c") < lines.index("a writes vote 2/0 e2")


def test_forced_entry_is_accepted_although_the_voter_would_refuse_it() -> None:
    """After a restart, peer a has forgotten that it was ready, so it would refuse this roster if
    the roster were not forced.
    """
    told(
        *ALL_READY,
        "deliver b->c propose",
        "crash a b",
        "restart a",
        "down b at a c",
        "tick 5",
        "expect a,c height 1",
    )


# ── S1 to S7 ─────────────────────────────────────────────────────────────────────────────────────


def test_s1_at_most_one_entry_per_height() -> None:
    found = explore(Bound(timeouts=1, crashes=0))
    assert (found.fault, found.finished) == ("", True)


def test_s1_vote_counts_only_for_its_own_line_height_and_entry() -> None:
    start = (*ALL_READY, "deliver b->a propose")
    for part in ("line", "height", "entry", "signature"):
        told(*start, f"tamper a->b accept {part}", "deliver a->b accept", "expect b height 0")


def test_s2_voter_does_not_contradict_itself_after_a_crash() -> None:
    found = explore(Bound(timeouts=0, crashes=1))
    assert (found.fault, found.finished) == ("", True)


def test_s3_commit_needs_a_quorum_that_holds_its_update() -> None:
    made = (*REDUCING, "says a u0", "done c u0")
    told(*made, "tick 9", "expect * height 1")
    told(*made, "holds b u0", "tick 2", "expect * height 2", "expect a votes 2 b c")


def test_s4_and_s5_replay_of_the_chain_gives_the_same_state() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    assert replay(some.rules, some["a"].chain, verify) == some["c"].state
    assert apply(some.rules, genesis(some.rules), some["a"].chain[0].entry) == some["b"].state


def test_s6_block_is_in_one_place_and_is_committed_once() -> None:
    told(
        *("members a b c", "crash c", "down c", "ready a b", "deliver"),
        *("expect a,b returned 4 5", "done a b u0", "deliver"),
        *("expect a,b returned", "expect a,b lease a 4 5", "expect a,b lease b 6 7"),
    )


def test_s7_newcomer_votes_only_after_its_first_update() -> None:
    told(
        *("members a b at d", "join d", "deliver", "ready a b d", "deliver", "expect * voters a b"),
        *("done a b d u0", "deliver", "ready a b d", "deliver", "expect * voters a b d"),
    )


def snapped() -> LedgerGroup:
    """Return a group in which the second entry certifies a snapshot."""
    some = LedgerGroup(small_rules())
    some.send_to_all(*(SnapshotTaken(peer, 0, digest("s")) for peer in (A, B)))
    some.ready("a b c")
    some.deliver()
    some.hold_update(digest("u"), "a b c")
    some.made(digest("u"), "a b c")
    some.deliver()
    return some


def test_s8_snapshot_is_certified_with_the_state_of_its_commit() -> None:
    some = snapped()
    before = replay(some.rules, some["a"].chain[:1], verify)
    commit = some["a"].chain[-1].entry.value
    assert commit == Commit(0, 0, digest("u"), SnapshotRef(0, digest("s")), before.digest)
    another = replace(commit, state=some["a"].state.digest)
    assert "a different state from the one" in why_invalid(some.rules, before, another)


def test_s8_snapshot_needs_a_quorum_that_wrote_it() -> None:
    told(
        *(*REDUCING, "snapshot c 0 rotten", "done a b c u0", "deliver"),
        *("expect * height 2", "expect * entry 2 commit 0.0 u0", "snapshot a b 0 good"),
        *("ready a b c", "deliver", "done a b c u1", "deliver"),
        "expect * entry 4 commit 1.0 u1, snapshot 0=good",
    )


def test_s8_false_snapshot_costs_one_round_and_is_not_certified() -> None:
    told(
        *(*REDUCING, "snapshot a b c 0 rotten at c", "done a b c u0", "deliver"),
        *(
            "expect a notes this node does not know that a quorum has snapshot",
            "expect * height 1",
            "tick 2",
        ),
        *("expect * height 2", "expect * entry 2 commit 0.0 u0"),
    )


def test_s9_base_must_match_the_named_checkpoint() -> None:
    some = snapped()
    base = base_at(some.rules, some["a"].kept, 2)
    assert base is not None
    check_base(some.rules, base, base.checkpoint, verify)
    ledger = Ledger(some.rules, A, signer(A), verify, base=base)
    assert ledger.state == some["a"].state
    with pytest.raises(RemoteProtocolError, match="this base has checkpoint"):
        check_base(some.rules, base, Checkpoint(2, digest("another")), verify)


# ── liars ─────────────────────────────────────────────────────────────────────────────────────────


def test_e1_peer_that_proposes_two_entries_is_accused() -> None:
    start = (*ALL_READY, "tamper b->c propose twin", "deliver b->c propose")
    lines = told(*start, "deliver", "expect * height 1")
    assert "c accuses b" in lines


def test_e2_peer_that_finds_evidence_announces_it() -> None:
    lines = told(*ALL_READY, "tamper b->c propose twin", "deliver")
    (told_all,) = (line for line in lines if line.startswith("c -> all: accusation of b"))
    assert told_all.endswith("a vote for e1' in round 0; and a vote for e1 in round 0")
    assert "a accuses b" in lines


# ── liars, continued ──────────────────────────────────────────────────────────────────────────────

TWO_VOTES_OF_D = (
    "members a b c d",
    "forge c->a accusation by=d",
    "forge c->b accusation by=d",
    "deliver",
)


def test_e2_every_peer_that_sees_both_statements_keeps_them() -> None:
    assert "a accuses d" in told(*TWO_VOTES_OF_D)


def test_e3_accused_peer_is_removed_and_not_readmitted() -> None:
    told(
        *TWO_VOTES_OF_D, "ready a b c d", "tick 3", "expect a,b,c voters a b c", "join d", "tick 3"
    )
    told(*TWO_VOTES_OF_D, "tick 3", "join d", "tick 3", "expect a,b,c learners")


def test_e4_peer_with_a_second_process_follows_without_voting() -> None:
    told("members a b c", "namesake a", "ready a b c", "deliver", "expect * votes 1 b c")
    lines = told("members a b", "namesake b", "crash b", "restart b", "ready a b", "deliver")
    assert any(line.startswith("b writes vote") for line in lines)


# ── liveness ──────────────────────────────────────────────────────────────────────────────────────


def test_next_entry_is_decided_while_a_quorum_is_connected() -> None:
    told("members a b c d e", "crash b c", "ready a d e", "down b c", "tick 1", "expect a height 1")


def test_each_timeout_lengthens_the_rounds_up_to_sixteen_times() -> None:
    """Once a quorum is connected again, the next message that is sent again leads to a decision,
    however long rounds have become.
    """
    story = [*ALL_READY, "partition a | b | c", "tick 0.9"]
    for number in range(18):
        next_s = min(number + 2, 16)
        story += [f"expect * round {number}", "tick 0.2", f"expect * round {number + 1}"]
        story += [f"tick {next_s - 0.2:.1f}"]
    told(*story, "tick 0.2", "heal", "tick 5", "expect * height 1")


LOST_PREPARE = ("members a b c", "crash b", "down b", "ready a c", "drop c->a prepare")
LOST_PROMISE = (*LOST_PREPARE[:-1], "deliver c->a prepare", "drop a->c promise")
LOST_VOTES = (*ALL_READY, "deliver b->a propose", "deliver b->c propose", "drop")
ALONE = ("members a b c", "partition a b | c", "down c at a b", "ready a b", "deliver", "heal")
LOST_QUESTION = (*ALONE, "drop", "heartbeat a", "partition a b | c", "tick 1", "drop", "heal")


@pytest.mark.parametrize(
    ("lost", "hears"),
    [
        ((*ALL_READY, "drop"), "tick 0.6"),
        (LOST_PREPARE, "tick 0.6"),
        (LOST_PROMISE, "tick 0.6"),
        (LOST_VOTES, "tick 0.6"),
        (LOST_QUESTION, "tick 1"),
    ],
    ids=["proposal", "prepare", "promise", "votes", "question"],
)
def test_unanswered_messages_are_sent_again(lost: tuple[str, ...], hears: str) -> None:
    told(*lost, "expect c height 0", hears, "expect c height 1")


def test_fetch_of_a_missing_update_is_repeated() -> None:
    lines = told(*REDUCING, "says a u0", "done b u0", "tick 0.6")
    assert lines.count("c fetches u0 from a b") == 2


def test_rounds_of_proposers_that_are_down_are_skipped_at_once() -> None:
    lines = told("members a b c", "crash b", "down b", "ready a c", "deliver", "expect a height 1")
    assert not any("after" in line for line in lines)


def test_peer_that_has_pruned_says_so_and_a_different_peer_is_asked() -> None:
    lines = told(
        *("members a b c", "crash c", "down c at a b", "ready a b", "deliver"),
        *("snapshot a 0 s", "snapshot b 0 s", "done a b u", "deliver", "prune a 2"),
        *("restart c", "heartbeat a", "heartbeat b", "deliver", "expect c height 2"),
    )
    assert lines.index("a -> c: entries pruned up to 1 of 2") + 1 == lines.index(
        "c asks b for entries from 1"
    )


def test_finished_reduce_is_committed_by_any_holder_of_its_update() -> None:
    told(
        *(*REDUCING, "says c u0", "crash c", "down c", "done b u0", "holds a u0", "tick 1"),
        "expect a,b height 2",
    )


def test_reduce_is_retried_after_the_grace_if_its_update_is_lost() -> None:
    told(
        *("members a b c grace=10", *REDUCING[1:], "says c u0", "done b u0", "fail a"),
        *("tick 9", "expect * height 1", "tick 9"),
        "expect * entry 2 roster 0.1 voters a b c averaging a:200 b:200 c:200",
    )


def test_peer_that_lost_its_work_is_left_out_until_ready_again() -> None:
    told(
        *(*REDUCING, "fail a suspects=a", "fail b c", "deliver"),
        "expect * entry 2 roster 0.1 voters a b c averaging b:200 c:200",
        *("ready a", "fail b c", "deliver"),
        "expect * entry 3 roster 0.2 voters a b c averaging b:200 a:200",
    )


def test_voters_wait_for_a_needed_voter_that_has_the_only_copy() -> None:
    told(
        *("members a b c grace=10", *REDUCING[1:], "crash b", "done c u0", "down b", "fail a"),
        *("tick 100", "expect a,c height 1", "holds a u0", "tick 10", "expect a,c height 2"),
    )


def test_minority_waits_for_a_lost_majority() -> None:
    told("members a b c", "crash b c", "down b c", "ready a", "tick 100", "expect a height 0")


def test_reports_lost_in_a_restart_are_sent_again() -> None:
    """Reports are not stored: a restarted node does not know who is ready until told again."""
    some = LedgerGroup(small_rules("a b"))
    some.ready("a b")
    some.crash("b")
    ledger = some.start("b")
    assert ledger.reports.ready == {}
    some.ready("a b")
    some.deliver()
    assert set(some.heights().values()) == {1}


def test_reports_decide_what_is_proposed_but_not_what_is_valid() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    some.deliver()
    fresh = LedgerGroup(small_rules())
    outcome = some["a"].page(1)
    fresh.send_events(
        "c", Received(A, outcome), UpdateHeld(digest("u")), ReduceDone(B, 7, 0, digest("u"))
    )
    assert fresh["c"].state == some["a"].state


def test_s10_voters_without_the_amendment_decide_a_roster_without_it() -> None:
    """Only `b` has the amendment, so only `b` voted for the roster that names it. Then `b` crashes.
    That roster was not chosen, so the others decide a roster without the amendment.
    """
    told(
        *("members a b c", "amend 1 step=1 at b", "ready a b c", "deliver"),
        *("expect * height 0", "crash b", "down b", "deliver"),
        "expect a,c entry 1 roster 0.0 voters a c averaging a:200 c:200",
        *("restart b", "heartbeat a", "deliver", "tick 2", "expect b terms"),
    )


def test_s11_proposer_cannot_drop_live_voters() -> None:
    """If `b` could drop voters that are up, two rosters would make `b` the run's only voter."""
    some = LedgerGroup(small_rules("a b c d e"))
    b, c, d, e = peers("b c d e")
    rules, state = some.rules, some["a"].state
    entry = Entry(1, state.head, Roster(0, 0, (b, c, d), ()))
    fresh = proposal_of(rules, 0, entry)
    said = "no vote yet: it drops a, but this node considers that peer up"
    for voter in (c, d):
        assert some.send_events(voter, Received(b, fresh)) == [Note(said)]
    electorate = {name: some.electorate(name) for name in (b, c, e)}
    promises = (
        proof_of(b, electorate[b].promise(1, accepted(rules, 0, entry))),
        *(proof_of(name, electorate[name].promise(1, None)) for name in (c, e)),
    )
    assert some.send_events(d, Received(c, proposal_of(rules, 1, entry, promises))) == []


def test_peer_that_ends_rounds_early_leaves_time_for_others() -> None:
    some = LedgerGroup(small_rules())

    def prepares(peer: PeerId, round: int) -> list[type[Effect]]:
        return [type(it) for it in some.send_events("a", Received(peer, Prepare(1, round)))]

    assert prepares(C, 1) == [Persist, Send]
    some.now += 2.9
    assert prepares(C, 4) == [Note]
    assert some.notes[-1][1] == "c prepares round 4: it recently ended another round early"
    assert prepares(B, 3) == [Persist, Send]
    some.now += 0.1
    assert prepares(C, 7) == [Persist, Send]


def test_proposer_leaves_its_round_only_when_a_quorum_is_impossible() -> None:
    some = LedgerGroup(small_rules("a b c d e"))
    some.ready("a b c d e")
    later = {"c": 9, "d": 12, "e": 9}
    rounds = []
    for name, promised in later.items():
        some.send_events(
            "b", Received(PeerId(name), Refused(1, 0, promised, "a later one is promised"))
        )
        rounds.append(some.round("b"))
    assert rounds == [0, 0, 9]


# ── claims ───────────────────────────────────────────────────────────────────────────────────────

CLAIMING = replace(small_rules(), claims=True)


def claimed(peer: PeerId, serial: int, what: str) -> Ready:
    """Return a report of `peer` with a signed claim about the contribution `what`."""
    said = ClaimStatement(0, serial, 200, 2, digest(what), b"")
    signed = replace(said, signature=signer(peer)(said.message(CLAIMING.run, 0)))
    return Ready.of(peer, signed)


def opening(attempt: int, *reports: Ready) -> Roster:
    parts = tuple(Participant(it.peer, it.tokens, it.blocks, it.named) for it in reports)
    return Roster(0, attempt, (A, B, C), (), parts)


def test_s15_roster_digest_covers_the_claims_and_binds_the_participants() -> None:
    first, second, third = claimed(A, 1, "a"), claimed(B, 1, "b"), claimed(B, 2, "b, changed")
    start = genesis(CLAIMING)
    entries = [Entry(1, start.head, opening(0, first, it)) for it in (second, third)]
    assert entries[0].digest != entries[1].digest
    reducing = apply(CLAIMING, start, entries[0])
    said = "b changes its claim, to which an earlier attempt bound it"
    assert why_invalid(CLAIMING, reducing, opening(1, first, second)) == ""
    assert why_invalid(CLAIMING, reducing, opening(1, first, third)) == said
    skipped = apply(CLAIMING, reducing, Entry(2, reducing.head, Skip(0)))
    later = replace(opening(0, first, third), step=1)
    assert why_invalid(CLAIMING, skipped, later) == ""


def test_c2_report_without_a_signed_claim_does_not_count() -> None:
    some = LedgerGroup(CLAIMING)
    report = claimed(B, 1, "b")
    assert report.claim is not None
    unsigned = replace(report, claim=replace(report.claim, signature=b"false"))
    some.send_events("a", unsigned)
    assert some["a"].reports.ready == {}
    some.send_events("a", claimed(B, 2, "b, trained again"), report)
    assert some["a"].reports.ready[B].serial == 2


def test_c3_participant_with_a_newer_claim_sits_out_the_rest_of_the_step() -> None:
    some = LedgerGroup(CLAIMING)
    some.send_to_all(*(claimed(peer, 1, peer) for peer in (A, B, C)))
    some.deliver()
    some.send_to_all(claimed(B, 2, "b, trained again"), ReduceFailed(A, 0, 0, (C,)))
    some.wait(2.0)
    roster = some["a"].state.roster
    assert roster is not None
    assert (roster.attempt, B in roster.peers) == (1, False)


def test_c4_doubtful_voter_shows_the_claim_that_it_knows() -> None:
    some = LedgerGroup(CLAIMING)
    some.send_to_all(claimed(A, 1, "a"), claimed(B, 1, "b"))
    some.send_events("a", newer := claimed(C, 2, "c, trained again"))
    some.send_events("b", claimed(C, 1, "c"))
    assert newer.claim is not None
    some.deliver(lambda unicast: unicast.receiver != C)
    assert some["b"].reports.ready[C] == newer


def test_c5_two_claims_with_one_serial_number_are_evidence() -> None:
    some = LedgerGroup(CLAIMING)
    some.send_events("a", claimed(B, 1, "b"), claimed(B, 1, "another"))
    some.deliver()
    assert [list(some[name].reports.accused) for name in "ac"] == [[B], [B]]
