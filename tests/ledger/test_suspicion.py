"""Find the peers that abandoned the current reduce, and those that fell silent during it."""

from __future__ import annotations

from p2ptrain.ledger.policy.suspicion import Suspicion
from p2ptrain.testing.ledgers import peers

A, B, C, D = peers("a b c d")


def test_accusation_is_distinguished_from_a_plain_failure_report() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (D,))
    assert not suspicion.add(B, ())
    assert (suspicion.reporters, suspicion.accused) == ({A, B}, {D})


def test_peer_that_accuses_itself_counts_as_confessed_not_accused() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (A, B))
    assert (suspicion.confessed, suspicion.accused) == ({A}, {B})


def test_silent_peer_has_failed_when_most_others_gave_up() -> None:
    suspicion = Suspicion()
    suspicion.add(A, [C])
    assert suspicion.fallen(4) == set(), "one report of three is not enough"
    suspicion.add(B, [])
    assert suspicion.fallen(4) == {C}
    assert suspicion.fallen(5) == set(), "two reports of four are not enough"
    suspicion.add(C, [])
    assert suspicion.fallen(4) == set(), "c has reported, so it is not silent"
