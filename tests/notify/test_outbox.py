"""Messages to a target are few, in order, and counted if they are not sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.notify.outbox import EACH_S, QUEUE_MAX, RETRY_S, Outbox
from p2ptrain.notify.targets import CAUSES
from tests.notify.made import NOW, message


def sent(box: Outbox, now: float, fault: str = "") -> int | None:
    """Try to send what is due. Return the number of messages it says were left out."""
    due = box.due(now)
    if due is None:
        return None
    box.tried(fault, now)
    return due.left_out


def test_cause_is_told_once_in_ten_minutes() -> None:
    box = Outbox()
    told = [box.offer(message(each), NOW + each) for each in (0, 1, int(EACH_S) - 1, int(EACH_S))]
    assert told == [True, False, False, True]
    assert box.offer(message(5, "disk"), NOW + 2)
    assert [sent(box, NOW), sent(box, NOW), sent(box, NOW), sent(box, NOW)] == [2, 0, 0, None]
    assert (box.sent, box.limited, box.dropped) == (3, 2, 0)


def test_message_is_tried_again_and_then_dropped() -> None:
    box = Outbox()
    box.offer(message(1), NOW)
    box.offer(message(2, "disk"), NOW)
    now = NOW
    for pause_s in RETRY_S:
        assert sent(box, now, "refused") == 0
        assert box.due(now + pause_s - 1) is None
        now += pause_s
    assert sent(box, now, "refused") == 0
    assert (box.dropped, box.fault, len(box)) == (1, "refused", 1)
    assert sent(box, now) == 1
    assert (box.sent, box.fault, sent(box, now)) == (1, "", None)


def test_queue_is_bounded() -> None:
    box = Outbox()
    took = [box.offer(message(each), NOW + each * EACH_S) for each in range(QUEUE_MAX + 3)]
    assert (took.count(True), len(box), box.dropped) == (QUEUE_MAX, QUEUE_MAX, 3)


def test_clock_that_was_set_back_does_not_silence_a_target() -> None:
    box = Outbox()
    box.offer(message(1), NOW)
    box.tried("refused", NOW)
    box.offer(message(2), NOW - 86_400)
    assert box.due(NOW - 86_400) is not None
    assert len(box) == 2


def test_restart_remembers_counts_and_limits() -> None:
    box = Outbox()
    box.offer(message(1), NOW)
    box.offer(message(2), NOW)
    again = Outbox.from_json(box.to_json())
    assert not again.offer(message(3), NOW + 1)
    assert (again.limited, again.dropped, again.untold) == (2, 1, 3)


def test_damaged_state_counts_as_absent() -> None:
    damaged: tuple[object, ...] = (
        None,
        [],
        {"sent": -1, "last": 3},
        {"sent": "x", "last": {"disk": "x"}},
    )
    for tree in damaged:
        assert Outbox.from_json(tree) == Outbox()


@given(
    st.lists(
        st.tuples(st.sampled_from(CAUSES), st.floats(0, 400), st.sampled_from(["", "refused"])),
        max_size=200,
    )
)
def test_every_message_is_sent_waiting_or_counted(
    days: list[tuple[str, float, str]],
) -> None:
    box, now, told = Outbox(), NOW, dict[str, float]()
    for number, (cause, pause_s, fault) in enumerate(days):
        now += pause_s
        if box.offer(message(number, cause), now):
            assert now - told.get(cause, 0) >= EACH_S
            told[cause] = now
        sent(box, now, fault)
        assert len(box) <= QUEUE_MAX
    assert box.sent + box.limited + box.dropped + len(box) == len(days)
