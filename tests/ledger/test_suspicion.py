"""Finding the peers that gave up the reduce in progress, and those that fell silent in it."""

from __future__ import annotations

from p2ptrain.ledger.policy.suspicion import Suspicion
from p2ptrain.testing.ledgers import peers

A, B, C, D = peers("a b c d")


def test_accusation_is_distinguished_from_a_plain_failure_report() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (D,))
    assert not suspicion.add(B, ())
    assert (suspicion.reporters, suspicion.accused) == ({A, B}, {D})


def test_peer_that_accuses_itself_confesses_and_is_not_accused() -> None:
    suspicion = Suspicion()
    assert suspicion.add(A, (A, B))
    assert (suspicion.confessed, suspicion.accused) == ({A}, {B})


def test_peer_that_is_silent_when_most_gave_up_has_failed() -> None:
    suspicion = Suspicion()
    suspicion.add(A, [C])
    assert suspicion.fallen(4) == set(), "one of three others may report first, and lie"
    suspicion.add(B, [])
    assert suspicion.fallen(4) == {C}
    assert suspicion.fallen(5) == set(), "two of four others are not most"
    suspicion.add(C, [])
    assert suspicion.fallen(4) == set(), "it has reported itself"
