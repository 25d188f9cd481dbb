"""The limit for a trainer's silence depends on the trainer's pace. It applies only while the
trainer owes an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2ptrain.ids import Digest
from p2ptrain.ipc import frames
from p2ptrain.trainer.host.stall_watch import AnswerTimeout, RestartBudget, StallWatch, StepCost

HELLO = frames.Hello(0, 1, Digest("0" * 64), 100, "cpu", 1)
READY = frames.FragmentReady(0, 10, ("/store/ab/cd",), 1.0)
LEASE = frames.Train(0, ("a", "b", "c"), 0)
PATIENCE = AnswerTimeout(start_limit_s=100, silence_floor_s=10, silence_factor=20)


def progress(inner_step: int = 0) -> frames.Progress:
    return frames.Progress(0, inner_step, 1.0, 1.0, 10)


@pytest.fixture
def watch() -> StallWatch:
    """Watch a trainer that is up at 5 s, and at 20 s has taken its first three inner steps of 2 s
    each."""
    watch = StallWatch(0.0, PATIENCE)
    watch.received(HELLO, 5.0)
    watch.sent(LEASE, 14.0)
    for index in range(3):
        watch.received(progress(index), 16.0 + 2 * index)
    watch.received(READY, 20.0)
    return watch


def test_start_can_take_long_but_has_a_limit() -> None:
    watch = StallWatch(0.0, PATIENCE)
    assert watch.overdue(100.0) is None
    assert "starting, but silent for 101 s; the limit is 100 s" in str(watch.overdue(101.0))


def test_trainer_that_owes_no_answer_can_be_silent(watch: StallWatch) -> None:
    assert watch.overdue(1e6) is None


def test_lease_without_progress_is_noticed_after_twenty_usual_step_times(watch: StallWatch) -> None:
    watch.sent(LEASE, 1000.0)
    watch.received(progress(), 1002.0)
    assert watch.overdue(1042.0) is None
    assert "training, but silent for 41 s" in str(watch.overdue(1043.0))


def test_after_its_last_block_the_trainer_still_owes_a_report(watch: StallWatch) -> None:
    watch.sent(LEASE, 1000.0)
    for index in range(3):
        watch.received(progress(index), 1001.0 + index)
    assert watch.overdue(1100.0) is not None
    watch.received(READY, 1100.5)
    assert watch.overdue(9999.0) is None


AHEAD = frames.Train(0, ("d", "e"), 3, ahead=True)


def test_trainer_that_trained_ahead_can_wait_for_the_others(watch: StallWatch) -> None:
    watch.sent(AHEAD, 1000.0)
    watch.received(progress(3), 1002.0)
    assert watch.overdue(1043.0) is not None, "it is still training"
    watch.received(progress(4), 1044.0)
    assert watch.overdue(9999.0) is None
    watch.sent(frames.Merge(1), 10_000.0)
    watch.sent(frames.Train(1, (), 5), 10_000.0)
    assert watch.overdue(10_999.0) is not None, "its report is due"


def test_rebase_while_training_ahead_makes_a_report_due(watch: StallWatch) -> None:
    watch.sent(AHEAD, 1000.0)
    watch.sent(frames.Rebase(1), 1000.5)
    watch.sent(frames.Train(1, (), 5), 1000.5)
    for index in (3, 4):
        watch.received(progress(index), 1000.0 + index)
    assert watch.overdue(1999.0) is not None
    watch.received(READY, 2000.0)
    assert watch.overdue(9999.0) is None


def test_ready_trainer_is_watched_from_the_moment_it_gets_a_new_order(
    watch: StallWatch,
) -> None:
    """After a skipped outer step, the trainer first reports its earlier work again, and only then
    reads the new order."""
    watch.sent(frames.Rebase(1), 1000.0)
    watch.sent(frames.Train(1, ("d", "e"), 3), 1000.0)
    watch.received(READY, 1000.5)
    assert watch.overdue(1999.0) is not None
    for index in (3, 4):
        watch.received(progress(index), 1000.0 + index)
    assert watch.overdue(1999.0) is not None, "its report is due"
    watch.received(READY, 2000.0)
    assert watch.overdue(9999.0) is None


def test_change_of_theta_makes_the_report_due_again(watch: StallWatch) -> None:
    watch.sent(frames.Rebase(1), 1000.0)
    assert watch.overdue(1999.0) is not None
    watch.received(READY, 2000.0)
    assert watch.overdue(9999.0) is None


def test_evaluation_gets_time_for_its_blocks(watch: StallWatch) -> None:
    watch.sent(frames.Evaluate(1, ("v",) * 50), 1000.0)
    assert watch.overdue(1240.0) is None
    assert watch.overdue(1241.0) is not None
    watch.received(frames.Evaluated(1, 2.0, 10), 1300.0)
    assert watch.overdue(9999.0) is None


def test_sample_gets_time_for_its_tokens(watch: StallWatch) -> None:
    watch.sent(frames.Evaluate(0, ("v",)), 1000.0)
    watch.sent(frames.Generate(0, ((1,),), 50, 3.0), 1000.0)
    watch.received(frames.Evaluated(0, 2.0, 10), 1000.0)
    assert watch.overdue(1240.0) is None
    assert watch.overdue(1241.0) is not None
    watch.received(frames.Generated(0, ((),)), 1300.0)
    assert watch.overdue(9999.0) is None


def test_compiled_model_gets_compile_time_at_its_first_evaluation() -> None:
    watch, limits = StallWatch(0.0, PATIENCE, StepCost(compiled=True)), []
    watch.received(HELLO, 5.0)
    watch.sent(LEASE, 6.0)
    watch.received(progress(0), 100.0)
    watch.received(progress(1), 102.0)
    for request in range(2):
        watch.sent(frames.Evaluate(request, ("v",)), 110.0)
        limits.append(watch.limit_s)
        watch.received(frames.Evaluated(request, 2.0, 10), 160.0)
    assert limits == [20 * 2.0 + 2 * 2.0 + 100, 20 * 2.0 + 2 * 2.0]


@pytest.mark.parametrize("order", [frames.Load(1), frames.Merge(1)], ids=["load", "merge"])
def test_step_after_load_or_merge_gets_time_for_optimizer_state(
    order: frames.Load | frames.Merge,
) -> None:
    watch = StallWatch(0.0, PATIENCE)
    watch.received(replace(HELLO, parameters=10**9), 5.0)
    watch.sent(frames.Train(0, ("a", "b"), 0), 6.0)
    watch.received(progress(0), 90.0)
    watch.received(progress(1), 92.0)
    watch.received(READY, 95.0)
    watch.sent(order, 1000.0)
    watch.sent(LEASE, 1000.0)
    assert watch.overdue(1120.0) is None, "20 steps of 2 s, and 80 s for 8 GB"
    assert watch.overdue(1121.0) is not None
    watch.received(progress(), 1060.0)
    assert watch.limit_s == 20 * 2.0, "the next step does not read or write a state"


@pytest.mark.parametrize(
    ("order", "failed"),
    [
        (LEASE, frames.Failed("NAN", "the loss is nan")),
        (frames.Evaluate(7, ("v",)), frames.Failed("DATA", "gone", 7)),
    ],
)
def test_failure_counts_as_an_answer(
    watch: StallWatch, order: frames.Train | frames.Evaluate, failed: frames.Failed
) -> None:
    watch.sent(order, 1000.0)
    watch.received(failed, 1001.0)
    assert watch.overdue(9999.0) is None


A100 = replace(HELLO, device="NVIDIA A100-SXM4-80GB")
COST = StepCost(312e12 * 120 * 0.4, bf16=True)
"""The cost of a step that takes two minutes on an A100 that reaches 40 % of its peak, which is 312
TFLOP/s. Blocks of two million tokens take about that long."""


def test_first_step_may_be_as_slow_as_the_lowest_expected_mfu() -> None:
    watch = StallWatch(0.0, PATIENCE, COST)
    assert watch.overdue(101.0) is not None, "the longer limit does not apply to the start"
    watch.received(A100, 50.0)
    watch.sent(LEASE, 60.0)
    assert watch.overdue(60.0 + 100 + 8 * 120) is None
    assert watch.overdue(60.0 + 101 + 8 * 120) is not None


def test_device_is_slower_in_fp32_than_in_bf16() -> None:
    """In fp32 an A100 does 19.5 TFLOP/s, a sixteenth of its rate in bf16."""
    step = StepCost(COST.flops)
    assert step.slowest_s("NVIDIA A100-SXM4-80GB", 1) > 2 * step.flops / 19.5e12
    assert step.slowest_s("NVIDIA A100-SXM4-80GB", 2) == step.slowest_s("Another", 1) / 2


def test_slow_first_step_does_not_excuse_later_silence() -> None:
    """The first step took two minutes, because CUDA was loaded, ranks were connected and the model
    was compiled. The next step took two seconds."""
    watch = StallWatch(0.0, PATIENCE, COST)
    watch.received(A100, 50.0)
    watch.sent(LEASE, 60.0)
    watch.received(progress(0), 180.0)
    assert watch.limit_s == 100 + 8 * 120, "as far as is known, the second step may be as slow"
    watch.received(progress(1), 182.0)
    assert watch.limit_s == 20 * 2.0


def test_evaluation_before_the_first_step_gets_enough_time() -> None:
    """The node asks for the loss of the run's first θ on eight blocks, before the trainer's pace is
    known."""
    watch = StallWatch(0.0, PATIENCE, COST)
    watch.received(A100, 5.0)
    watch.sent(LEASE, 10.0)
    watch.sent(frames.Evaluate(1, ("v",) * 8), 10.0)
    assert watch.overdue(10.0 + 8 * 120) is None


@pytest.mark.parametrize("device", ["cpu", "A device of next year"])
def test_unknown_devices_get_enough_time_too(device: str) -> None:
    watch = StallWatch(0.0, PATIENCE, StepCost(2e13))
    watch.received(replace(HELLO, device=device), 5.0)
    watch.sent(LEASE, 10.0)
    assert watch.limit_s > PATIENCE.start_limit_s


def test_fast_steps_have_a_minimum_limit() -> None:
    watch = StallWatch(0.0, PATIENCE)
    watch.received(HELLO, 1.0)
    watch.sent(LEASE, 2.0)
    watch.received(progress(0), 2.00)
    watch.received(progress(1), 2.01)
    assert watch.overdue(12.0) is None
    assert watch.overdue(12.1) is not None


def test_node_that_was_suspended_does_not_blame_the_trainer(
    watch: StallWatch,
) -> None:
    """The node was stopped or did not get a core, so it has not read the trainer's frames."""
    watch.sent(LEASE, 1000.0)
    watch.received(progress(), 1002.0)
    assert watch.check_overdue(1003.0) is None
    for now in range(1060, 1091, 5):
        assert watch.check_overdue(now) is None
    assert "silent for 41 s" in str(watch.check_overdue(1095.0)), (
        "only the time since the node resumed counts"
    )


def test_restarts_are_limited_and_forgotten_after_a_while() -> None:
    budget = RestartBudget(restarts_max=2, window_s=60.0)
    granted = [budget.spend(now, useful=True) for now in (0.0, 10.0, 20.0, 59.0)]
    assert granted == [True, True, False, False]
    assert budget.spend(60.0, useful=True)
    assert not budget.spend(61.0, useful=True)


@pytest.mark.parametrize("apart_s", [130.0, 181.0, 1e5])
def test_node_gives_up_on_trainers_that_never_offer_work(
    apart_s: float,
) -> None:
    budget = RestartBudget()
    granted = [budget.spend(apart_s * each, useful=False) for each in range(1, 101)]
    assert granted == [True] * 5 + [False] * 95


def test_node_keeps_restarting_a_trainer_that_sometimes_offers_work() -> None:
    budget = RestartBudget()
    granted = [budget.spend(200.0 * each, useful=each % 4 == 0) for each in range(1, 101)]
    assert all(granted)
