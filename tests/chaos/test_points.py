"""The table of the points at which a node can be stopped, and the gate that stops the node."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.harness.gate import Gate
from tests.chaos.harness.points import DEEDS, Point, Role, Side, all_points

APPLY = Point(Side.BEFORE, "apply")
PATIENCE_S = 60.0


@contextmanager
def gate() -> Iterator[tuple[Gate, socket.socket]]:
    """Yield a gate and the harness's end of its connection."""
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with ours, theirs:
        yield Gate(theirs), ours
        ours.shutdown(socket.SHUT_RDWR)


def never() -> bool:
    return False


def always() -> bool:
    return True


def heard(line: socket.socket, count: int) -> list[str]:
    text = b""
    while text.count(b"\n") < count:
        text += line.recv(1 << 12)
    return text.decode().splitlines()


def test_every_action_has_a_unique_name_and_a_point_before_and_after_it() -> None:
    points = [str(point) for point in all_points()]
    assert len(set(points)) == len(points) == 2 * len(DEEDS)
    assert [Point.parse(text) for text in points] == list(all_points())


def test_every_action_has_a_role_that_performs_it() -> None:
    assert all(deed.roles for deed in DEEDS)
    assert {deed.name for deed in DEEDS if deed.later_round} == {
        "send-prepare",
        "write-promise",
        "send-promise",
    }


@pytest.mark.parametrize("text", ["before:lunch", "during:apply", "apply", ""])
def test_malformed_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Point.parse(text)


def test_each_point_is_reported_once_for_each_role() -> None:
    with gate() as (node, line):
        for leads in (never, never, always):
            with node.passing("apply", leads):
                pass
        assert heard(line, 4) == [
            "passed before:apply other",
            "passed after:apply other",
            "passed before:apply proposer",
            "passed after:apply proposer",
        ]


def test_failed_action_does_not_pass_the_point_after_it() -> None:
    with gate() as (node, line):
        with pytest.raises(OSError), node.passing("apply", never):
            raise OSError
        node.come_by(Point(Side.AFTER, "gather"), never)
        assert heard(line, 2) == ["passed before:apply other", "passed after:gather other"]


def test_armed_node_stops_at_the_point_in_that_role_until_released() -> None:
    with gate() as (node, line):
        line.sendall(b"arm before:apply proposer\n")
        while node.armed is None:
            pass
        node.come_by(APPLY, never)
        walker = threading.Thread(target=node.come_by, args=(APPLY, always))
        walker.start()
        assert heard(line, 3)[-1] == "at before:apply"
        assert walker.is_alive()
        line.sendall(b"go\n")
        walker.join(PATIENCE_S)
        assert not walker.is_alive()
        node.come_by(APPLY, always)


def test_closing_the_connection_releases_a_stopped_node() -> None:
    with gate() as (node, line):
        line.sendall(b"arm before:apply other\n")
        while node.armed is None:
            pass
        walker = threading.Thread(target=node.come_by, args=(APPLY, never))
        walker.start()
        heard(line, 2)
        line.shutdown(socket.SHUT_WR)
        walker.join(PATIENCE_S)
        assert not walker.is_alive()


def test_roles_are_named_proposer_and_other() -> None:
    assert [str(role) for role in Role] == ["proposer", "other"]
