"""Both ends of a pair choose the same relays, and each attempt begins with another one."""

from __future__ import annotations

from collections import Counter

import pytest

from p2ptrain.dataplane.relaying import RELAYS_MAX, ranked, turns
from p2ptrain.ids import PeerId
from tests.dataplane.conftest import identity
from tests.dataplane.relaying.conftest import RUN

PEERS = [identity(number).peer for number in range(40, 60)]
ANN, BOB, *OTHERS = PEERS


def chosen(attempt: int = 0, step: int = 5, offers: list[PeerId] = PEERS) -> list[PeerId]:
    return ranked(RUN, (ANN, BOB), step, attempt, offers)


def test_both_ends_choose_the_same_and_never_themselves() -> None:
    found = chosen()
    assert found == ranked(RUN, (BOB, ANN), 5, 0, PEERS[::-1])
    assert len(found) == RELAYS_MAX
    assert not {ANN, BOB} & set(found)


def test_next_attempt_begins_with_another_relay() -> None:
    assert len({chosen(attempt)[0] for attempt in range(len(OTHERS))}) == len(OTHERS)
    assert chosen(attempt=len(OTHERS)) == chosen()


def test_pairs_are_spread_over_all_relays() -> None:
    pairs = [(one, other) for one in PEERS for other in PEERS if one < other]
    counts = Counter(ranked(RUN, pair, 5, 0, PEERS)[0] for pair in pairs)
    assert set(counts) == set(PEERS)
    assert max(counts.values()) < 3 * len(pairs) / len(PEERS)


@pytest.mark.parametrize("missing", OTHERS)
def test_ends_that_hear_different_offers_share_a_relay(missing: PeerId) -> None:
    """Each relay gets longer than all before it, so the ends meet if their lists are shifted."""
    fewer = [each for each in PEERS if each != missing]
    for attempt in range(4):
        ours, theirs = chosen(attempt), chosen(attempt, offers=fewer)
        shared = [each for each in ours if each in theirs]
        assert len(shared) >= RELAYS_MAX - 1


def test_no_offers_mean_no_relays() -> None:
    assert chosen(offers=[ANN, BOB]) == []
    assert chosen(offers=OTHERS[:1]) == OTHERS[:1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_turn_is_longer_than_all_before_it(count: int) -> None:
    times = turns(7.0, count)
    assert sum(times) == pytest.approx(7.0)
    assert all(times[number] > sum(times[:number]) for number in range(count))
