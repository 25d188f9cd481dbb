"""The proposer arranges the participants of a reduce, and all peers use the order in the roster."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.decode_values import value_from_plain
from p2ptrain.ledger.chain.values import SCHEDULES, Commit, Participant, Roster, Schedule
from p2ptrain.ledger.policy.reduce_order import arranged, in_given_order
from p2ptrain.ring.schedules import SCHEDULES as RUN_BY_THE_RING
from p2ptrain.testing.ledgers import LedgerGroup, digest, peers, small_rules

A, B, C = peers("a b c")
OPENING = Roster(0, 0, (A, B), (C,), (Participant(A, 1, 1), Participant(C, 3, 2)))


def backwards(those: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
    return "grid", those[::-1]


def test_arranged_participants_keep_their_weights() -> None:
    turned = (Participant(C, 3, 2), Participant(A, 1, 1))
    assert arranged(OPENING, backwards) == Roster(0, 0, (A, B), (C,), turned, "grid")
    assert arranged(OPENING, in_given_order) == OPENING


@pytest.mark.parametrize("value", [Roster(0, 0, (A, B), (C,)), Commit(0, 0, digest("u"))])
def test_membership_roster_is_not_arranged(value: Roster | Commit) -> None:
    assert arranged(value, backwards) == value


@pytest.mark.parametrize("order", [(A,), (A, C, A), (A, A)])
def test_arranging_must_not_add_or_drop_participants(order: tuple[PeerId, ...]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        arranged(OPENING, lambda those: ("ring", order))


def test_only_the_proposer_arranges_and_only_when_it_proposes() -> None:
    asked: list[Sequence[PeerId]] = []

    def remembered(those: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
        asked.append(those)
        return "direct", (B, C, A)

    some = LedgerGroup(small_rules(), arrange=remembered)
    some.ready("a b c")
    some.deliver()
    rosters = {some[name].state.roster for name in "abc"}
    parts = tuple(Participant(peer, 200, 2) for peer in (B, C, A))
    assert rosters == {Roster(0, 0, (A, B, C), (), parts, "direct")}
    assert asked == [(A, B, C)]


@pytest.mark.parametrize("schedule", ["star", "", "Ring", 0, None, ["ring"]])
def test_roster_with_an_unknown_schedule_is_refused(schedule: object) -> None:
    with pytest.raises(RemoteProtocolError, match="a schedule must be one of ring, direct, grid"):
        value_from_plain(OPENING.plain() | {"schedule": schedule})


def test_roster_without_a_schedule_is_refused() -> None:
    plain = {key: part for key, part in OPENING.plain().items() if key != "schedule"}
    with pytest.raises(RemoteProtocolError):
        value_from_plain(plain)


def test_ring_can_run_every_schedule_that_a_roster_can_name() -> None:
    assert SCHEDULES == RUN_BY_THE_RING
