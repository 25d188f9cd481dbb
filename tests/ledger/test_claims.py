"""Participants are bound to signed claims about their contributions (SPEC.md, S15 and C1 to C5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.accountability.accuser import LEARNERS_ACCUSED_MAX
from p2ptrain.ledger.accountability.claim_log import CLAIMS_KEPT, ClaimLog
from p2ptrain.ledger.chain.apply import apply, genesis, why_invalid
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.chain.decode_values import value_from_plain
from p2ptrain.ledger.chain.state import LedgerState, encode_state, plain_state
from p2ptrain.ledger.chain.values import Branch, Commit, Entry, Participant, Roster, Skip
from p2ptrain.ledger.history.decode_state import decode_state
from p2ptrain.ledger.messages.claim_statement import ClaimStatement, claim_message
from p2ptrain.ledger.messages.effects import Accuse, Announce, Note, Send
from p2ptrain.ledger.messages.events import Accused, Received
from p2ptrain.ledger.messages.evidence import (
    Evidence,
    Statement,
    contradict,
    decode_evidence,
    encode_evidence,
)
from p2ptrain.ledger.messages.messages import Accusation, ShowClaim
from p2ptrain.ledger.messages.peer_reports import Ready, ReduceFailed
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.ledger.paxos.height_policy import Answer
from p2ptrain.ledger.policy.accept import may_accept
from p2ptrain.ledger.policy.participants import could_take_part, fits_lease
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.simulation.disk import signature_of, verify
from p2ptrain.testing.ledgers import LedgerGroup, certify, chain_of, digest, peers, small_rules

A, B, C = peers("a b c")
RULES = replace(small_rules(), claims=True)
GENESIS = genesis(RULES)
SOMEBODY = PeerId("somebody")


def stated(
    peer: PeerId, serial: int = 1, step: int = 0, claim: str = "", tokens: int = 200
) -> Ready:
    """Return a report with a signed claim. By default, each serial number has its own claim."""
    named = digest(claim or f"{peer} {serial}")
    said = claim_message(RULES.run, step, serial, tokens, 2, named)
    statement = ClaimStatement(step, serial, tokens, 2, named, signature_of(peer, said))
    return Ready.of(peer, statement)


def part(report: Ready) -> Participant:
    return Participant(report.peer, report.tokens, report.blocks, report.named)


def roster(*reports: Ready, attempt: int = 0) -> Roster:
    return Roster(0, attempt, (A, B, C), (), tuple(map(part, reports)))


ALL = tuple(stated(peer) for peer in (A, B, C))
REDUCING = apply(RULES, GENESIS, Entry(1, GENESIS.head, roster(*ALL)))
BOUND = {peer: report.named for peer, report in zip((A, B, C), ALL, strict=True)}


# ── validity ─────────────────────────────────────────────────────────────────────────────────────


def test_claims_are_valid_only_in_runs_with_claims() -> None:
    plain = tuple(replace(part(report), claim=None) for report in ALL)
    without, rules = Roster(0, 0, (A, B, C), (), plain), small_rules()
    assert why_invalid(RULES, GENESIS, roster(*ALL)) == ""
    assert why_invalid(rules, genesis(rules), without) == ""
    assert why_invalid(RULES, GENESIS, without) == "a has no claim"
    assert why_invalid(rules, genesis(rules), roster(*ALL)) == "a has a claim"


def test_later_attempts_of_a_step_keep_the_claims() -> None:
    newer = stated(B, serial=2)
    changed = "b changes its claim, to which an earlier attempt bound it"
    assert why_invalid(RULES, REDUCING, roster(ALL[0], ALL[1], attempt=1)) == ""
    assert why_invalid(RULES, REDUCING, roster(ALL[0], newer, attempt=1)) == changed


def test_participant_that_sat_out_an_attempt_is_still_bound() -> None:
    entry = Entry(2, REDUCING.head, roster(ALL[0], ALL[2], attempt=1))
    state = apply(RULES, REDUCING, entry)
    assert state.claims == BOUND
    assert why_invalid(RULES, state, roster(ALL[0], ALL[1], attempt=2)) == ""
    assert why_invalid(RULES, state, roster(ALL[0], stated(B, serial=2), attempt=2)) != ""


@pytest.mark.parametrize("value", [Commit(0, 0, digest("u")), Skip(0)])
def test_claims_end_with_the_step(value: Commit | Skip) -> None:
    state = apply(RULES, REDUCING, Entry(2, REDUCING.head, value))
    assert (REDUCING.claims, state.claims) == (BOUND, {})


def test_claims_end_with_the_line() -> None:
    rules = replace(RULES, quorum_loss="branch")
    assert apply(rules, REDUCING, Entry(2, REDUCING.head, Branch(0, (C,)))).claims == {}


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────


def test_values_without_claims_have_the_bytes_of_earlier_versions() -> None:
    rules = small_rules()
    opening = Roster(0, 0, (A, B, C), (), (Participant(A, 200, 2), Participant(B, 100, 1)))
    state = chain_of(rules, [opening])[1]
    assert opening.plain()["participants"] == [["a", 200, 2], ["b", 100, 1]]
    assert "claims" not in plain_state(state)
    assert decode_state(encode_state(state)) == state


def test_rosters_and_states_with_claims_survive_encoding() -> None:
    opening = roster(*ALL)
    assert value_from_plain(opening.plain()) == opening
    assert decode_state(encode_state(REDUCING)) == REDUCING
    assert REDUCING.digest != replace(REDUCING, claims={}).digest


NO_CLAIMS: dict[str, str] = {}


def bent(**fields: object) -> bytes:
    return canonical({**plain_state(REDUCING), **fields})


@pytest.mark.parametrize(
    "data",
    [
        bent(claims=NO_CLAIMS),
        bent(claims={"a": "not a digest"}),
        bent(claims=["a"]),
        bent(claims=BOUND | {B: digest("another")}),
        canonical(plain_state(GENESIS) | {"claims": NO_CLAIMS}),
    ],
)
def test_state_with_wrong_claims_is_not_decoded(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_state(data)


@pytest.mark.parametrize("claim", [None, "x", 7])
def test_participant_with_a_wrong_claim_is_not_decoded(claim: object) -> None:
    opening = {**roster(*ALL).plain(), "participants": [["a", 200, 2, claim]]}
    with pytest.raises(RemoteProtocolError):
        value_from_plain(opening)


def test_message_with_a_claim_survives_encoding() -> None:
    assert ALL[1].claim is not None
    message = ShowClaim(B, ALL[1].claim)
    assert decode(encode(message)) == message


@pytest.mark.parametrize(("field", "wrong"), [(0, -1), (1, 0), (2, 0), (3, None), (4, "x"), (5, 7)])
def test_hostile_statement_is_refused(field: int, wrong: object) -> None:
    assert ALL[1].claim is not None
    parts = ALL[1].claim.plain()
    parts[field] = wrong
    plain = {"kind": "show-claim", "peer": B, "statement": parts}
    with pytest.raises(RemoteProtocolError):
        decode(canonical(plain))


# ── contradictions ───────────────────────────────────────────────────────────────────────────────


def against(one: Ready, other: Ready) -> Evidence:
    assert one.claim is not None
    assert other.claim is not None
    return Evidence(RULES.run, 0, one.peer, one.claim, other.claim)


def test_evidence_about_claims_survives_encoding_and_says_what_happened() -> None:
    evidence = against(stated(B), stated(B, claim="other"))
    assert decode_evidence(encode_evidence(evidence)) == evidence
    assert evidence.words.startswith("b signed contradictory statements about its contributions: ")
    assert "of 200 tokens with number 1 for outer step 0; and claim" in evidence.words


def test_claims_and_votes_do_not_contradict_each_other() -> None:
    vote = Statement(None, 0, digest("e"), b"signed")
    assert ALL[1].claim is not None
    assert not contradict(vote, ALL[1].claim)
    assert not contradict(ALL[1].claim, vote)
    with pytest.raises(ValueError, match="not about a height"):
        Evidence(RULES.run, 3, B, ALL[1].claim, ALL[1].claim)


def heard(some: LedgerGroup, name: PeerId, *reports: Ready) -> list[str]:
    """Send these reports to one ledger. Return what it accuses peers of, and what it notes."""
    effects = [it for report in reports for it in some.send_events(name, report)]
    said = [it.evidence.words for it in effects if isinstance(it, Accuse)]
    return said + [it.text for it in effects if isinstance(it, Note) if it.text.startswith("ignor")]


@pytest.mark.parametrize(
    ("other", "is_lie"),
    [
        (stated(B), False),
        (stated(B, serial=2), False),
        (stated(B, step=1, serial=2), False),
        (stated(B, claim="other"), True),
        (stated(B, tokens=100), True),
        (stated(B, step=1), True),
        (stated(B, step=1, serial=2, claim="b 1"), True),
    ],
)
def test_contradictory_claims_are_evidence(other: Ready, is_lie: bool) -> None:
    some = LedgerGroup(RULES)
    assert bool(heard(some, A, stated(B), other)) is is_lie
    assert (B in some["a"].reports.accused) is is_lie


def test_liar_is_evicted_by_the_next_roster() -> None:
    some = LedgerGroup(RULES)
    some.send_events("a", stated(B), stated(B, claim="other"))
    some.deliver()
    assert [sorted(some[name].reports.accused) for name in "abc"] == [[B], [B], [B]]
    some.send_to_all(stated(A), stated(C))
    some.wait(30)
    assert some["a"].state.voters == (A, C)


def test_report_without_a_valid_claim_does_not_count() -> None:
    some = LedgerGroup(RULES)
    report = stated(B)
    assert report.claim is not None
    unsigned = replace(report, claim=replace(report.claim, signature=b"false"))
    reports = (replace(report, claim=None), unsigned, replace(report, tokens=100))
    assert heard(some, A, *reports) == [
        "ignoring that b is ready: it has no claim",
        "ignoring that b is ready: the signature of its claim is not valid",
        "ignoring that b is ready: its numbers are not those of its claim",
    ]
    assert some["a"].reports.ready == {}


def test_seed_that_does_not_train_is_ready_without_a_claim() -> None:
    some = LedgerGroup(RULES)
    assert heard(some, A, Ready(B, 0, 0, 0)) == []
    assert B in some["a"].reports.ready


def test_old_claims_are_forgotten() -> None:
    log = ClaimLog(RULES.run, verify)
    for serial in range(1, CLAIMS_KEPT + 2):
        said = stated(B, serial).claim
        assert said is not None
        assert log.note(B, said, {B}) is None
    first, last = stated(B, claim="other").claim, stated(B, CLAIMS_KEPT, claim="other").claim
    assert first is not None
    assert last is not None
    assert log.note(B, first, {B}) is None
    assert log.note(B, last, {B}) is not None


def test_evidence_against_learners_is_bounded() -> None:
    names = tuple(PeerId(f"l{number}") for number in range(LEARNERS_ACCUSED_MAX + 1))
    some = LedgerGroup(RULES, (A,))
    entered = certify(RULES, GENESIS, Roster(0, 0, (A, B, C), names))
    some.ledgers[A] = type(some["a"])(
        RULES, A, lambda said: signature_of(A, said), verify, [entered]
    )
    for name in (B, *names, SOMEBODY):
        some.send_events("a", Accused(against(stated(name), stated(name, claim="other"))))
    assert list(some["a"].reports.accused) == [B, *names[1:]]


# ── who takes part ───────────────────────────────────────────────────────────────────────────────


def reports_of(*said: Ready | ReduceFailed, state: LedgerState = GENESIS) -> Reports:
    reports = Reports(A)
    reports.know(RULES, state)
    for event in said:
        reports.note(event)
    return reports


def test_newer_claim_replaces_an_older_one_and_not_vice_versa() -> None:
    newer = stated(B, serial=2)
    for order in ((stated(B), newer), (newer, stated(B))):
        assert reports_of(*order).ready == {B: newer}


def test_participant_with_a_newer_claim_sits_out_the_rest_of_the_step() -> None:
    """It has withdrawn the claim to which it is bound, for example because it lost its work."""
    newer = stated(B, serial=2)
    reports = reports_of(ALL[0], newer, ALL[2], state=REDUCING)
    assert not fits_lease(RULES, REDUCING, newer)
    assert could_take_part(RULES, REDUCING, reports) == {A: part(ALL[0]), C: part(ALL[2])}


def test_participant_that_lost_its_work_returns_with_the_same_claim() -> None:
    lost = ReduceFailed(B, 0, 0, (B,))
    assert set(could_take_part(RULES, REDUCING, reports_of(lost, state=REDUCING))) == {A, C}
    back = reports_of(lost, ALL[1], state=REDUCING)
    assert set(could_take_part(RULES, REDUCING, back)) == {A, B, C}


def answer(
    value: Roster, *said: Ready, forced: bool = False, doubtful: bool = False, late: bool = False
) -> tuple[Answer, tuple[Ready, ...]]:
    heard = RULES, GENESIS, reports_of(*said)
    judged = may_accept(*heard, value, 0.0, forced=forced, doubtful=doubtful, late=late)
    return judged.answer, judged.shows


def test_voter_doubts_a_roster_with_another_claim_and_shows_what_it_knows() -> None:
    misquoted = roster(ALL[0], stated(B, serial=2), ALL[2])
    assert answer(roster(*ALL), *ALL) == (Answer.YES, ())
    assert answer(misquoted, *ALL) == (Answer.LATER, (ALL[1],))
    assert answer(misquoted, ALL[0], ALL[2]) == (Answer.LATER, ())
    assert answer(misquoted, *ALL, late=True) == (Answer.YES, ())
    assert answer(misquoted, *ALL, forced=True) == (Answer.YES, ())
    assert answer(misquoted, *ALL, forced=True, doubtful=True) == (Answer.LATER, (ALL[1],))


def test_voter_refuses_a_roster_with_an_old_claim_of_its_own() -> None:
    mine = stated(A, serial=2)
    assert answer(roster(*ALL), mine, *ALL[1:], late=True) == (Answer.NO, (mine,))


def test_voter_shows_nothing_in_a_run_without_claims() -> None:
    rules = small_rules()
    told = Reports(A)
    told.know(rules, genesis(rules))
    told.note(stated(B))
    opening = Roster(0, 0, (A, B, C), (), (Participant(B, 100, 1),))
    judged = may_accept(rules, genesis(rules), told, opening, 0.0, forced=False)
    assert (judged.answer, judged.shows) == (Answer.LATER, ())


# ── claims that voters show ──────────────────────────────────────────────────────────────────────


def shown(report: Ready) -> Received:
    assert report.claim is not None
    return Received(C, ShowClaim(report.peer, report.claim))


@pytest.mark.parametrize(
    ("known", "told", "kept"),
    [
        ([stated(B)], stated(B, serial=2), stated(B, serial=2)),
        ([stated(B, serial=2)], stated(B), stated(B, serial=2)),
        ([], stated(B), None),
        ([stated(B)], stated(B, step=1, serial=2), stated(B)),
    ],
)
def test_shown_claim_counts_only_if_it_replaces_an_older_one(
    known: list[Ready], told: Ready, kept: Ready | None
) -> None:
    some = LedgerGroup(RULES)
    some.send_events("a", *known, shown(told))
    assert some["a"].reports.ready.get(B) == kept


def test_shown_claim_is_evidence_if_it_contradicts_the_known_one() -> None:
    some = LedgerGroup(RULES)
    some.send_events("a", stated(B))
    effects = some.send_events("a", shown(stated(B, claim="other")))
    evidence = against(stated(B), stated(B, claim="other"))
    assert Accuse(evidence) in effects
    assert Announce(Accusation(evidence)) in effects


def test_claim_shown_to_its_own_peer_or_in_a_run_without_claims_is_ignored() -> None:
    for rules, name in ((RULES, "b"), (small_rules(), "a")):
        some = LedgerGroup(rules)
        some.send_events(name, shown(stated(B)))
        assert some[name].reports.ready == {}


def test_voters_find_a_peer_that_shows_them_different_claims() -> None:
    """c shows different claims to a and to b. b proposes a roster, and a shows b what it knows."""
    some = LedgerGroup(RULES)
    some.send_to_all(stated(A), stated(B))
    some.send_events("a", stated(C))
    some.send_events("b", stated(C, claim="other"))
    some.deliver()
    assert [sorted(some[name].reports.accused) for name in "ab"] == [[C], [C]]


def test_doubtful_voter_sends_the_claim_that_it_knows() -> None:
    some = LedgerGroup(RULES)
    some.send_events("a", stated(A), stated(B), stated(C, serial=2))
    some.send_events("b", stated(A), stated(B), stated(C))
    (proposal,) = (it for it in some.mail if it.receiver == A)
    some.mail = []
    effects = some.send_events("a", Received(B, proposal.message))
    newer = stated(C, serial=2).claim
    assert newer is not None
    assert Send(B, ShowClaim(C, newer)) in effects


def test_group_with_claims_commits_and_binds() -> None:
    some = LedgerGroup(RULES)
    some.send_to_all(*ALL)
    some.deliver()
    assert [some[name].state.claims for name in "abc"] == [BOUND] * 3
    some.hold_update(digest("u"), "a b c")
    some.made(digest("u"), "a b c")
    some.deliver()
    assert some["a"].state.step == 1
    assert some["a"].state.claims == {}
