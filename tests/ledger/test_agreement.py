"""Scenarios with a few ledgers: which messages they send, how they react to failures, and which
values they agree on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Commit, Entry, Roster, Skip, Vote
from p2ptrain.ledger.messages.effects import Announce, Decided, FetchUpdate, Note, Persist, Send
from p2ptrain.ledger.messages.events import Event, Received, Tick
from p2ptrain.ledger.messages.messages import (
    Accept,
    Accepted,
    Outcome,
    Prepare,
    Promise,
    PromiseProof,
    Propose,
    Refused,
)
from p2ptrain.ledger.messages.peer_reports import (
    Joining,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
)
from p2ptrain.ledger.paxos.electorate import PROPOSALS_KEPT, proof_of
from p2ptrain.simulation.disk import signer, verify
from p2ptrain.testing.ledgers import (
    LedgerGroup,
    Unicast,
    accepted,
    digest,
    peers,
    proposal_of,
    small_rules,
)

A, B, C, D, E = peers("a b c d e")
U = digest("u")


def group(founders: str = "a b c", **rules: Any) -> LedgerGroup:
    return LedgerGroup(small_rules(founders, **rules))


def reducing(founders: str = "a b c", **rules: int) -> LedgerGroup:
    """Return a group that has agreed on its first roster: all peers take part in the reduce of step
    0.
    """
    some = group(founders, **rules)
    some.ready(founders)
    some.deliver()
    assert set(some.heights().values()) == {1}
    return some


def kinds(messages: list[Unicast]) -> list[str]:
    return [f"{it.sender}→{it.receiver} {type(it.message).__name__}" for it in messages]


# ── without faults ───────────────────────────────────────────────────────────────────────────────


def test_step_takes_two_entries_of_one_round_trip_each() -> None:
    some = group()
    some.ready("a b c")
    proposals, some.mail = some.mail, []
    assert kinds(proposals) == ["b→a Propose", "b→c Propose"]
    for unicast in proposals:
        some.send_events(unicast.receiver, Received(unicast.sender, unicast.message))
    assert kinds(some.mail) == ["a→b Accept", "c→b Accept"]
    some.deliver()
    assert some.heights() == {"a": 1, "b": 1, "c": 1}
    some.hold_update(U, "a b c")
    some.made(U, "a b c")
    some.deliver()
    assert {(it.state.height, it.state.step) for it in some.ledgers.values()} == {(2, 1)}
    assert len({it.state.head for it in some.ledgers.values()}) == 1


def test_proposers_take_turns() -> None:
    some = group(outer_steps=3)
    turns = [some.electorate("a").proposer(round) for round in range(4)]
    assert turns == [B, C, A, B]
    some.ready("a b c")
    some.deliver()
    assert some.electorate("a").proposer(0) == C


def test_single_founder_decides_without_messages() -> None:
    some = group("a")
    some.ready("a")
    some.hold_update(U, "a")
    some.send_events("a", ReduceDone(A, 0, 0, U))
    assert (some["a"].state.height, some["a"].state.step, some.mail) == (2, 1, [])


def test_votes_and_entries_are_durable_before_they_are_sent() -> None:
    some = group()
    log = []
    for peer in (A, B, C):
        state = some[peer].state
        for receiver in (A, B, C):
            log.append(some.send_events(receiver, *_ready(peer, state.step)))
    effects = [effect for effects in log for effect in effects]
    proposal = next(i for i, it in enumerate(effects) if isinstance(it, Send))
    assert isinstance(effects[proposal - 1], Persist)
    while some.mail:
        unicast = some.mail.pop(0)
        effects = some.send_events(unicast.receiver, Received(unicast.sender, unicast.message))
        shapes = [type(effect) for effect in effects]
        if Decided in shapes and Announce in shapes:
            assert shapes.index(Decided) < shapes.index(Announce)
        if any(isinstance(it, Send) and isinstance(it.message, Accept) for it in effects):
            assert shapes[:2] == [Persist, Send]


def _ready(peer: PeerId, step: int) -> list[Event]:
    return [Ready(peer, step, 200, 2)]


def test_idle_ledger_sends_nothing_and_sets_no_timer() -> None:
    some = group()
    some.send_to_all(Tick())
    assert some.mail == []
    assert all(ledger.next_deadline() is None for ledger in some.ledgers.values())


def test_nothing_happens_after_the_end_of_the_run() -> None:
    some = reducing(outer_steps=1)
    some.hold_update(U, "a b c")
    some.made(U, "a b c")
    some.deliver()
    assert {ledger.state.phase for ledger in some.ledgers.values()} == {Phase.ENDED}
    some.send_to_all(Joining(D), ReduceFailed(A, 0, 0), PeerDown(B))
    some.wait(30)
    assert set(some.heights().values()) == {2}


# ── messages are lost ────────────────────────────────────────────────────────────────────────────


def test_lost_messages_are_sent_again() -> None:
    some = group()
    some.ready("a b c")
    some.deliver(lambda unicast: False)
    some.wait(0.6)
    assert some.heights() == {"a": 1, "b": 1, "c": 1}
    assert some["a"].chain[0].certificate.round == 0


def test_voter_that_missed_the_outcome_gets_it_in_the_next_round() -> None:
    some = group()
    some.ready("a b c")
    some.deliver(lambda unicast: not isinstance(unicast.message, Outcome))
    assert some.heights() == {"a": 0, "b": 1, "c": 0}
    some.wait(5)
    assert some.heights() == {"a": 1, "b": 1, "c": 1}


def test_refusal_tells_the_proposer_which_round_was_promised() -> None:
    some = reducing()
    some.send_to_all(PeerDown(C))
    some.send_to_all(ReduceFailed(A, 0, 0), ReduceFailed(B, 0, 0))
    some.deliver(lambda unicast: not isinstance(unicast.message, Accept))
    assert some.round("b") == 1
    some.send_events(
        "b", Received(C, proposal_of(some.rules, 0, Entry(2, some["b"].state.head, Skip(0))))
    )
    assert kinds(some.mail) == ["b→c Refused"]
    assert isinstance(some.mail[0].message, Refused)
    assert some.mail[0].message.promised == 1


# ── proposers fail ───────────────────────────────────────────────────────────────────────────────


def test_proposer_that_is_known_to_be_down_is_skipped_at_once() -> None:
    some = group()
    some.crash("b")
    some.send_to_all(PeerDown(B))
    some.ready("a c")
    some.deliver()
    assert some.heights() == {"a": 1, "c": 1}
    assert some.now == 0.0
    assert some["a"].state.voters == (A, C)
    assert some["a"].chain[0].certificate.round == 1


def test_silent_proposer_delays_the_decision_by_one_round() -> None:
    some = group()
    some.crash("b")
    for peer in (A, C):
        some.send_events(peer, *_ready(A, 0), *_ready(C, 0), *_ready(B, 0))
    some.wait(0.9)
    assert some.heights() == {"a": 0, "c": 0}
    some.wait(0.2)
    assert some.heights() == {"a": 1, "c": 1}


def test_next_proposer_adopts_a_value_that_one_voter_accepted() -> None:
    """The proposal of `b` reaches only `a`; then `b` crashes. `c` leads round 1 and would prefer a
    roster without `b`, but it must propose the roster that `a` has accepted.
    """
    some = group()
    some.ready("a b c")
    some.deliver(lambda unicast: unicast.receiver == A)
    some.crash("b")
    some.send_to_all(PeerDown(B))
    some.deliver()
    chosen = some["c"].chain[0]
    assert chosen.certificate.round == 1
    assert isinstance(chosen.entry.value, Roster)
    assert chosen.entry.value.voters == (A, B, C)


def test_restarted_proposer_of_round_0_repeats_its_proposal() -> None:
    some = group()
    some.ready("a b c")
    first = some.mail[0].message
    some.deliver(lambda unicast: False)
    some.crash("b")
    some.start("b")
    some.send_events("b", PeerDown(C), *_ready(A, 0), *_ready(B, 0))
    assert [unicast.message for unicast in some.mail] == [first, first]
    some.deliver()
    assert some.heights()["a"] == 1


def test_restarted_proposer_does_not_lead_a_later_round_again() -> None:
    some = group()
    some.crash("b")
    some.send_to_all(PeerDown(B))
    some.ready("a c")
    assert "c→a Prepare" in kinds(some.mail)
    some.deliver(lambda unicast: False)
    some.crash("c")
    some.start("c")
    some.send_events("c", PeerDown(B), *_ready(A, 0), *_ready(C, 0))

    assert some.mail == []
    some.wait(10)
    assert some.heights() == {"a": 1, "c": 1}


def test_restarted_voter_keeps_its_promise() -> None:
    some = group()
    some.ready("a b c")
    proposal = some.mail[0]
    some.mail = []
    some.send_events("a", Received(C, Prepare(1, 1)))
    some.crash("a")
    some.start("a")
    effects = some.send_events("a", *_ready(A, 0), Received(B, proposal.message))
    assert not any(isinstance(it, Send) and isinstance(it.message, Accept) for it in effects)
    assert some.acceptor("a").promised == 1


def test_peers_continue_from_disk_after_all_of_them_crashed() -> None:
    some = reducing()
    heads = {ledger.state.head for ledger in some.ledgers.values()}
    for name in "abc":
        some.crash(name)
    for name in "abc":
        some.start(name)
    assert {ledger.state.head for ledger in some.ledgers.values()} == heads
    some.send_to_all(*[ReduceFailed(peer, 0, 0) for peer in (A, B, C)])
    some.ready("a b c")
    some.deliver()
    assert {(it.state.height, it.state.attempt) for it in some.ledgers.values()} == {(2, 2)}


# ── quorums ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("founders", "alive", "decides"),
    [
        ("a b", "a", True),
        ("a b", "b", False),
        ("a b c", "b", False),
        ("a b c", "b c", True),
        ("a b c d", "a c", True),
        ("a b c d", "c d", False),
        ("a b c d", "b c d", True),
        ("a b c d e", "c d", False),
        ("a b c d e", "c d e", True),
    ],
)
def test_majority_or_half_with_the_first_ranked_voter_decides(
    founders: str, alive: str, decides: bool
) -> None:
    some = group(founders)
    for peer in set(peers(founders)) - set(peers(alive)):
        some.crash(peer)
        some.send_to_all(PeerDown(peer))
    some.ready(alive)
    some.wait(20)
    assert set(some.heights().values()) == {1 if decides else 0}


def test_rounds_do_not_advance_without_a_quorum() -> None:
    some = group()
    some.send_events("a", PeerDown(B), PeerDown(C), *_ready(A, 0), *_ready(B, 0))
    some.wait(100, lambda unicast: False)
    assert some.round("a") == 0
    some.send_events("a", PeerUp(B))
    some.ready("a b c")
    some.wait(2)
    assert set(some.heights().values()) == {1}


def test_two_halves_never_both_decide() -> None:
    some = group("a b c d")
    left, right = {A, B}, {C, D}
    for peer in left:
        some.send_events(peer, PeerDown(C), PeerDown(D), *_ready(A, 0), *_ready(B, 0))
    for peer in right:
        some.send_events(peer, PeerDown(A), PeerDown(B), *_ready(C, 0), *_ready(D, 0))
    some.wait(30, lambda unicast: (unicast.sender in left) == (unicast.receiver in left))
    assert some.heights() == {"a": 1, "b": 1, "c": 0, "d": 0}
    assert some["a"].state.voters == (A, B)


# ── commits ──────────────────────────────────────────────────────────────────────────────────────


def test_voter_without_the_update_fetches_it_and_then_votes() -> None:
    """`b`, `c` and `e` have made the update, but `b` has lost it. Only `c` and `e` hold it, so one
    more voter must fetch it before three of the five voters can accept the commit.
    """
    some = reducing("a b c d e")
    some.hold_update(U, "c e")
    some.made(U, "b c e")
    some.deliver()
    assert set(some.heights().values()) == {1}
    asked = dict(some.fetches)
    others = FetchUpdate(U, (B, C, E))
    assert (asked[A].update, asked[A].holders[:3]) == (others.update, others.holders)
    some.hold_update(U, "a")
    some.wait(3)
    assert set(some.heights().values()) == {2}
    assert some["b"].updates[0].update == U


def test_proposer_without_the_update_fetches_it_before_it_proposes() -> None:
    some = reducing()
    some.send_events("c", ReduceDone(A, 0, 0, U), ReduceDone(B, 0, 0, U))
    some.send_events("a", ReduceDone(A, 0, 0, U), ReduceDone(B, 0, 0, U))
    assert (C, FetchUpdate(U, (A, B))) in some.fetches
    assert some.mail == []
    some.hold_update(U, "a b c")
    some.deliver()
    assert set(some.heights().values()) == {2}


def test_fetch_is_repeated_while_the_update_is_needed() -> None:
    some = reducing()
    some.hold_update(U, "c")
    some.made(U, "b c")
    some.wait(3)
    assert len([peer for peer, _ in some.fetches if peer == A]) > 2
    some.hold_update(U, "a b")
    some.wait(3)
    before = len(some.fetches)
    some.wait(30)
    assert len(some.fetches) == before


def test_result_that_cannot_be_fetched_is_abandoned() -> None:
    """`b` and `c` have finished the reduce, but `c` has lost the update, and the others cannot
    fetch it from `b`. After the grace period they open the next attempt. They may do so although
    `b` has accepted its own commit, because a quorum has not accepted it.
    """
    some = reducing()
    some.hold_update(U, "b")
    some.made(U, "b c")
    some.send_to_all(ReduceFailed(A, 0, 0))
    some.wait(9)
    assert {it.state.height for it in some.ledgers.values()} == {1}
    some.wait(30)
    assert {it.state.attempt for it in some.ledgers.values()} == {2}


# ── membership ───────────────────────────────────────────────────────────────────────────────────


def test_killed_participant_is_dropped_without_a_timeout() -> None:
    some = reducing()
    some.crash("c")
    some.send_to_all(PeerDown(C))
    some.send_to_all(ReduceFailed(A, 0, 0, (C,)), ReduceFailed(B, 0, 0, (C,)))
    some.deliver()
    assert some.now == 0.0
    state = some["a"].state
    assert (state.height, state.attempt, state.voters) == (2, 2, (A, B))
    some.hold_update(U, "a b")
    some.made(U, "a b")
    some.deliver()
    assert {it.state.step for it in some.ledgers.values()} == {1}


def test_single_failure_report_leads_to_a_retry_after_a_short_wait() -> None:
    some = reducing()
    some.send_to_all(ReduceFailed(A, 0, 0))
    some.wait(0.4)
    assert set(some.heights().values()) == {1}
    some.wait(0.2)
    assert set(some.heights().values()) == {2}


def test_joiner_is_admitted_then_contributes_then_votes() -> None:
    some = LedgerGroup(small_rules("a b"), names=peers("a b d"))
    some.send_to_all(Joining(D))
    some.deliver()
    assert {it.state.learners for it in some.ledgers.values()} == {(D,)}
    some.ready("a b d")
    some.deliver()
    some.hold_update(U, "a b")
    some.made(U, "a b")
    some.deliver()
    some.ready("a b d")
    some.deliver()
    assert {it.state.voters for it in some.ledgers.values()} == {(A, B, D)}


def test_joiner_cannot_vote_before_a_roster_admits_it() -> None:
    some = LedgerGroup(small_rules("a b c"), names=peers("a b c d"))
    some.send_to_all(Joining(D))
    entry = Entry(1, some["d"].state.head, Skip(0))
    vote = some.electorate("d").vote(0, entry)
    effects = some.send_events("b", Received(D, Accept(vote)))
    assert effects == [Note("ignoring a message of d: it or this node has no vote at this height")]


def test_leaving_voter_votes_for_the_roster_without_it() -> None:
    some = group("a b")
    some.send_to_all(Leaving(A))
    some.deliver()
    assert some.heights() == {"a": 1, "b": 1}
    assert some["a"].state.voters == (B,)
    some.crash("a")
    some.ready("b")
    assert some["b"].state.height == 2


# ── liars ────────────────────────────────────────────────────────────────────────────────────────


def notes_of(some: LedgerGroup, name: str) -> list[str]:
    return [text for peer, text in some.notes if peer == name]


def promised(
    some: LedgerGroup, voter: PeerId, round: int, had: Accepted | None = None
) -> PromiseProof:
    """Return a promise signed by `voter`, which can be any peer."""
    mine = replace(some.electorate("a"), me=voter, sign=signer(voter))
    return proof_of(voter, mine.promise(round, had))


def test_only_the_proposer_of_a_round_can_propose_in_it() -> None:
    some = group()
    entry = Entry(1, some["a"].state.head, Roster(0, 0, (A, B, C), (D,)))
    unsigned = replace(proposal_of(some.rules, 1, entry), round=0)
    some.send_events("a", Received(C, unsigned), Received(C, Prepare(1, 3)))
    assert notes_of(some, "a") == [
        "ignoring a proposal for b's round 0: the proposer's signature is wrong",
        "c prepares round 3: it is a different voter's turn",
    ]


def test_proposal_in_a_later_round_needs_promises_of_a_quorum() -> None:
    some = group()
    entry = Entry(1, some["a"].state.head, Roster(0, 0, (A, B, C), (D,)))
    proof, stranger = promised(some, C, 1), promised(some, D, 1)
    forged = PromiseProof(B, None, None, None, b"x")
    for promises in ((), (proof,), (proof, proof), (proof, stranger), (proof, forged)):
        some.send_events("a", Received(C, proposal_of(some.rules, 1, entry, promises)))
    too_few = "c proposes in round 1: it lacks the promises of a quorum"
    assert notes_of(some, "a") == [
        too_few,
        too_few,
        too_few,
        too_few,
        "c proposes in round 1: the signature of b's promise is wrong",
    ]
    assert some.acceptor("a").accepted is None


@pytest.mark.parametrize(
    ("round", "claims"), [(1, "its own round"), (4, "an earlier one, unsigned")]
)
def test_promise_can_only_claim_an_entry_that_was_proposed(round: int, claims: str) -> None:
    """If a promise could claim any entry, a liar could make every proposer propose the entry that
    the liar prefers.
    """
    some = group()
    entry = Entry(1, some["a"].state.head, Roster(0, 0, (A, B, C), (D,)))
    own = accepted(some.rules, round, entry)
    had = own if claims == "its own round" else Accepted(round - 1, entry, b"no")
    proofs = (promised(some, C, round, had), promised(some, B, round))
    some.send_events("a", Received(C, proposal_of(some.rules, round, entry, proofs)))
    said = (
        f"c proposes in round {round}: c claims to have accepted an entry that was never proposed"
    )
    assert notes_of(some, "a") == [said]
    assert some.acceptor("a").accepted is None


def test_proposer_cannot_ignore_an_accepted_value() -> None:
    some = group()
    some.ready("a b c")
    accepted = some.acceptor("b").accepted
    assert accepted is not None
    one = some.electorate("b").promise(1, accepted)
    two = some.electorate("c").promise(1, None)
    proofs = (proof_of(B, one), proof_of(C, two))
    other = Entry(1, some["a"].state.head, Roster(0, 0, (A, B, C), (D,)))
    some.send_events("a", Received(C, proposal_of(some.rules, 1, other, proofs)))
    assert notes_of(some, "a")[-1].endswith(f"the promises require entry {accepted.entry.digest}")


def test_second_proposal_of_a_round_is_reported() -> None:
    some = group()
    some.ready("a b c")
    some.deliver(lambda unicast: unicast.receiver == A)
    other = Entry(1, some["a"].state.head, Roster(0, 0, (A, B, C), (D,)))
    some.send_events("a", Received(B, proposal_of(some.rules, 0, other)))
    assert notes_of(some, "a")[-1] == "b proposes two different entries in round 0"


def test_proposal_for_another_chain_or_too_far_ahead_is_ignored() -> None:
    some = group()
    elsewhere, far = Entry(1, digest("elsewhere"), Skip(0)), (1 << 40) * 3
    here = Entry(1, some["a"].state.head, Skip(0))
    some.send_events("a", Received(B, proposal_of(some.rules, 0, elsewhere)))
    some.send_events("a", Received(B, proposal_of(some.rules, far, here)))
    assert notes_of(some, "a") == [
        "ignoring a proposal for b's round 0: it is for a different chain",
        f"ignoring a proposal for b's round {far}: the round is far too high",
    ]


def test_electorate_remembers_a_bounded_number_of_proposals() -> None:
    some, checked = group(), list[bytes]()

    def counting(peer: PeerId, message: bytes, signature: bytes) -> bool:
        checked.append(signature)
        return verify(peer, message, signature)

    electorate = replace(some.electorate("a"), verify=counting)
    entries = [Entry(1, some["a"].state.head, Skip(step)) for step in range(PROPOSALS_KEPT + 1)]
    proposals = [proposal_of(some.rules, 0, entry) for entry in entries]
    for it in proposals:
        assert all(electorate.proposed(0, it.entry.digest, it.signature) for _ in range(2))
        assert not electorate.proposed(0, it.entry.digest, b"forged")
    assert electorate.proposed(0, entries[0].digest, proposals[0].signature)
    assert [checked.count(it.signature) for it in proposals] == [2] + [1] * PROPOSALS_KEPT


def test_prepare_of_a_round_too_far_ahead_is_ignored() -> None:
    some = group()
    far = (1 << 40) * 3
    assert some.electorate("a").proposer(far) == B
    some.send_events("a", Received(B, Prepare(1, far)))
    assert notes_of(some, "a") == [f"b prepares round {far}: the round is far too high"]
    assert some.acceptor("a").promised == 0


def test_invalid_votes_are_not_counted() -> None:
    some = group()
    some.ready("a b c")
    some.mail = []
    voters = some.electorate("a")
    accepted = some.acceptor("b").accepted
    assert accepted is not None
    good = voters.vote(0, accepted.entry)
    other = voters.vote(0, Entry(1, some["a"].state.head, Skip(0)))
    bad = [
        Vote(digest("run"), 1, 0, good.entry, A, good.signature),
        Vote(good.line, 1, 0, good.entry, C, good.signature),
        Vote(good.line, 1, 0, good.entry, A, b"forged"),
        other,
    ]
    for vote in bad:
        some.send_events("b", Received(A, Accept(vote)))
    notes = notes_of(some, "b")
    assert notes.pop(3).startswith("a signed contradictory statements at height 1: a vote for ")
    assert notes == [
        "ignoring a vote of a: it is for a different run or line",
        "ignoring a vote of a: its sender is not a voter of this height",
        "ignoring a vote of a: its signature is wrong",
        "ignoring a vote of a: it is not for the proposed entry",
    ]
    assert some["b"].state.height == 0
    some.send_events("b", Received(A, Accept(good)))
    assert some["b"].state.height == 1


def test_invalid_promises_are_not_counted() -> None:
    some = group()
    some.crash("b")
    some.send_to_all(PeerDown(B))
    some.ready("a c")
    some.mail = []
    some.send_events("c", Received(A, Promise(1, 1, None, b"forged")))
    assert notes_of(some, "c") == ["ignoring a promise of a: its signature is wrong"]
    assert some.mail == []
    some.send_events("c", Received(A, some.electorate("a").promise(1, None)))
    assert kinds(some.mail) == ["c→a Propose", "c→b Propose"]


def test_proposal_of_a_round_does_not_change() -> None:
    """A proposer makes one proposal in a round. Later reports must not change it."""
    some = reducing()
    some.send_to_all(PeerDown(B))
    some.send_to_all(ReduceFailed(A, 0, 0), ReduceFailed(C, 0, 0))
    proposals = [it.message for it in some.mail if isinstance(it.message, Propose)]
    some.hold_update(U, "a c")
    some.made(U, "a c")
    some.wait(0.6, lambda unicast: False)
    later = [it.message for it in some.mail if isinstance(it.message, Propose)]
    assert {it.entry for it in proposals} >= {it.entry for it in later if it.round == 0}
    assert not any(isinstance(it.entry.value, Commit) for it in proposals)
