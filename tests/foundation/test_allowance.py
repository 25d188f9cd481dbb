"""Rate limits of many keys: each has its own, or all share one fairly. Both allow bursts."""

from __future__ import annotations

from p2ptrain.rate_limit import Allowance, FairAllowance


class TestAllowance:
    def test_burst_is_allowed_at_once_and_more_as_time_passes(self) -> None:
        allowance = Allowance(4, 2.0)
        assert [allowance.consume("a", 1, 10.0) for _ in range(6)] == [True] * 4 + [False] * 2
        assert [allowance.consume("a", 1, 11.0) for _ in range(3)] == [True, True, False]
        assert [allowance.consume("a", 1, 99.0) for _ in range(5)] == [True] * 4 + [False]

    def test_each_key_has_its_own_allowance(self) -> None:
        allowance = Allowance(1, 1.0)
        assert [allowance.consume(key, 1, 0.0) for key in "aab"] == [True, False, True]

    def test_refused_request_does_not_use_up_the_allowance(self) -> None:
        allowance = Allowance(1, 1.0)
        for _ in range(100):
            allowance.consume("a", 1, 0.0)
        assert allowance.consume("a", 1, 1.0)

    def test_request_larger_than_the_burst_does_not_use_up_the_allowance(self) -> None:
        allowance = Allowance(4, 2.0)
        assert not allowance.consume("a", 5, 0.0)
        assert allowance.covers("a", 4, 0.0)
        assert allowance.consume("a", 4, 0.0)

    def test_number_of_keys_is_bounded_and_idle_ones_are_dropped(self) -> None:
        allowance = Allowance(1, 1.0, keys_max=3)
        for number in range(10):
            allowance.consume(number, 1, float(number))
        assert len(allowance) == 3
        assert not allowance.consume(9, 1, 9.0)


def taken(allowance: FairAllowance, key: str, now: float, count: int = 1) -> int:
    """Return how often `key` is allowed `count` in a row."""
    times = 0
    while allowance.consume(key, count, now):
        times += 1
    return times


class TestFairAllowance:
    def test_one_key_leaves_half_to_the_next(self) -> None:
        allowance = FairAllowance(12, 1.0)
        assert [taken(allowance, key, 0.0) for key in "ab"] == [6, 6]

    def test_keys_that_come_late_get_what_is_refilled(self) -> None:
        allowance = FairAllowance(12, 1.0)
        assert [taken(allowance, key, 0.0) for key in "abc"] == [6, 6, 0]
        assert [taken(allowance, key, 2.0) for key in "abc"] == [0, 0, 2]
        assert [taken(allowance, key, 4.0) for key in "abc"] == [0, 0, 2]

    def test_all_keys_together_get_no_more_than_one(self) -> None:
        allowance = FairAllowance(12, 1.0)
        for now in range(100):
            for key in "abcdefgh":
                taken(allowance, key, float(now))
        assert sum(taken(allowance, key, 101.0) for key in "abcdefgh") <= 2

    def test_key_that_has_used_nothing_may_exceed_its_share(self) -> None:
        allowance = FairAllowance(12, 1.0)
        assert [taken(allowance, key, 0.0, 4) for key in "abc"] == [1, 1, 1]
        assert taken(allowance, "a", 0.0) == 0
        assert taken(FairAllowance(12, 1.0), "a", 0.0, 13) == 0

    def test_idle_key_gets_its_whole_share_again_and_is_forgotten(self) -> None:
        allowance = FairAllowance(4, 2.0)
        assert taken(allowance, "a", 0.0) == 2
        assert taken(allowance, "b", 50.0) == 2
        assert len(allowance) == 1

    def test_use_that_cannot_be_refused_counts(self) -> None:
        allowance = FairAllowance(12, 1.0)
        allowance.note("me", 9, 0.0)
        assert taken(allowance, "a", 0.0) == 3
        allowance.note("me", 99, 0.0)
        assert taken(allowance, "b", 1.0) == 0

    def test_number_of_keys_is_bounded(self) -> None:
        allowance = FairAllowance(100, 1.0, keys_max=2)
        assert [allowance.consume(key, 1, 0.0) for key in "abc"] == [True, True, False]
