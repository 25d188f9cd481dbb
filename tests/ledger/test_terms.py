"""Amendments in the ledger: which ones can be agreed, and when they change the size of leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import why_invalid
from p2ptrain.ledger.chain.decode_values import terms_from_plain, value_from_plain
from p2ptrain.ledger.chain.state import Phase, encode_state
from p2ptrain.ledger.chain.terms import amended, amendment_fault, in_force, lease_blocks
from p2ptrain.ledger.chain.values import TERMS_MAX, Commit, Participant, Roster, Skip, Terms, Value
from p2ptrain.ledger.history.decode_state import decode_state
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B = peers("a b")
RULES = small_rules("a b")
BOTH = (Participant(A, 200, 2), Participant(B, 200, 2))


def terms(number: int, step: int, blocks: int | None = None) -> Terms:
    return Terms(number, step, digest(f"amendment {number}"), blocks)


def opening(step: int, names: Terms | None = None, attempt: int = 0) -> Roster:
    return Roster(step, attempt, (A, B), (), BOTH, terms=names)


LARGER = terms(1, 2, blocks=5)
AGREED = (terms(1, 2, blocks=5), terms(2, 4), terms(4, 6, blocks=3))


@pytest.mark.parametrize(
    ("step", "new", "fault"),
    [
        (5, terms(5, 7), ""),
        (7, terms(5, 7), "amendment 5 is for outer step 7, which has begun"),
        (9, terms(5, 7), "amendment 5 is for outer step 7, which has begun"),
        (5, terms(4, 7), "amendment 4 is not newer than amendment 4"),
        (5, terms(3, 7), "amendment 3 is not newer than amendment 4"),
        (3, terms(5, 6), "amendment 5 must take effect after outer step 6"),
    ],
)
def test_amendment_must_have_a_higher_number_and_a_later_step(
    step: int, new: Terms, fault: str
) -> None:
    assert amendment_fault(AGREED, step, new) == fault


def test_number_of_amendments_is_bounded() -> None:
    many = tuple(terms(each, each) for each in range(1, TERMS_MAX + 1))
    assert amendment_fault(many, 1, terms(100, 100)) == f"a run has at most {TERMS_MAX} amendments"


def test_amendments_in_force_determine_the_lease_size_of_a_step() -> None:
    assert [len(in_force(AGREED, step)) for step in (0, 2, 3, 4, 6, 99)] == [0, 1, 1, 2, 3, 3]
    assert [lease_blocks(AGREED, step, 2) for step in (1, 2, 5, 6)] == [2, 5, 5, 3]


def test_proposer_names_the_valid_amendment_with_the_lowest_number() -> None:
    known = [terms(7, 9), terms(3, 9), terms(5, 8), terms(6, 4)]
    assert amended(opening(4), AGREED, known) == opening(4, terms(5, 8))
    assert amended(opening(4), AGREED, []) == opening(4)
    assert amended(Skip(4), AGREED, known) == Skip(4)


def test_leases_change_when_the_amended_step_begins() -> None:
    values: list[Value] = [
        opening(0, LARGER),
        Commit(0, 0, digest("u0")),
        opening(1),
        Commit(1, 0, digest("u1")),
        opening(2),
    ]
    sizes = [
        [len(lease) for lease in chain_of(RULES, values[:count])[1].leases.values()]
        for count in range(len(values))
    ]
    assert sizes == [[2, 2], [2, 2], [2, 2], [2, 2], [5, 5]]


def test_amended_lease_size_also_applies_after_a_skip() -> None:
    soon = replace(LARGER, step=1)
    state = chain_of(RULES, [opening(0, soon), Skip(0)])[1]
    assert [len(lease) for lease in state.leases.values()] == [7, 7]


def test_newcomer_gets_a_lease_of_the_current_size() -> None:
    soon = replace(LARGER, step=1)
    joins = Roster(1, 0, (A, B), peers("c"))
    state = chain_of(RULES, [opening(0, soon), Commit(0, 0, digest("u0")), joins])[1]
    assert len(state.leases[peers("c")[0]]) == 5


def test_roster_that_amends_a_step_that_has_begun_is_invalid() -> None:
    state = chain_of(RULES, [])[1]
    late = opening(0, terms(1, 1))
    assert why_invalid(RULES, state, late) == ""
    after = chain_of(RULES, [opening(0), Commit(0, 0, digest("u0"))])[1]
    fault = why_invalid(RULES, after, opening(1, terms(1, 1)))
    assert (after.phase, fault) == (
        Phase.GATHER,
        "amendment 1 is for outer step 1, which has begun",
    )


def test_amendments_are_part_of_the_state_and_of_its_digest() -> None:
    with_it = chain_of(RULES, [opening(0, LARGER)])[1]
    assert with_it.terms == (LARGER,)
    assert decode_state(encode_state(with_it)) == with_it
    assert replace(with_it, terms=()).digest != with_it.digest


@pytest.mark.parametrize("end", [Commit(0, 0, digest("u0")), Skip(0)])
def test_run_ends_before_the_step_of_an_amendment_that_stops_it(end: Value) -> None:
    stop = replace(terms(1, 2), stops=True)
    goes_on = chain_of(RULES, [opening(0, stop), end])[1]
    assert goes_on.phase is Phase.GATHER
    over = chain_of(RULES, [opening(0, stop), end, opening(1), Commit(1, 0, digest("u1"))])[1]
    assert (over.phase, over.step) == (Phase.ENDED, 2)
    assert why_invalid(RULES, over, opening(2)) == "the run has ended"
    assert decode_state(encode_state(over)) == over


@pytest.mark.parametrize("voters", [None, (), (A, B)])
def test_amendment_that_ends_the_run_has_one_encoding(voters: tuple[PeerId, ...] | None) -> None:
    stop = Terms(1, 2, digest("x"), voters=voters, stops=True)
    delegates = None if voters is None else list(voters)
    assert stop.plain() == [1, 2, digest("x"), None, delegates, True]
    assert terms_from_plain(stop.plain()) == stop


@pytest.mark.parametrize(
    "plain",
    [
        [],
        [1, 2, digest("x")],
        [0, 2, digest("x"), None],
        [1, 0, digest("x"), None],
        [1, 2, "x", None],
        [1, 2, digest("x"), 0],
        [1, 2, digest("x"), 1 << 21],
        [1, 2, digest("x"), "4"],
        [1, 2, digest("x"), None, None],
        [1, 2, digest("x"), None, None, False],
        [1, 2, digest("x"), None, None, 1],
        [1, 2, digest("x"), None, None, True, True],
        {"number": 1},
        False,
    ],
)
def test_malformed_amendment_is_refused(plain: object) -> None:
    assert value_from_plain(opening(0, LARGER).plain()) == opening(0, LARGER)
    with pytest.raises(RemoteProtocolError):
        value_from_plain(opening(0).plain() | {"terms": plain})
