"""A message reaches a web hook and a program, and neither can hold the sender for long."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path

import psutil
import pytest

from p2ptrain.notify import sending
from p2ptrain.notify.messages import Message, inert
from p2ptrain.notify.sending import send
from p2ptrain.notify.targets import Target
from tests.notify.made import NOW, RUN, message, program, served

SECRET = "a secret of some length"


def sent(to: str, told: Message, *, secret: str = "", deadline_s: float = 60) -> str:
    target = Target("one", to, ("stalled",), secret)
    return send(target, told, machine="tower", run=RUN, deadline_s=deadline_s)


def test_hook_gets_json_that_is_signed() -> None:
    with served() as server:
        assert sent(server.url("/hook?to=me"), message(7), secret=SECRET) == ""
    ((path, headers, body),) = server.got
    assert (path, headers["content-type"]) == ("/hook?to=me", "application/json")
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["x-p2ptrain-signature"] == f"sha256={digest}"
    assert json.loads(body) == {
        "schema": 1,
        "id": "0000000000000007",
        "time": NOW,
        "cause": "stalled",
        "machine": "tower",
        "run": RUN,
        "text": "This node waits.",
        "left_out": 0,
    }


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (204, ""),
        (302, "the server answers with status 302, a redirect; give the URL where it leads"),
        (500, "the server answers with status 500"),
    ],
)
def test_answer_decides_and_redirects_are_not_followed(status: int, fault: str) -> None:
    with served() as server:
        server.status = status
        assert sent(server.url(), message()) == fault
    assert len(server.got) == 1
    assert "x-p2ptrain-signature" not in server.got[0][1]


def test_server_without_an_answer_is_left_at_the_deadline() -> None:
    with served() as server:
        server.status = 0
        assert sent(server.url(), message(), deadline_s=2) == "no answer within 2 s"
        running = [each.cmdline() for each in psutil.Process().children()]
        assert [each for each in running if "p2ptrain.notify.request" in each] == []


def test_server_that_is_down_is_a_fault_in_words() -> None:
    with served() as server:
        url = server.url()
    assert sent(url, message()) == "Connection refused"


def test_topic_of_ntfy_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as server:
        monkeypatch.setattr(sending, "NTFY", server.url(""))
        assert sent("ntfy:my_topic", message()) == ""
    ((path, headers, body),) = server.got
    assert (path, headers["title"], body) == (
        "/my_topic",
        "p2ptrain: stalled",
        b"tower: This node waits.",
    )


def test_program_gets_the_text_and_no_shell(tmp_path: Path) -> None:
    got = tmp_path / "got"
    to = program(tmp_path, f"#!/bin/sh\necho $# > {got}\ncat >> {got}\n")
    told = Message("1", NOW, "stalled", inert("$(touch /tmp/x) \x1b[31m\u202e; a\nb"), 2)
    assert sent(to, told) == ""
    assert got.read_text() == (
        "0\ntower: $(touch /tmp/x) ·[31m·; a·b (2 earlier messages were left out.)\n"
    )


def test_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """The program and its child keep a pipe open. The pipe ends when both have ended."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reading:
        to = program(tmp_path, f"#!/bin/sh\nexec 3>{pipe}\nsleep 1000 &\nwait\n")
        assert sent(to, message(), deadline_s=5) == "no answer within 5 s"
        os.set_blocking(reading.fileno(), True)
        assert reading.read() == b""


def test_program_that_fails_or_is_missing_is_a_fault_in_words(tmp_path: Path) -> None:
    assert sent(program(tmp_path, "#!/bin/sh\nexit 3\n"), message()) == "it ended with status 3"
    said = sent(f"cmd:{tmp_path}/missing", message())
    assert said == "it cannot be started: No such file or directory"


def test_text_from_peers_is_bounded_and_inert() -> None:
    text = inert("<b>\r\nX: y\x00\u200f" + "a" * 10_000)
    assert text.startswith("<b>··X: y··aaa")
    assert len(text) == 600
    assert text.isprintable()
