"""The last use of a machine follows from desktops and terminals. Without both, it is unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from p2ptrain.availability.activity import Desktop, desktops_in, is_in_use, used_at
from p2ptrain.availability.decision import Facts, decide
from p2ptrain.availability.wishes import Wishes
from p2ptrain.node.control.machine_facts import inputs_in

NOW = 1_800_000_000.0
ON_DESKTOP = {
    "Type": "wayland",
    "Class": "user",
    "State": "active",
    "IdleHint": "no",
    "IdleSinceHint": "0",
    "LockedHint": "no",
}


def session(**changes: str) -> str:
    return "".join(f"{name}={value}\n" for name, value in (ON_DESKTOP | changes).items())


@pytest.mark.parametrize(
    ("told", "desktops"),
    [
        (session(), [Desktop(None)]),
        (session(IdleHint="yes", IdleSinceHint="1799999000000000"), [Desktop(1_799_999_000.0)]),
        (session(LockedHint="yes"), [Desktop(0.0)]),
        (session(IdleHint="yes", IdleSinceHint="never"), [Desktop(0.0)]),
        (session(IdleHint="yes", IdleSinceHint="9" * 400), [Desktop(0.0)]),
        (session(Class="greeter"), []),
        (session(State="online"), []),
        (session(Type="tty"), []),
        (session(Type="x11") + "\n" + session(Class="manager"), [Desktop(None)]),
        ("", []),
        ("nonsense\n\n=\n", []),
    ],
)
def test_desktops_are_read_from_what_logind_tells(told: str, desktops: list[Desktop]) -> None:
    assert list(desktops_in(told)) == desktops


@pytest.mark.parametrize(
    ("desktops", "terminals", "used"),
    [
        ([], [], None),
        ([], [NOW - 50, NOW - 7], NOW - 7),
        ([Desktop(NOW - 900)], [], NOW - 900),
        ([Desktop(NOW - 900), Desktop(None)], [NOW - 7], NOW),
        ([Desktop(NOW - 900)], [NOW + 3600], NOW),
    ],
    ids=["nothing", "terminals", "idle desktop", "desktop in use", "clock was set back"],
)
def test_newest_use_counts(
    desktops: list[Desktop], terminals: list[float], used: float | None
) -> None:
    assert used_at(desktops, terminals, NOW) == used


def test_machine_is_in_use_for_ten_minutes_after_the_last_input() -> None:
    assert [is_in_use(used, NOW) for used in (NOW, NOW - 599, NOW - 600, 0.0, None)] == [
        *(True, True, False, False, False)
    ]


def test_node_does_not_pause_if_the_machine_does_not_tell_its_use() -> None:
    wishes = Wishes(when_in_use=True)
    assert decide(wishes, Facts(NOW)) is None
    assert decide(Wishes(), Facts(NOW, used_at=NOW)) is None


def test_terminals_are_read_without_the_devices_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    times = {"pts/0": 100, "pts/ptmx": 900, "tty": 900, "tty0": 900, "tty3": 200, "ttyS0": 900}
    for name, at in times.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, 950))
    assert sorted(inputs_in(tmp_path)) == [100, 200]
    assert inputs_in(tmp_path / "none") == []
