"""Any two quorums share a voter. The safety of the ledger depends on this."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import QuorumPolicy

POLICIES: tuple[QuorumPolicy, ...] = ("majority", "two-thirds")


def voters_of(count: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"v{index}") for index in range(count))


def all_quorums(policy: QuorumPolicy, count: int) -> list[frozenset[PeerId]]:
    voters = voters_of(count)
    sets = [frozenset(some) for size in range(count + 1) for some in combinations(voters, size)]
    return [some for some in sets if quorum.reached(policy, voters, some)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", range(1, 9))
def test_any_two_quorums_share_a_voter(policy: QuorumPolicy, count: int) -> None:
    quorums = all_quorums(policy, count)
    assert quorums
    assert all(one & other for one in quorums for other in quorums)


@pytest.mark.parametrize("count", range(1, 9))
def test_two_thirds_quorum_tolerates_liars_below_a_third_of_the_voters(count: int) -> None:
    liars = (count - 1) // 3
    quorums = all_quorums("two-thirds", count)
    assert all(len(one & other) > liars for one in quorums for other in quorums)


@pytest.mark.parametrize(
    ("count", "present", "enough"),
    [
        (1, "v0", True),
        (2, "v0", True),
        (2, "v1", False),
        (3, "v0", False),
        (3, "v1 v2", True),
        (4, "v0 v3", True),
        (4, "v1 v2", False),
        (4, "v1 v2 v3", True),
        (5, "v0 v1", False),
    ],
)
def test_exact_half_is_a_quorum_only_with_the_first_ranked_voter(
    count: int, present: str, enough: bool
) -> None:
    there = {PeerId(name) for name in present.split()}
    assert quorum.reached("majority", voters_of(count), there) is enough


@given(st.integers(1, 30), st.sets(st.integers(0, 40)))
def test_quorum_agrees_with_a_simpler_implementation(count: int, indices: set[int]) -> None:
    present = {PeerId(f"v{index}") for index in indices}
    inside = sorted(index for index in indices if index < count)
    half = len(inside) * 2
    expected = half > count or (half == count and inside[0] == 0)
    assert quorum.reached("majority", voters_of(count), present) is expected


def test_missing_voters_are_listed_only_without_a_quorum() -> None:
    voters = voters_of(3)
    assert quorum.missing("majority", voters, {voters[0]}) == voters[1:]
    assert quorum.missing("majority", voters, set(voters[:2])) == ()
