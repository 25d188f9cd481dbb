"""Background writes use a hundredth of a core while all cores are busy. While a core is idle, they
are not limited.
"""

from __future__ import annotations

import pytest

from p2ptrain.store import IdleThrottle
from p2ptrain.store.idle_throttle import FREE_S, LOOK_S, REST_S_MAX, SHARE


class Machine:
    """A simulated machine. Its clock advances while the writer works or rests; `idle_cores` cores
    are idle.
    """

    def __init__(self, idle_cores: float) -> None:
        self.idle_cores = idle_cores
        self.now_s = self.idle_s = self.used_s = 0.0
        self.rests: list[float] = []
        self.throttle = IdleThrottle(
            lambda: self.now_s, lambda: self.idle_s, lambda: self.used_s, lambda s: self.rest(s)
        )

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.idle_s += seconds * self.idle_cores

    def work(self, seconds: float) -> None:
        self.used_s += seconds
        self.passes(seconds)

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.passes(seconds)

    def write(self, chunks: int, each_s: float = 0.004) -> None:
        for _ in range(chunks):
            self.throttle.rest()
            self.throttle.counted(self.work)(each_s)


def test_writer_uses_only_its_share_of_a_core_on_a_busy_machine() -> None:
    machine = Machine(idle_cores=0.0)
    machine.write(1000)
    assert (machine.used_s - FREE_S) / machine.now_s == pytest.approx(SHARE, rel=0.02)


def test_small_blob_is_written_without_rests_even_on_a_busy_machine() -> None:
    machine = Machine(idle_cores=0.0)
    machine.passes(LOOK_S)
    machine.write(7)
    assert machine.rests == []


def test_writer_does_not_rest_while_a_core_is_idle() -> None:
    machine = Machine(idle_cores=0.9)
    machine.write(1000)
    assert machine.rests == []


def test_time_used_while_cores_were_idle_does_not_count_later() -> None:
    machine = Machine(idle_cores=1.0)
    machine.write(1000)
    machine.idle_cores = 0.0
    machine.write(1000)
    assert machine.used_s == pytest.approx(8.0)
    assert machine.now_s == pytest.approx(4 + (4 - FREE_S) / SHARE, rel=0.02)


def test_rest_ends_soon_after_the_inner_steps_end() -> None:
    class Ending(Machine):
        """The inner steps end during the third pause."""

        def rest(self, seconds: float) -> None:
            super().rest(seconds)
            self.idle_cores = 2.0 if len(self.rests) > 2 else 0.0

    machine = Ending(idle_cores=0.0)
    machine.write(1, each_s=LOOK_S)  # this much work would require a rest of 20 s
    machine.write(1)
    assert machine.rests == [REST_S_MAX] * 4


def test_leaving_node_does_not_wait_for_a_resting_writer() -> None:
    class Leaving(Machine):
        """The node leaves during the first pause."""

        def rest(self, seconds: float) -> None:
            super().rest(seconds)
            self.throttle.end()

    machine = Leaving(idle_cores=0.0)
    machine.write(1, each_s=LOOK_S)
    machine.write(100)
    assert machine.rests == [REST_S_MAX]
