"""A check that hangs, crashes or cannot be loaded becomes a line, and the other checks go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from p2ptrain.doctor.finding import Finding, Tell, fault, good
from p2ptrain.doctor.runner import Check, run_checks
from p2ptrain.errors import ConfigError

PATIENT_S = 60.0
SHORT_S = 0.2


def found_by(
    *lanes: tuple[Check, ...], waited: list[str] | None = None, deadline_s: float = PATIENT_S
) -> list[Finding]:
    def waiting(check: Check) -> None:
        if waited is not None:
            waited.append(check.name)

    return list(run_checks(lanes, deadline_s=deadline_s, waiting=waiting))


def says(name: str) -> Check:
    return Check(name, name, lambda tell: tell(good(name, "fine")), PATIENT_S)


def raises(exc: Exception) -> Check:
    def check(tell: Tell) -> None:
        tell(good("disk", "half of it"))
        raise exc

    return Check("disk", "the disk", check, PATIENT_S)


@pytest.fixture
def hangs() -> Iterator[Callable[[float], Check]]:
    """Return a function that makes a check which hangs until the end of the test."""
    over = threading.Event()

    def hang(tell: Tell) -> None:
        tell(good("disk", "half of it"))
        over.wait()

    yield lambda deadline_s: Check("disk", "the disk", hang, deadline_s)
    over.set()


@pytest.mark.parametrize(
    ("exc", "code", "status", "said"),
    [
        (ZeroDivisionError("by zero"), "BUG", 1, "failed: ZeroDivisionError: by zero"),
        (ImportError("libgmp.so: not found"), "INSTALLATION", 4, "libgmp.so: not found"),
        (PermissionError(13, "Permission denied", "/srv"), "OS", 4, "/srv: Permission denied"),
        (ConfigError("wrong", code="HOME", do="mend it"), "HOME", 2, "wrong"),
    ],
)
def test_check_that_raises_becomes_a_fault(
    exc: Exception, code: str, status: int, said: str
) -> None:
    before, found, after = found_by((raises(exc), says("after")))
    assert before == good("disk", "half of it")
    assert (found.name, found.code, found.status) == ("disk", code, status)
    assert said in found.said
    assert found.fix
    assert after == good("after", "fine")


def test_check_that_hangs_becomes_a_fault_and_the_lane_goes_on(
    hangs: Callable[[float], Check],
) -> None:
    before, late, after, beside = found_by((hangs(SHORT_S), says("after")), (says("beside"),))
    assert before == good("disk", "half of it")
    assert (late.name, late.code, late.status) == ("disk", "CHECK-LATE", 4)
    assert "the check of the disk did not end" in late.said
    assert [after.name, beside.name] == ["after", "beside"]


def test_all_lanes_together_end_at_the_deadline(hangs: Callable[[float], Check]) -> None:
    found = found_by((hangs(PATIENT_S),), (hangs(PATIENT_S),), deadline_s=SHORT_S)
    assert [each.code for each in found] == ["", "CHECK-LATE"] * 2


def test_user_hears_which_check_takes_long(hangs: Callable[[float], Check]) -> None:
    waited: list[str] = []
    found_by((says("quick"), hangs(3.0)), waited=waited)
    assert waited == ["disk"]


def test_findings_come_in_the_order_of_the_list_whatever_ends_first() -> None:
    told = threading.Event()

    def wait(tell: Tell) -> None:
        assert told.wait(PATIENT_S)
        tell(good("slow", "fine"))

    def release(tell: Tell) -> None:
        tell(fault("fast", "bad", fix="mend it", code="OS"))
        told.set()

    slow, fast = (
        Check("slow", "a slow thing", wait, PATIENT_S),
        Check("fast", "a fast thing", release, PATIENT_S),
    )
    assert [each.name for each in found_by((slow,), (fast,))] == ["slow", "fast"]
