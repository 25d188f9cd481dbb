"""Nodes propose verdicts and auditors, and doubt handpicked auditors (SPEC.md, A1 to A8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import genesis, why_invalid
from p2ptrain.ledger.chain.findings import (
    AUDITORS_MAX,
    FOUND,
    VERDICT_FINDINGS_MAX,
    Finding,
    Verdict,
)
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, Value
from p2ptrain.ledger.messages.events import Event, Received
from p2ptrain.ledger.messages.messages import ShowFinding
from p2ptrain.ledger.messages.peer_reports import (
    AuditOffer,
    FindingMade,
    PeerDown,
)
from p2ptrain.ledger.paxos.height_policy import Answer
from p2ptrain.ledger.policy.accept import may_accept
from p2ptrain.ledger.policy.auditing import verdict_due, with_auditors
from p2ptrain.ledger.policy.known_findings import GENUINE_MAX, KnownFindings
from p2ptrain.ledger.policy.participants import could_take_part, readiness
from p2ptrain.ledger.policy.policy import reconsider
from p2ptrain.ledger.policy.reports import Reports
from p2ptrain.simulation.disk import verify
from p2ptrain.testing.ledgers import LedgerGroup, digest, peers, small_rules
from tests.ledger.audited import (
    ALL,
    AUDITED,
    RULES,
    A,
    B,
    C,
    D,
    E,
    F,
    acquittal,
    after,
    auditors_of,
    committed,
    conviction,
    finding,
    opening,
    ready,
    verdict,
)

OUT = after(AUDITED, conviction(AUDITED, B))
"""B is excluded because of its claim for outer step 0."""

NOW = 100.0


def reports_of(state: LedgerState, *said: Event, me: PeerId = A) -> Reports:
    """Return the reports of `me`. All peers are up, and offer one core."""
    reports = Reports(me, findings=KnownFindings(verify))
    reports.know(RULES, state)
    for event in (*(AuditOffer(peer, 1) for peer in ALL), *said):
        reports.note(event)  # type: ignore[arg-type]
    return reports


def made(*findings: Finding) -> tuple[FindingMade, ...]:
    return tuple(FindingMade(each) for each in findings)


def due(state: LedgerState, *findings: Finding) -> Value | None:
    wish = verdict_due(state, reports_of(state, *made(*findings)))
    return None if wish is None else wish.value


# ── findings that are known ──────────────────────────────────────────────────────────────────────


def test_finding_is_kept_only_if_it_counts_and_is_signed() -> None:
    one, two, three = auditors_of(AUDITED, B)
    stranger = next(peer for peer in ALL if peer not in (one, two, three, B))
    known = KnownFindings(verify)
    good = finding(AUDITED, one, B)
    assert not known.note(good)  # It does not know the state yet.
    known.follow(AUDITED)
    assert known.note(good)
    assert not known.note(good)
    assert not known.note(finding(AUDITED, stranger, B))
    assert not known.note(finding(AUDITED, two, B, "sound"))
    assert not known.note(replace(finding(AUDITED, two, B), signature=b"forged"))
    assert not known.note(replace(good, found="withheld"))
    assert [*known.by_case.values()] == [{one: good}]
    known.follow(committed(AUDITED))
    assert [*known.by_case.values()] == [{one: good}]
    known.follow(OUT)
    assert known.by_case == {}


def test_without_keys_no_finding_is_genuine() -> None:
    known = KnownFindings()
    known.follow(AUDITED)
    assert not known.note(finding(AUDITED, auditors_of(AUDITED, B)[0], B))


def test_checked_signatures_are_remembered_and_bounded() -> None:
    checked = list[PeerId]()

    def watched(peer: PeerId, message: bytes, signature: bytes) -> bool:
        checked.append(peer)
        return True

    known = KnownFindings(watched)
    said = finding(AUDITED, A, B)
    for number in range(GENUINE_MAX + 1):
        assert known.is_genuine(replace(said, step=number))
    assert known.is_genuine(replace(said, step=GENUINE_MAX))
    assert len(checked) == GENUINE_MAX + 1
    assert known.is_genuine(replace(said, step=0))
    assert len(checked) == GENUINE_MAX + 2


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────


def test_verdict_is_due_with_the_second_finding() -> None:
    one, two, three = (finding(AUDITED, each, B) for each in auditors_of(AUDITED, B))
    assert due(AUDITED) is None
    assert due(AUDITED, one) is None
    assert due(AUDITED, two, one) == verdict(AUDITED, one, two)
    assert due(AUDITED, three, two, one) == verdict(AUDITED, one, two)


def test_one_verdict_judges_several_peers_and_each_only_once() -> None:
    state = committed(AUDITED)
    said = (*conviction(state, B, C).findings, *conviction(state, B, step=1).findings)
    assert due(state, *said) == conviction(state, B, C)


def test_verdict_takes_as_many_peers_as_fit() -> None:
    many = peers(" ".join(f"p{number:02}" for number in range(40)))
    rules = replace(RULES, founders=many)
    start = genesis(rules)
    audited = committed(start, many, auditors=many, rules=rules)
    reports = Reports(A, findings=KnownFindings(verify))
    reports.know(rules, audited)
    for peer in many:
        for each in conviction(audited, peer).findings:
            reports.note(FindingMade(each))
    wish = verdict_due(audited, reports)
    assert wish is not None
    assert isinstance(wish.value, Verdict)
    assert len(wish.value.findings) == VERDICT_FINDINGS_MAX
    assert wish.reason == "auditors judged: 32 excluded from averages, 0 no longer"
    assert why_invalid(rules, audited, wish.value) == ""


def test_judges_end_an_exclusion() -> None:
    said = acquittal(OUT, B, 2)
    wish = verdict_due(OUT, reports_of(OUT, *made(*said.findings)))
    assert wish is not None
    assert wish.value == said
    assert wish.reason == "auditors judged: 0 excluded from averages, 1 no longer"


@st.composite
def mixtures(draw: st.DrawFn) -> list[Finding]:
    """Findings of anybody about anybody: drawn or not, signed or not."""
    pairs = st.tuples(st.sampled_from(ALL), st.sampled_from(ALL), st.sampled_from(FOUND))
    said = []
    for auditor, peer, found in draw(st.lists(pairs, max_size=30)):
        if auditor != peer:
            each = finding(AUDITED, auditor, peer, found)
            said.append(replace(each, signature=b"no") if draw(st.booleans()) else each)
    return said


@settings(max_examples=150, deadline=None)
@given(said=mixtures())
def test_verdict_is_valid_and_excludes_exactly_those_with_two_faults(said: list[Finding]) -> None:
    guilty = set()
    for peer in ALL:
        against = {
            it.auditor
            for it in said
            if it.peer == peer and it.found != "sound" and it.signature != b"no"
        }
        if len(against.intersection(auditors_of(AUDITED, peer))) >= 2:
            guilty.add(peer)
    value = due(AUDITED, *said)
    if value is None:
        assert guilty == set()
        return
    assert why_invalid(RULES, AUDITED, value) == ""
    assert set(after(AUDITED, value).excluded) == guilty


def judged(
    value: Value, *, forced: bool = False, doubtful: bool = False, late: bool = False
) -> Answer:
    heard = RULES, AUDITED, reports_of(AUDITED)
    kind = may_accept(*heard, value, NOW, forced=forced, doubtful=doubtful, late=late)
    return kind.answer


def test_voter_accepts_a_verdict_by_the_chain_and_the_signatures_alone() -> None:
    good = conviction(AUDITED, B)
    forged = Verdict(1, (replace(good.findings[0], signature=b"no"), good.findings[1]))
    for forced in (False, True):
        assert judged(good, forced=forced) is Answer.YES
        assert judged(good, forced=forced, doubtful=True) is Answer.YES
        assert judged(forged, forced=forced) is Answer.NO
        assert judged(forged, forced=forced, late=True) is Answer.NO
        assert judged(Verdict(1, good.findings[:1]), forced=forced) is Answer.NO


# ── who takes part ───────────────────────────────────────────────────────────────────────────────


def names(parts: tuple[Participant, ...]) -> str:
    return " ".join(each.peer for each in parts)


def test_excluded_peers_neither_take_part_nor_are_awaited() -> None:
    have = readiness(RULES, OUT, reports_of(OUT, ready(A, 1), ready(B, 1), ready(C, 1)))
    assert (names(have.contributors), have.awaited) == ("a c", (D, E, F))
    have = readiness(RULES, OUT, reports_of(OUT, *(ready(it, 1) for it in (A, C, D, E, F))))
    assert have.awaited == ()


def test_excluded_peers_take_part_if_the_others_are_too_few() -> None:
    have = readiness(RULES, OUT, reports_of(OUT, ready(A, 1), ready(B, 1)))
    assert (names(have.contributors), have.awaited) == ("a b", (C, D, E, F))


def test_retry_leaves_excluded_peers_out_once_the_others_are_enough() -> None:
    state = after(OUT, opening(OUT, (A, B)))
    few = reports_of(state, ready(A, 1), ready(B, 1))
    assert set(could_take_part(RULES, state, few)) == {A, B}
    more = reports_of(state, ready(A, 1), ready(B, 1), ready(C, 1))
    assert set(could_take_part(RULES, state, more)) == {A, C}


def test_excluded_proposer_cannot_return_by_leaving_others_out() -> None:
    returns = opening(OUT, (A, B))
    said = [ready(peer, 1) for peer in (A, B, C)]
    assert why_invalid(RULES, OUT, returns) == ""
    heard = reports_of(OUT, *said, me=C)
    judged = may_accept(RULES, OUT, heard, returns, NOW, forced=False)
    enough = "it includes b, which is excluded, although enough others are ready"
    assert (judged.answer, judged.reason) == (Answer.LATER, enough)
    alone = reports_of(OUT, *said[:2], *(PeerDown(peer) for peer in (C, D, E, F)), me=A)
    assert may_accept(RULES, OUT, alone, returns, NOW, forced=False).answer is Answer.YES


def test_absence_of_an_excluded_peer_does_not_count_against_it() -> None:
    some = Reports(A)
    state = committed(OUT, (A, C, D, E))
    opened = after(OUT, opening(OUT, (A, C, D, E)))
    some.know(RULES, OUT)
    for event in (ready(B, 1), ready(F, 1)):
        some.note(event)
    some.remember_attempt(OUT, opened, NOW)
    some.remember_attempt(opened, state, NOW)
    assert some.blame.kept_out == {F: 1}
    assert set(some.blame.missed) == {F}


def test_no_tally_counts_reports_while_peers_are_excluded() -> None:
    for state, counts in ((OUT, False), (AUDITED, True)):
        tally = reconsider(RULES, state, reports_of(state, ready(A, 1)), NOW)[1]
        assert (tally is not None) is counts


# ── who audits ───────────────────────────────────────────────────────────────────────────────────


def named_by(state: LedgerState, *said: Event) -> tuple[PeerId, ...] | None:
    value = with_auditors(RULES, state, reports_of(state, *said), Roster(1, 0, ALL, ()))
    assert isinstance(value, Roster)
    return value.auditors


def test_roster_names_auditors_only_if_they_change() -> None:
    start = genesis(RULES)
    assert named_by(AUDITED) is None
    assert named_by(start) == ALL
    assert named_by(start, AuditOffer(B, 0), PeerDown(C)) == (A, D, E, F)
    assert named_by(AUDITED, AuditOffer(B, 0), PeerDown(C)) == (A, D, E, F)
    skip = Commit(1, 0, digest("u"))
    assert with_auditors(RULES, AUDITED, reports_of(AUDITED), skip) == skip
    plain = Roster(0, 0, ALL, ())
    assert with_auditors(small_rules(), start, reports_of(start), plain) == plain


def test_restarted_proposer_keeps_auditors_that_it_has_not_heard() -> None:
    reports = Reports(A)
    reports.know(RULES, AUDITED)
    plain = Roster(1, 0, ALL, ())
    assert with_auditors(RULES, AUDITED, reports, plain) == plain


def test_number_of_auditors_is_limited() -> None:
    many = peers(" ".join(f"p{number:02}" for number in range(AUDITORS_MAX + 3)))
    rules = replace(RULES, founders=many)
    reports = Reports(A)
    reports.know(rules, genesis(rules))
    for peer in many:
        reports.note(AuditOffer(peer, 1))
    value = with_auditors(rules, genesis(rules), reports, Roster(0, 0, many, ()))
    assert isinstance(value, Roster)
    assert value.auditors == many[:AUDITORS_MAX]


def test_offer_counts_once_and_its_table_is_bounded() -> None:
    reports = reports_of(AUDITED)
    assert not reports.note(AuditOffer(B, 1))
    assert reports.note(AuditOffer(B, 2))
    for number in range(3000):
        reports.note(AuditOffer(PeerId(f"x{number}"), 1))
    assert len(reports.offers) == 2048
    assert set(ALL) <= reports.offers.keys()


def answer(auditors: tuple[PeerId, ...], *said: Event, late: bool = False) -> str:
    """Return why a voter doubts a roster with these auditors; empty if it accepts the roster."""
    value = Roster(1, 0, ALL, peers("x"), auditors=auditors)
    reports = reports_of(AUDITED, *said)
    state = replace(AUDITED, auditors=(A, B, C, D))
    judgement = may_accept(RULES, state, reports, value, NOW, forced=False, late=late)
    return "" if judgement.answer is Answer.YES else judgement.reason


@pytest.mark.parametrize(
    ("auditors", "said", "doubt"),
    [
        ((A, B, C, D), (), ""),
        ((A, B, C, D, E), (), ""),
        ((A, B, C), (), "it drops the auditor d, which offers capacity"),
        ((A, B, C), (AuditOffer(D, 0),), ""),
        ((A, B, C), (PeerDown(D),), ""),
        ((A, B, C, D, E), (AuditOffer(E, 0),), "adds the auditor e, which does not offer"),
        ((A, B, C, D, E), (PeerDown(E),), "adds the auditor e, which does not offer"),
        (peers("a b c d x"), (), "adds the auditor x, which does not offer"),
    ],
)
def test_voter_doubts_a_roster_that_chooses_auditors(
    auditors: tuple[PeerId, ...], said: tuple[Event, ...], doubt: str
) -> None:
    assert doubt in answer(auditors, *said)
    assert bool(doubt) is bool(answer(auditors, *said))
    assert answer(auditors, *said, late=True) == ""


# ── whole ledgers ────────────────────────────────────────────────────────────────────────────────


def step_of(some: LedgerGroup, step: int, taking: str = "a b c d e f") -> None:
    """Decide an outer step in which all of `taking` are ready and make one update."""
    some.send_to_all(*(ready(peer, step) for peer in peers(taking)))
    some.deliver()
    update = digest(f"update {step}")
    some.hold_update(update, "a b c d e f")
    some.made(update, taking)
    some.deliver()


def test_a8_ledgers_exclude_a_peer_and_go_on_without_it() -> None:
    some = LedgerGroup(RULES)
    some.send_to_all(*(AuditOffer(peer, 1) for peer in ALL))
    step_of(some, 0)
    state = some["a"].state
    assert (state.step, state.auditors) == (1, ALL)
    one, two, _ = auditors_of(state, B)
    for auditor in (one, two):
        message = ShowFinding(finding(state, auditor, B))
        some.send_to_all(Received(auditor, message))
    some.deliver()
    assert {name: set(some[name].state.excluded) for name in "abf"} == {name: {B} for name in "abf"}
    assert some["a"].state.voters == ALL
    some.send_to_all(*(ready(peer, 1) for peer in ALL))
    some.deliver()
    roster = some["b"].state.roster
    assert roster is not None
    assert sorted(roster.peers) == [A, C, D, E, F]


def test_finding_that_reaches_one_voter_is_proposed_in_its_turn() -> None:
    some = LedgerGroup(RULES)
    some.send_to_all(*(AuditOffer(peer, 1) for peer in ALL))
    step_of(some, 0)
    state = some["a"].state
    some.send_events("c", *made(*conviction(state, B).findings))
    some.wait(20.0)
    assert set(some["f"].state.excluded) == {B}


def test_ledger_ignores_findings_in_a_run_without_audits() -> None:
    rules = replace(RULES, audits=False)
    some = LedgerGroup(rules)
    message = ShowFinding(finding(AUDITED, A, B))
    assert some.send_events("c", Received(A, message)) == []
    assert some["c"].reports.findings.by_case == {}


def test_joiner_follows_the_exclusions_from_genesis() -> None:
    some = LedgerGroup(RULES)
    some.send_to_all(*(AuditOffer(peer, 1) for peer in ALL))
    step_of(some, 0)
    some.send_to_all(*made(*conviction(some["a"].state, B).findings))
    some.deliver()
    joiner = PeerId("x")
    some.start(joiner)
    some.send_events(joiner, Received(A, some["a"].page(1)))
    assert some["x"].state == some["a"].state
    assert set(some["x"].state.excluded) == {B}
