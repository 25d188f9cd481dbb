"""Whom those who gave a reduce up blame, counted report by report."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ledger.suspicion import Suspicion
from p2ptrain.testing.ledgers import peers

A, B, C, D = NAMES = peers("a b c d")


def test_half_of_the_other_reporters_are_enough_to_be_blamed() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (D,))
    assert not suspicion.add(B, ())
    assert suspicion.blamed == {D}
    assert suspicion.add(C, ())
    assert suspicion.blamed == set()


def test_against_itself_one_voice_is_enough_and_it_is_no_blame_of_others() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (A,))
    assert not suspicion.add(B, ())
    assert (suspicion.confessed, suspicion.blamed) == ({A}, set())


def test_who_is_blamed_by_most_of_the_others_and_says_nothing_has_fallen() -> None:
    suspicion = Suspicion()
    suspicion.add(A, [C])
    assert (suspicion.blamed, suspicion.fallen(4)) == ({C}, set()), "one may lie"
    suspicion.add(B, [C])
    assert suspicion.fallen(4) == {C}
    assert suspicion.fallen(5) == set(), "two of four others may be first to speak, and lie"
    suspicion.add(C, [])
    assert (suspicion.blamed, suspicion.fallen(4)) == ({C}, set()), "it is there"


def test_two_neighbours_who_name_each_other_are_both_blamed() -> None:
    suspicion = Suspicion()
    suspicion.add(A, (B,))
    suspicion.add(B, (A,))
    assert suspicion.blamed == {A, B}


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=4)))
def test_counting_one_by_one_is_counting_all(reports: dict[PeerId, list[PeerId]]) -> None:
    suspicion = Suspicion()
    for reporter, suspects in reports.items():
        before = set(suspicion.blamed)
        news = suspicion.add(reporter, suspects)
        assert news == (suspicion.blamed != before or reporter in suspects)
    assert suspicion.confessed == {peer for peer in reports if peer in reports[peer]}
    assert suspicion.blamed == {peer for peer in NAMES if is_blamed(peer, reports)}


def is_blamed(peer: PeerId, reports: dict[PeerId, list[PeerId]]) -> bool:
    others = [suspects for reporter, suspects in reports.items() if reporter != peer]
    return 0 < len(others) <= 2 * sum(peer in suspects for suspects in others)
