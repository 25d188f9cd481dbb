"""A node prints one line for each outer step; a line leaves out what is not known."""

from __future__ import annotations

from p2ptrain.observe.step_line import Pace, StepLine


def test_line_shows_loss_rate_exchange_share_and_time_left() -> None:
    line = StepLine(
        step=435,
        steps=600,
        loss=2.381,
        held_out=2.36,
        tokens=31_000,
        own_tokens=15_000,
        seconds=1.5,
        exchange_s=0.12,
        peers=2,
        eta_s=840,
    )
    assert str(line) == (
        "step 435/600  loss 2.38 (held out 2.36)  21k tok/s  exchange 0.1 s, 2 peers  "
        "yours 15k of 31k  ETA 14 min"
    )


def test_line_leaves_out_what_is_unknown() -> None:
    assert str(StepLine(7, 600)) == "step 7/600"
    assert str(StepLine(7, 600, skipped=True)) == "step 7/600  skipped"
    seed = StepLine(7, 600, held_out=2.36, tokens=950, seconds=0.5, peers=1)
    assert str(seed) == "step 7/600  held out 2.36  1.9k tok/s  1 peer  950 tokens"


def test_replayed_step_shows_its_own_tokens() -> None:
    line = StepLine(7, 600, tokens=1_300_000, own_tokens=2_000, peers=2, left=12)
    told = "step 7/600  2 peers  yours 2.0k of 1.3M  catching up, 12 updates left"
    assert str(line) == told


def test_time_left_is_estimated_from_steps_that_were_followed_live() -> None:
    pace = Pace()
    replayed = [pace.note(step, float(step), replayed=True) for step in range(5)]
    assert replayed == [None] * 5
    live = [pace.note(step, 10.0 * step, replayed=False) for step in range(5, 8)]
    assert live == [None, 10.0, 10.0]
    assert pace.eta_s(3) is None
    assert pace.note(8, 110.0, replayed=False) == 40.0
    assert (pace.eta_s(3), pace.eta_s(0)) == (30.0, None)
    # The node missed two steps, so it cannot say how long one of them took.
    assert pace.note(11, 120.0, replayed=False) is None
