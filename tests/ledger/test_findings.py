"""Findings exclude peers, and the chain alone shows why (SPEC.md, S16, S17, A1 to A7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import apply, genesis, why_invalid
from p2ptrain.ledger.chain.audits import AUDIT_STEPS, DRAWN, EXCLUDED_STEPS, JUDGES, drawn
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.chain.decode_values import value_from_plain
from p2ptrain.ledger.chain.findings import AUDITORS_MAX, Found, Verdict
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, encode_state, plain_state
from p2ptrain.ledger.chain.values import Branch, Commit, Roster, Skip, Terms
from p2ptrain.ledger.chain.verify import replay
from p2ptrain.ledger.history.decode_state import decode_state
from p2ptrain.ledger.messages.messages import ShowFinding
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.simulation.disk import verify
from p2ptrain.testing.ledgers import certify, chain_of, digest, peers, small_rules
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
    claim_of,
    committed,
    conviction,
    entry_after,
    finding,
    opening,
    signed,
    skipped,
    verdict,
)

START = genesis(RULES)
OUT = after(AUDITED, conviction(AUDITED, B))
"""B is excluded because of its claim for outer step 0."""


def fault(state: LedgerState, value: Verdict | Roster, rules: Rules = RULES) -> str:
    return why_invalid(rules, state, value)


# ── the draw ─────────────────────────────────────────────────────────────────────────────────────


def dumb_draw(draw: str, peer: str, auditors: Sequence[str], count: int) -> list[str]:
    """Draw auditors in another way: hash text by hand, and take the smallest again and again."""
    left, out = [each for each in auditors if each != peer], list[str]()
    while left and len(out) < count:
        lots = {}
        for each in left:
            text = "p2ptrain-auditor/1\n" + json.dumps([draw, peer, each], separators=(",", ":"))
            lots[each] = int(hashlib.sha256(text.encode()).hexdigest(), 16)
        lucky = min(lots, key=lambda it: lots[it])
        left.remove(lucky)
        out.append(lucky)
    return out


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    names=st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=12),
    count=st.integers(1, 6),
)
def test_draw_is_that_of_a_dumb_second_implementation(
    seed: int, names: set[str], count: int
) -> None:
    entry, auditors = digest(str(seed)), [PeerId(name) for name in sorted(names)]
    chosen = drawn(entry, auditors[0], auditors, count)
    assert list(chosen) == dumb_draw(entry, auditors[0], list(auditors), count)
    assert chosen == drawn(entry, auditors[0], reversed(auditors), count)
    assert auditors[0] not in chosen
    assert len(chosen) == len(set(chosen)) == min(count, len(auditors) - 1)


def test_each_auditor_is_drawn_equally_often() -> None:
    counts = dict.fromkeys(ALL, 0)
    for number in range(2000):
        for auditor in drawn(digest(str(number)), A, ALL, DRAWN):
            counts[auditor] += 1
    assert counts.pop(A) == 0
    assert all(1100 < count < 1300 for count in counts.values())  # 1,200 on average.


@pytest.mark.parametrize(("auditors", "can_judge"), [((A, C, D), True), ((B, C, D), False)])
def test_fewer_than_three_other_auditors_exclude_nobody(
    auditors: tuple[PeerId, ...], can_judge: bool
) -> None:
    state = committed(START, auditors=auditors)
    said = verdict(state, finding(state, C, B), finding(state, D, B))
    assert (fault(state, said) == "") is can_judge


def test_no_audit_begins_with_two_auditors() -> None:
    assert committed(START, auditors=(A, B)).audits == ()


# ── what is enough ───────────────────────────────────────────────────────────────────────────────


def test_s16_two_of_the_three_drawn_auditors_exclude_a_peer() -> None:
    one, two, three = auditors_of(AUDITED, B)
    stranger = next(peer for peer in ALL if peer not in (one, two, three, B))
    first, second = finding(AUDITED, one, B), finding(AUDITED, two, B, "withheld")
    third, other = finding(AUDITED, three, B), finding(AUDITED, stranger, B)
    assert fault(AUDITED, verdict(AUDITED, first, second)) == ""
    assert fault(AUDITED, verdict(AUDITED, first)) == "it has 1 findings about b; 2 are needed"
    three_of_them = "it has 3 findings about b; 2 are needed"
    assert fault(AUDITED, verdict(AUDITED, first, second, third)) == three_of_them
    assert fault(AUDITED, verdict(AUDITED, first, other)) == f"{stranger} was not drawn to audit b"


def test_finding_counts_only_for_the_claim_that_was_committed() -> None:
    one, two, _ = auditors_of(AUDITED, B)
    good, draw = finding(AUDITED, two, B), AUDITED.audits[0].draw
    sound = finding(AUDITED, one, B, "sound")
    other_claim = signed(one, B, 0, draw, claim_of(C, 0), "link")
    other_step = signed(one, B, 1, draw, claim_of(B, 0), "link")
    unknown = signed(one, B, 0, digest("no such entry"), claim_of(B, 0), "link")
    about = "it is not about the claim of b in that update"
    for bad, why in (
        (sound, f"{one} does not say a fault"),
        (other_claim, about),
        (other_step, about),
        (unknown, "no claim of b can be judged by auditors that this entry drew"),
    ):
        assert fault(AUDITED, verdict(AUDITED, bad, good)) == why


def test_findings_about_two_claims_do_not_add_up() -> None:
    state = committed(AUDITED)
    pairs = [
        (one, two)
        for one in auditors_of(state, B, 0)
        for two in auditors_of(state, B, 1)
        if one != two
    ]
    one, two = pairs[0]
    said = verdict(state, finding(state, one, B), finding(state, two, B, step=1))
    assert fault(state, said) == "it judges two claims of b"


def test_peer_that_did_not_take_part_is_not_judged() -> None:
    state = committed(START, taking=(A, C, D), auditors=ALL)
    said = verdict(state, finding(state, A, B), finding(state, C, B))
    assert fault(state, said).startswith("no claim of b can be judged")


def test_claim_is_judged_for_four_outer_steps() -> None:
    last, late = skipped(AUDITED, AUDIT_STEPS - 1), skipped(AUDITED, AUDIT_STEPS)
    said = [finding(AUDITED, auditor, B) for auditor in auditors_of(AUDITED, B)[:2]]
    assert fault(last, verdict(last, *said)) == ""
    assert fault(late, verdict(late, *said)) != ""
    assert late.audits == ()


def test_verdict_comes_while_members_train_and_only_in_runs_with_audits() -> None:
    said = conviction(AUDITED, B)
    reducing = after(AUDITED, opening(AUDITED))
    assert fault(reducing, said) == "claims are not judged during an exchange"
    assert fault(AUDITED, said, replace(RULES, audits=False)) == "this run has no audits"
    with pytest.raises(ValueError, match="audits need claims"):
        replace(RULES, claims=False)


def test_several_peers_are_judged_at_once() -> None:
    state = after(AUDITED, conviction(AUDITED, B, C))
    assert set(state.excluded) == {B, C}
    assert set(state.audits[0].claims) == {A, D, E, F}


# ── what an exclusion does ───────────────────────────────────────────────────────────────────────


def test_s17_exclusion_changes_only_who_averages() -> None:
    same = {"height": OUT.height, "head": OUT.head, "audits": OUT.audits}
    assert replace(AUDITED, excluded=OUT.excluded, **same) == OUT  # type: ignore[arg-type]
    assert OUT.voters == ALL
    assert OUT.auditors == ALL


def test_excluded_peer_takes_part_again_after_eight_outer_steps() -> None:
    state, without = OUT, tuple(peer for peer in ALL if peer != B)
    for step in range(1, 1 + EXCLUDED_STEPS):
        assert state.step == step
        assert fault(state, opening(state)) == "b is excluded from averages until outer step 9"
        assert fault(state, opening(state, without)) == ""
        state = skipped(state, 1)
    assert fault(state, opening(state)) == ""
    assert state.excluded == {}


def test_excluded_peers_take_part_if_too_few_others_do() -> None:
    assert fault(OUT, opening(OUT, (A, B))) == ""
    assert fault(OUT, opening(OUT, (A, B, C))) != ""


def test_leaving_does_not_shorten_an_exclusion() -> None:
    rest = tuple(peer for peer in ALL if peer != B)
    left = after(OUT, Roster(1, 0, rest, ()))
    back = after(left, Roster(1, 0, rest, (B,)))
    assert B not in left.auditors
    assert back.excluded == OUT.excluded
    assert fault(back, opening(back)) != ""


def test_claim_is_judged_only_once_and_no_other_meanwhile() -> None:
    state = committed(AUDITED)
    out = after(state, conviction(state, B))
    again = conviction(state, B)
    another = conviction(state, B, step=1)
    assert fault(out, again).startswith("no claim of b can be judged")
    assert fault(out, another).startswith("no claim of b can be judged")
    freed = after(out, acquittal(out, B, 2))
    assert fault(freed, again).startswith("no claim of b can be judged")
    assert fault(freed, another) == ""


def test_branch_keeps_exclusions_and_the_auditors_that_remain() -> None:
    rules = replace(RULES, quorum_loss="branch")
    state = apply(rules, OUT, entry_after(OUT, Branch(1, (C, D))))
    assert (state.excluded, state.audits) == (OUT.excluded, OUT.audits)
    assert state.auditors == (C, D)


# ── appeals ──────────────────────────────────────────────────────────────────────────────────────


def test_judges_of_an_appeal_are_fresh_and_at_most_five() -> None:
    names = peers(" ".join("abcdefghijkl"))
    rules = replace(RULES, founders=names)
    for count in range(4, len(names) + 1):
        state = committed(genesis(rules), auditors=names[:count], rules=rules)
        three = auditors_of(state, B)
        state = after(state, conviction(state, B), rules=rules)
        judges = state.excluded[B].judges
        assert not {B, *three}.intersection(judges)
        assert len(judges) == min(JUDGES, count - 1 - DRAWN)
        others = [peer for peer in names[:count] if peer not in three]
        assert list(judges) == dumb_draw(state.excluded[B].draw, B, others, JUDGES)


def test_most_judges_end_an_exclusion() -> None:
    judges = OUT.excluded[B].judges
    assert len(judges) == 2
    assert fault(OUT, acquittal(OUT, B, 1)) == "it has 1 findings about b; 2 are needed"
    freed = after(OUT, acquittal(OUT, B, 2))
    assert freed.excluded == {}
    assert fault(freed, opening(freed)) == ""


def test_judge_must_say_that_the_claim_is_sound() -> None:
    it, said = OUT.excluded[B], acquittal(OUT, B, 2)
    worse = signed(it.judges[0], B, 0, it.draw, it.claim, "link")
    kept = next(each for each in said.findings if each.auditor != it.judges[0])
    wrong = f"{it.judges[0]} does not say that the claim is sound"
    assert fault(OUT, verdict(OUT, worse, kept)) == wrong


def test_first_auditors_do_not_decide_the_appeal() -> None:
    it, three = OUT.excluded[B], auditors_of(AUDITED, B)
    said = [signed(each, B, 0, it.draw, it.claim, "sound") for each in three[:2]]
    assert fault(OUT, verdict(OUT, *said)) == f"{three[0]} was not drawn to audit b"


def test_there_is_no_appeal_without_further_auditors() -> None:
    state = committed(START, auditors=(A, C, D))
    state = after(state, conviction(state, B))
    assert state.excluded[B].judges == ()
    it = state.excluded[B]
    said = verdict(state, signed(E, B, 0, it.draw, it.claim, "sound"))
    assert fault(state, said).startswith("no claim of b can be judged")


# ── who audits ───────────────────────────────────────────────────────────────────────────────────


def test_auditors_stay_until_a_roster_names_others() -> None:
    state = committed(AUDITED)
    assert state.auditors == ALL
    assert committed(state, auditors=(A, C)).auditors == (A, C)
    assert committed(state, auditors=()).auditors == ()


def test_auditors_must_be_members() -> None:
    strangers = opening(START, auditors=peers("a x"))
    assert fault(START, strangers) == "x cannot be an auditor: the organisers did not approve it"
    many = tuple(sorted(PeerId(f"x{number}") for number in range(AUDITORS_MAX + 1)))
    assert fault(START, opening(START, auditors=many)).startswith("it has 65 auditors")
    without = replace(RULES, audits=False)
    assert "no audits" in fault(START, opening(START, auditors=(A,)), without)


def test_learners_of_a_run_with_an_allowlist_may_audit() -> None:
    learning = Roster(0, 0, ALL, peers("x"), auditors=peers("a x"))
    assert fault(START, learning) == ""


def test_only_founders_and_delegates_audit_an_open_run() -> None:
    rules = replace(RULES, founders=(A, B, C), founders_vote=True)
    named = Terms(1, 1, digest("list"), None, (E,))
    joined = Roster(0, 0, (A, B, C), (D, E), terms=named)
    state = after(genesis(rules), joined, rules=rules)
    assert "did not approve it" in fault(state, opening(state, (A,), auditors=(A, E)), rules)
    state = committed(state, (A, B), rules=rules)
    assert "did not approve it" in fault(state, opening(state, (A,), auditors=(A, D)), rules)
    assert fault(state, opening(state, (A, B), auditors=(A, E)), rules) == ""
    state = committed(state, (A, B), auditors=(A, B, E), rules=rules)
    revoking = replace(opening(state, (A, B)), terms=Terms(2, 3, digest("empty"), None, ()))
    state = after(state, revoking, Skip(2), rules=rules)
    assert after(state, opening(state, (A, B)), rules=rules).auditors == (A, B)


# ── encoding ─────────────────────────────────────────────────────────────────────────────────────


def test_values_without_auditors_have_the_bytes_of_earlier_versions() -> None:
    rules = small_rules()
    plain = Roster(0, 0, (A, B, C), ()).plain()
    assert set(plain) == {
        *("kind", "step", "attempt", "voters", "learners", "participants", "schedule", "terms")
    }
    assert value_from_plain(plain) == Roster(0, 0, (A, B, C), ())
    fields = set(plain_state(genesis(rules)))
    assert not fields & {"auditors", "audits", "excluded", "claims"}


def test_rosters_verdicts_and_states_survive_encoding() -> None:
    for auditors in ((), (A, B)):
        roster = opening(START, auditors=auditors)
        assert value_from_plain(roster.plain()) == roster
    assert value_from_plain(conviction(AUDITED, B, C).plain()) == conviction(AUDITED, B, C)
    assert decode_state(encode_state(OUT)) == OUT
    assert OUT.digest != replace(OUT, excluded={}).digest
    message = ShowFinding(finding(AUDITED, A, B))
    assert decode(encode(message)) == message


def bent(**fields: object) -> bytes:
    return canonical({**plain_state(OUT), **fields})


AUDIT = [0, digest("e"), {"b": digest("c")}, ["a"]]
EXCLUSION = [9, 0, digest("c"), digest("e"), ["a"]]


@pytest.mark.parametrize(
    "data",
    [
        bent(auditors=[]),
        bent(auditors=["x"]),
        bent(auditors="a"),
        bent(audits=[]),
        bent(audits=[AUDIT] * 6),
        bent(audits=[AUDIT[:3]]),
        bent(audits=[[*AUDIT[:3], ["a"] * 65]]),
        bent(excluded={}),
        bent(excluded={"b": EXCLUSION[:4]}),
        bent(excluded={"b": [-1, *EXCLUSION[1:]]}),
        bent(excluded=["b"]),
    ],
)
def test_state_with_wrong_audits_is_not_decoded(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_state(data)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [(0, "b"), (0, 7), (1, None), (2, -1), (3, "x"), (4, "x"), (5, "guilty"), (5, None), (6, 7)],
)
def test_hostile_finding_is_refused(field: int, wrong: object) -> None:
    parts = finding(AUDITED, A, B).plain()
    parts[field] = wrong
    with pytest.raises(RemoteProtocolError):
        decode(canonical({"kind": "show-finding", "finding": parts}))


@pytest.mark.parametrize("auditors", [None, ["b", "a"], ["a", "a"], ["a"] * 65, [7]])
def test_roster_with_wrong_auditors_is_not_decoded(auditors: object) -> None:
    with pytest.raises(RemoteProtocolError):
        value_from_plain({**opening(START).plain(), "auditors": auditors})


def test_verdict_is_sorted_and_bounded() -> None:
    said = conviction(AUDITED, B, C).findings
    for findings in ((), said[::-1], said[:1] * 2, said * 17):
        with pytest.raises(ValueError, match="findings"):
            Verdict(1, findings)
    with pytest.raises(ValueError, match="steps start at 0"):
        Verdict(-1, said)


def test_finding_says_in_words_what_was_found() -> None:
    sound: Found = "sound"
    said = finding(AUDITED, A, B)
    claim = said.claim[:8]
    assert said.words == f"a: claim {claim} of b, step 0, has a fault (link)"
    assert replace(said, found=sound).words == f"a: claim {claim} of b, step 0, is sound"


# ── the chain alone ──────────────────────────────────────────────────────────────────────────────


def test_joiner_checks_the_signatures_of_findings() -> None:
    opened = opening(START, auditors=ALL)
    chain, state = chain_of(RULES, [opened])
    for value in (Commit(0, 0, digest("update 0")), conviction(AUDITED, B)):
        chain.append(certify(RULES, state, value))
        state = apply(RULES, state, chain[-1].entry)
    assert replay(RULES, chain, verify) == OUT
    forged = conviction(AUDITED, B).findings
    value = Verdict(1, (replace(forged[0], signature=b"forged"), forged[1]))
    last = certify(RULES, AUDITED, value)
    with pytest.raises(RemoteProtocolError, match="under a finding is not valid"):
        replay(RULES, [*chain[:2], last], verify)
