"""If several journals report a loss for the same step, the loss over the most data blocks
counts."""

from __future__ import annotations

from p2ptrain.testing.node_process import losses_of


def evaluated(step: int, loss: float, blocks: int) -> dict[str, object]:
    return {"event": "evaluated", "step": step, "loss": loss, "blocks": blocks}


def test_loss_measured_over_the_most_blocks_counts_for_each_step() -> None:
    events = [
        evaluated(4, 5.0, 3),
        evaluated(2, 6.0, 8),
        {"event": "not-evaluated", "step": 0, "loss": None, "blocks": 0},
        evaluated(4, 5.5, 8),
        evaluated(4, 5.1, 5),
    ]
    assert losses_of(events) == {2: 6.0, 4: 5.5}
    assert list(losses_of(reversed(events))) == [2, 4]
    assert losses_of([]) == {}
