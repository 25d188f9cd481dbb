"""Who gave the reduce under way up, and who fell silent in it."""

from __future__ import annotations

from p2ptrain.ledger.policy.suspicion import Suspicion
from p2ptrain.testing.ledgers import peers

A, B, C, D = peers("a b c d")


def test_an_accusation_is_told_apart_from_a_report_without_one() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (D,))
    assert not suspicion.add(B, ())
    assert (suspicion.reporters, suspicion.accused) == ({A, B}, {D})


def test_a_peer_that_accuses_itself_confesses_and_is_not_accused() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (A, B))
    assert (suspicion.confessed, suspicion.accused) == ({A}, {B})


def test_a_peer_has_fallen_if_it_is_silent_when_most_others_gave_up() -> None:
    suspicion = Suspicion()
    suspicion.add(A, [C])
    assert suspicion.fallen(4) == set(), "one of three others may be first to speak, and lie"
    suspicion.add(B, [])
    assert suspicion.fallen(4) == {C}
    assert suspicion.fallen(5) == set(), "two of four others are not most"
    suspicion.add(C, [])
    assert suspicion.fallen(4) == set(), "it is there"
