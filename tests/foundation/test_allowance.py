"""Each of many keys has its own rate limit, which allows bursts."""

from __future__ import annotations

from p2ptrain.rate_limit import Allowance


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
