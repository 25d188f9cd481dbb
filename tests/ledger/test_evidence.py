"""A voter that signs two contradictory statements is found, accused publicly, and removed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.accountability.statement_log import HEIGHTS_KEPT, STATEMENTS_MAX, StatementLog
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Certified, Entry, Roster, Skip, Vote
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages.effects import (
    Accuse,
    Announce,
    Effect,
    Note,
    VoteWithheld,
    VotingStopped,
)
from p2ptrain.ledger.messages.events import Accused, CloneFound, Received
from p2ptrain.ledger.messages.evidence import (
    Evidence,
    Statement,
    check_evidence,
    contradict,
    decode_evidence,
    encode_evidence,
)
from p2ptrain.ledger.messages.messages import (
    Accept,
    Accepted,
    Accusation,
    Entries,
    Outcome,
    Prepare,
    Promise,
    PromiseProof,
    Propose,
)
from p2ptrain.ledger.messages.peer_reports import Joining, PeerDown, ReduceFailed
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.ledger.paxos.acceptor import Acceptor, restored_acceptors
from p2ptrain.ledger.paxos.electorate import forced_by
from p2ptrain.simulation.disk import signature_of, signer, verify
from p2ptrain.testing.ledgers import (
    LedgerGroup,
    Unicast,
    accepted,
    certify,
    digest,
    peers,
    proposal_of,
    small_rules,
)

A, B, C, D = peers("a b c d")
RULES = small_rules()
LINE = RULES.run
X, Y = digest("x"), digest("y")


def vote(round: int, entry: str = "x") -> Statement:
    return Statement(None, round, digest(entry), b"")


def promise(promised: int, round: int | None = None, entry: str | None = None) -> Statement:
    return Statement(promised, round, None if entry is None else digest(entry), b"")


def signed(peer: PeerId, statement: Statement, height: int = 1, rules: Rules = RULES) -> Statement:
    signature = signature_of(peer, statement.message(rules.run, height))
    return Statement(statement.promised, statement.round, statement.entry, signature)


def evidence_against(peer: PeerId, height: int = 1) -> Evidence:
    one, other = (signed(peer, vote(0, entry), height) for entry in "xy")
    return Evidence(RULES.run, height, peer, one, other)


# ── contradictions ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("one", "other", "lie"),
    [
        (vote(0, "x"), vote(0, "y"), True),
        (vote(0, "x"), vote(0, "x"), False),
        (vote(0, "x"), vote(1, "y"), False),
        (promise(2), vote(1, "x"), True),
        (promise(2), vote(2, "x"), False),
        (promise(2, 1, "x"), vote(1, "x"), False),
        (promise(2, 1, "x"), vote(1, "y"), True),
        (promise(3, 1, "x"), vote(0, "y"), False),
        (promise(3, 1, "x"), vote(2, "y"), True),
        (promise(1), promise(2, 0, "x"), True),
        (promise(1), promise(3, 1, "x"), False),
        (promise(5, 3, "x"), promise(7), True),
        (promise(5, 3, "x"), promise(7, 3, "x"), False),
        (promise(5, 3, "x"), promise(7, 4, "y"), True),
        (promise(5, 3, "x"), promise(7, 5, "y"), False),
        (promise(5, 3, "x"), promise(5, 2, "y"), True),
    ],
)
def test_contradictory_pairs_of_statements_are_found(
    one: Statement, other: Statement, lie: bool
) -> None:
    assert contradict(one, other) is contradict(other, one) is lie


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.sampled_from("xyz")), max_size=30)


@given(STEPS, st.sets(st.integers(0, 30)))
def test_honest_voter_never_contradicts_itself(
    steps: list[tuple[bool, int, str]], crashes: set[int]
) -> None:
    """Prepares and proposals arrive in any order, and the voter restarts from its records between
    them.
    """
    entries = {name: Entry(1, digest("p"), Skip(ord(name))) for name in "xyz"}
    acceptor, records, said = Acceptor(LINE, 1), [], []
    for index, (votes, round, name) in enumerate(steps):
        if votes and acceptor.may_accept(round, entries[name]):
            records.append(acceptor.accept(round, entries[name], b""))
            said.append(Statement(None, round, entries[name].digest, b""))
        elif not votes and round > acceptor.promised:
            records.append(acceptor.promise(round))
            last = acceptor.accepted
            unsaid = Statement(round, None, None, b"")
            said.append(unsaid if last is None else promised_after(round, last))
        if index in crashes:
            acceptor = restored_acceptors(records, decided={LINE: 0}).get(
                (LINE, 1), Acceptor(LINE, 1)
            )
        assert all(acceptor.may_have_said(each) for each in said)
    assert not any(contradict(one, other) for one, other in combinations(said, 2))


def promised_after(round: int, last: Accepted) -> Statement:
    return Statement(round, last.round, last.entry.digest, b"")


@pytest.mark.parametrize(
    "foreign",
    [vote(3, "x"), vote(2, "y"), promise(6), promise(4), promise(4, 1, "x"), promise(2, 3, "x")],
)
def test_voter_recognises_statements_it_cannot_have_made(foreign: Statement) -> None:
    entry = Entry(1, digest("p"), Skip(0))
    acceptor = Acceptor(LINE, 1)
    acceptor.accept(2, entry, b"")
    acceptor.promise(5)
    assert not acceptor.may_have_said(foreign)
    assert acceptor.may_have_said(Statement(None, 2, entry.digest, b""))
    assert acceptor.may_have_said(vote(1, "y"))
    assert not Acceptor(LINE, 1).may_have_said(vote(0, "x"))


# ── evidence as a value ──────────────────────────────────────────────────────────────────────────


def test_anybody_can_check_evidence() -> None:
    evidence = evidence_against(B)
    assert check_evidence({LINE}, evidence, verify) == ""
    fault = "it is about another run, or a branch that this node does not know"
    assert check_evidence({digest("other")}, evidence, verify) == fault
    forged = Evidence(RULES.run, 1, C, evidence.one, evidence.other)
    assert check_evidence({LINE}, forged, verify) == "a signature of c is not valid"
    elsewhere = Evidence(RULES.run, 2, B, evidence.one, evidence.other)
    assert check_evidence({LINE}, elsewhere, verify) == "a signature of b is not valid"


def test_evidence_describes_the_contradiction_in_words() -> None:
    said = Evidence(RULES.run, 4, B, promise(3, 1, "x"), promise(5)).words
    assert said == (
        "b signed contradictory statements at height 4: a promise of round 3, which names "
        f"a vote for {X[:8]} in round 1 as the last one; and a promise of round 5, which names no "
        "earlier vote"
    )


def test_statements_that_agree_are_not_evidence() -> None:
    with pytest.raises(ValueError, match="do not contradict each other"):
        Evidence(RULES.run, 1, B, vote(0), vote(1))
    with pytest.raises(ValueError, match="a vote must name an entry"):
        Statement(None, None, None, b"")


def test_evidence_survives_encoding() -> None:
    for evidence in (
        evidence_against(B),
        Evidence(RULES.run, 2, C, promise(5, 3, "x"), promise(7)),
    ):
        assert decode_evidence(encode_evidence(evidence)) == evidence
        assert decode(encode(Accusation(evidence))) == Accusation(evidence)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("statements", [], "statements must have 2 parts"),
        ("statements", [[None, 0, X, ""], [None, 1, X, ""]], "do not contradict each other"),
        ("statements", [[None, 0, X], [None, 0, Y, ""]], "a statement must have 4 parts"),
        ("statements", [[None, None, None, ""], [None, 0, Y, ""]], "a vote must name an entry"),
        ("statements", [[None, 0, "x", ""], [None, 0, Y, ""]], "entry must be a digest"),
        ("statements", [[None, 0, X, "x"], [None, 0, Y, ""]], "signature must be a signature"),
        ("height", 0, "the height of a vote must be at least 1"),
        ("peer", "", "peer must be a peer id"),
        ("line", "x", "line must be a digest"),
        ("surplus", "x", "expected a map with the fields height, line, peer, statements"),
    ],
)
def test_malformed_evidence_is_refused_with_a_reason(field: str, value: object, rule: str) -> None:
    plain = json.loads(encode_evidence(evidence_against(B)))
    with pytest.raises(RemoteProtocolError) as raised:
        decode_evidence(json.dumps({**plain, field: value}).encode())
    assert rule in raised.value.what


# ── the log of statements
# ──────────────────────────────────────────────────────────────────────────────────


def test_signatures_are_checked_only_if_statements_contradict() -> None:
    checked = []

    def counting(peer: PeerId, message: bytes, signature: bytes) -> bool:
        checked.append(peer)
        return verify(peer, message, signature)

    log = StatementLog(LINE, counting)
    for _ in range(3):
        assert log.note(1, B, signed(B, vote(0, "x"))) is None
    assert checked == []
    evidence = log.note(1, B, signed(B, vote(0, "y")))
    assert (evidence, checked) == (evidence_against(B), [B, B])


def test_forged_statements_neither_accuse_nor_hide_a_liar() -> None:
    log = StatementLog(LINE, verify)
    assert log.note(1, B, vote(0, "x")) is None
    assert log.note(1, B, signed(B, vote(0, "y"))) is None
    assert log.note(1, B, Statement(None, 0, X, b"forged")) is None
    assert log.note(1, B, signed(B, vote(0, "x"))) is not None


def signed_by(voters: str, value: Skip | Roster) -> Certified:
    """Return `value` as the first entry, certified by the votes of these voters."""
    whole = certify(RULES, genesis(RULES), value)
    votes = tuple(each for each in whole.certificate.votes if each[0] in peers(voters))
    return replace(whole, certificate=replace(whole.certificate, votes=votes))


def test_only_voters_that_signed_both_entries_are_accused() -> None:
    ours = signed_by("a b", Roster(0, 0, (A, B, C), ()))
    theirs = signed_by("b c", Roster(0, 0, (B, C), ()))
    found = StatementLog(LINE, verify).compare(ours, theirs)
    assert [each.peer for each in found] == [B]


def test_log_keeps_a_bounded_number_of_statements_of_a_voter() -> None:
    log = StatementLog(LINE, verify)
    for round in range(3 * STATEMENTS_MAX):
        log.note(1, B, signed(B, vote(round)))
    first, last = 2 * STATEMENTS_MAX, 3 * STATEMENTS_MAX - 1
    found = [log.note(1, B, signed(B, vote(round, "y"))) for round in (last, first - 1)]
    assert [each is not None for each in found] == [True, False]


def test_log_keeps_statements_only_about_the_latest_heights() -> None:
    log, heights = StatementLog(LINE, verify), range(1, 10)
    for height in heights:
        log.note(height, B, signed(B, vote(0), height))
        log.entered(height)
    known = [h for h in heights if log.note(h, B, signed(B, vote(0, "y"), h)) is not None]
    assert known == list(heights)[-HEIGHTS_KEPT:]


# ── among ledgers ────────────────────────────────────────────────────────────────────────────────


def voted(peer: PeerId, name: str, round: int = 0) -> Accept:
    statement = signed(peer, vote(round, name))
    return Accept(Vote(RULES.run, 1, round, digest(name), peer, statement.signature))


def accusations(effects: list[Effect]) -> list[PeerId]:
    return [effect.evidence.peer for effect in effects if isinstance(effect, Accuse)]


def test_peer_that_votes_twice_in_a_round_is_accused_publicly() -> None:
    some = LedgerGroup(RULES)
    effects = some.send_events("b", Received(C, voted(C, "x")), Received(C, voted(C, "y")))
    assert [type(each) for each in effects[:3]] == [Accuse, Note, Announce]
    assert accusations(effects) == [C]
    some.deliver()
    assert all(list(some[name].reports.accused) == [C] for name in "ab")


def test_peer_that_breaks_its_promise_is_accused() -> None:
    some = LedgerGroup(RULES)
    said = signed(C, promise(2))
    some.send_events("a", Received(C, Promise(1, 2, None, said.signature)))
    effects = some.send_events("a", Received(C, voted(C, "x", 1)))
    assert accusations(effects) == [C]


def test_promises_inside_a_proposal_are_recorded_too() -> None:
    some = LedgerGroup(RULES)
    entry = Entry(1, some["a"].state.head, Skip(0))
    own = some.electorate("b").promise(1, accepted(RULES, 0, entry))
    some.send_events("a", Received(B, own))
    other = signed(B, promise(4))
    proposal = proposal_of(RULES, 4, entry, (PromiseProof(B, None, None, None, other.signature),))
    assert accusations(some.send_events("a", Received(C, proposal))) == [B]


def test_late_votes_are_compared_with_the_certificate() -> None:
    some = LedgerGroup(RULES)
    some.ready("a b c")
    some.deliver()
    assert some.heights() == {"a": 1, "b": 1, "c": 1}
    assert accusations(some.send_events("b", Received(A, voted(A, "x")))) == [A]


def test_peer_that_is_not_a_member_is_not_accused() -> None:
    some = LedgerGroup(RULES)
    assert some.send_events("a", Accused(evidence_against(D))) == []
    some.send_events("a", Received(D, voted(D, "x")), Received(D, voted(D, "y")))
    assert some["a"].reports.accused == {}


def test_false_evidence_is_reported_but_not_used() -> None:
    some = LedgerGroup(RULES)
    one, other = vote(0, "x"), vote(0, "y")
    effects = some.send_events("a", Received(B, Accusation(Evidence(RULES.run, 1, C, one, other))))
    assert accusations(effects) == []
    assert some.notes[-1][1] == "evidence against c proves nothing: a signature of c is not valid"


def test_accused_peer_is_removed_and_not_readmitted() -> None:
    some = LedgerGroup(RULES)
    some.send_to_all(Accused(evidence_against(C)))
    some.deliver()
    some.wait(5)
    assert some["a"].state.members == (A, B)
    some.send_to_all(Joining(C))
    some.wait(5)
    assert some["a"].state.members == (A, B)


def test_voter_that_refuses_a_roster_sends_its_evidence() -> None:
    """Only `a` has the evidence against `c`. When `b` proposes a roster with `c`, `a` refuses and
    sends `b` the evidence. That roster may still be decided, but the next one excludes `c`.
    """
    some = LedgerGroup(RULES)
    some.send_events("a", Accused(evidence_against(C)))
    some.ready("a b c")
    said: list[Unicast] = []

    def overhear(unicast: Unicast) -> bool:
        said.append(unicast)
        return unicast.receiver != C

    some.deliver(overhear)
    assert Unicast(A, B, Accusation(evidence_against(C))) in said
    some.wait(10, lambda unicast: C not in (unicast.sender, unicast.receiver))
    for peer in (A, B):
        some.send_to_all(ReduceFailed(peer, 0, 0))
    some.wait(10)
    assert some["b"].state.members == some["a"].state.members == (A, B)


def test_accused_peer_does_not_take_part_in_the_next_attempt() -> None:
    some = LedgerGroup(RULES)
    some.ready("a b c")
    some.deliver()
    some.send_to_all(Accused(evidence_against(C)))
    some.send_to_all(*(ReduceFailed(peer, 0, 0) for peer in (A, B, C)))
    some.wait(5)
    roster = some["a"].state.roster
    assert roster is not None
    assert (roster.voters, roster.peers) == ((A, B), (A, B))


def test_evidence_is_stored_only_once_until_a_restart() -> None:
    some = LedgerGroup(RULES)
    evidence = evidence_against(C)
    assert some.send_events("a", Accused(evidence))[0] == Accuse(evidence)
    assert some.send_events("a", Accused(evidence)) == []
    some.start("a")
    assert some.send_events("a", Accused(evidence))[0] == Accuse(evidence)


# ── two processes, one identity ──────────────────────────────────────────────────────────────────


def in_use(effects: list[Effect]) -> list[str]:
    return [effect.what for effect in effects if isinstance(effect, VotingStopped)]


def test_message_in_this_nodes_name_reveals_a_second_process() -> None:
    some = LedgerGroup(RULES)
    effects = some.send_events("a", Received(A, Prepare(1, 2)))
    assert in_use(effects) == ["another process sent a Prepare as a"]
    assert in_use(some.send_events("a", Received(A, Prepare(1, 2)))) == []


def withheld(effects: list[Effect]) -> list[VoteWithheld]:
    return [effect for effect in effects if isinstance(effect, VoteWithheld)]


def test_votes_in_a_certificate_do_not_silence_a_voter_that_lost_its_disk() -> None:
    """A member sends `c` the entries that `c` voted for: one as a page, one as a new decision."""
    some = LedgerGroup(RULES)
    for joiner in (D, PeerId("e")):
        some.send_to_all(Joining(joiner))
        some.deliver()
    history = [certify(RULES, genesis(RULES), some["a"].chain[0].entry.value), *some["a"].chain[1:]]
    assert len(history) == 2
    fresh = Ledger(RULES, C, signer(C), verify)
    page = fresh.handle(Received(A, Entries(1, tuple(history[:1]))), 0.0)
    live = fresh.handle(Received(A, Outcome(history[1])), 0.0)
    assert fresh.state.height == 2
    assert (in_use([*page, *live]), withheld([*page, *live])) == ([], [])


def test_voter_does_not_vote_at_a_height_for_which_it_lost_its_promise() -> None:
    """`c` shows `a` a promise that `a` made before it lost its disk. However often `c` shows it,
    `a` does not vote at that height. It votes again at the next height.
    """
    some = LedgerGroup(RULES)
    old = signed(A, promise(7))
    entry = Entry(1, some["a"].state.head, Skip(0))
    proofs = (PromiseProof(A, None, None, None, old.signature),)
    shown = Received(C, proposal_of(RULES, 7, entry, proofs))
    effects = [*some.send_events("a", shown), *some.send_events("a", shown)]
    assert withheld(effects) == [VoteWithheld(1, "a promise of a is not in its records")]
    assert in_use(effects) == []
    some.ready("a b c")
    assert all(unicast.sender != A for unicast in some.mail)
    some.wait(10)
    assert some["a"].state.height == some["b"].state.height == 1
    some.crash("b")
    some.send_to_all(PeerDown(B))
    some.hold_update(digest("u"), "a c")
    some.made(digest("u"), "a c")
    some.deliver()
    assert some["a"].state.height == some["c"].state.height == 2


def test_forged_statement_does_not_keep_a_voter_from_voting() -> None:
    some = LedgerGroup(RULES)
    proofs = (PromiseProof(A, None, None, None, b"forged"),)
    entry = Entry(1, some["a"].state.head, Skip(0))
    assert withheld(some.send_events("a", Received(C, proposal_of(RULES, 7, entry, proofs)))) == []


def test_restarted_voter_recognises_its_own_votes() -> None:
    some = LedgerGroup(RULES)
    some.ready("a b c")
    some.deliver(lambda unicast: not isinstance(unicast.message, Outcome))
    some.start("a")
    effects = some.send_events("a", Received(B, Outcome(some["b"].chain[0])))
    assert A in some["b"].chain[0].certificate.voters
    assert in_use(effects) == []


def test_accused_peer_can_vote_for_the_roster_without_it() -> None:
    """The others may need the vote of the accused peer. Letting it vote does no harm, since
    certificates count its votes until a roster removes it.
    """
    some = LedgerGroup(small_rules("a b"))
    effects = some.send_events("a", Accused(evidence_against(B)))
    assert (accusations(effects), in_use(effects)) == ([B], [])
    some.send_events("b", Accused(evidence_against(B)))
    some.wait(5)
    assert some["a"].state.members == some["b"].state.members == (A,)


# ── two entries in one round ─────────────────────────────────────────────────────────────────────


def proof(voter: PeerId, round: int | None, entry: str) -> PromiseProof:
    named = None if round is None else digest(entry)
    return PromiseProof(voter, round, named, None if round is None else b"", b"")


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_entry_that_more_voters_accepted_in_a_round_is_forced(
    order: tuple[int, ...],
) -> None:
    proofs = (proof(A, 1, "x"), proof(B, 1, "y"), proof(C, 1, "x"))
    assert forced_by([proofs[index] for index in order]) == X
    assert forced_by([*(proofs[index] for index in order), proof(D, 2, "z")]) == digest("z")
    assert forced_by([proof(D, None, "")]) is None


def test_double_proposal_cannot_fork_a_two_thirds_quorum() -> None:
    """`b` asks `a` and `c` to accept one entry, and `d` to accept a different one. The first entry
    is chosen, but no peer learns that. Every later proposer, even `d`, must propose the first one.
    """
    some = LedgerGroup(small_rules("a b c d", quorum="two-thirds"))
    some.ready("a b c d")
    own = some.acceptor("b").accepted
    assert own is not None
    first = own.entry
    assert isinstance(first.value, Roster)
    parts = first.value.participants
    twin = Entry(1, first.parent, replace(first.value, participants=(*parts[1:], parts[0])))
    some.mail = []
    some.crash("b")
    some.send_events("a", Received(B, proposal_of(some.rules, 0, first)))
    some.send_events("c", Received(B, proposal_of(some.rules, 0, first)))
    some.send_events("d", Received(B, proposal_of(some.rules, 0, twin)))
    some.mail = []
    some.send_to_all(PeerDown(B))
    some.wait(20, lambda unicast: unicast.sender != C or not leads_round_1(unicast))
    assert [some[name].chain[0].entry for name in "acd"] == [first] * 3
    assert some["a"].chain[0].certificate.round == 2


def leads_round_1(unicast: Unicast) -> bool:
    message = unicast.message
    return isinstance(message, Prepare | Propose) and message.round == 1


def test_voter_told_of_a_second_process_votes_only_after_restart() -> None:
    some = LedgerGroup(RULES)
    told = "b hears two processes of a"
    assert in_use(some.send_events("a", CloneFound(told))) == [told]
    assert in_use(some.send_events("a", CloneFound("c hears two processes of a"))) == []
    some.ready("a b c")
    assert all(unicast.sender != A for unicast in some.mail)
    some.deliver()
    assert some["a"].state.height == some["b"].state.height == 1
    some.start("a")
    some.crash("b")
    some.send_to_all(PeerDown(B))
    some.hold_update(digest("u"), "a c")
    some.made(digest("u"), "a c")
    some.deliver()
    assert some["a"].state.height == 2
