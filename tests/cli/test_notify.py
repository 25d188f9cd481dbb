"""`p2ptrain notify` keeps targets in a private file, and tries them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.notify.targets import TARGETS_MAX
from tests.cli.conftest import Command
from tests.notify.made import program, served

SECRET = "a secret of some length"
ALL = "stalled,pending,ended,dropped,disk,loss-spike"


def test_target_is_added_listed_tried_and_removed(
    p2ptrain: Command, home: Home, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(f"{SECRET}\n")
    key.chmod(0o600)
    with served() as server:
        words = ("notify", "add", server.url("/token"), "--on", "stalled,disk", "--secret", key)
        added = p2ptrain(*words, "--home", home.root)
        assert (added.code, added.out) == (0, "127-0-0-1: http://127.0.0.1/… on stalled,disk\n")
        tried = p2ptrain("notify", "test", "--home", home.root)
    assert (tried.code, tried.out) == (0, "127-0-0-1: accepted\n")
    assert "x-p2ptrain-signature" in server.got[0][1]
    home.notify_state.write_text(
        json.dumps(
            {"targets": {"127-0-0-1": {"sent": 4, "limited": 2, "dropped": 1, "fault": "x"}}}
        )
    )
    listed = p2ptrain("notify", "ls", "--home", home.root)
    assert listed.out.splitlines()[1:] == [
        "  sent 4, too many 2, dropped 1",
        "  the last try failed: x",
    ]
    assert p2ptrain("notify", "ls", "--json", "--home", home.root).json == {
        "schema": 1,
        "name": "127-0-0-1",
        "to": "http://127.0.0.1/…",
        "on": ["stalled", "disk"],
        "sent": 4,
        "limited": 2,
        "dropped": 1,
        "signed": True,
        "fault": "x",
    }
    assert home.notify.stat().st_mode & 0o777 == 0o600
    assert p2ptrain("notify", "rm", "127-0-0-1", "--home", home.root).code == 0
    assert not home.notify.exists()
    assert "there is no target" in p2ptrain("notify", "ls", "--home", home.root).err


def test_fault_of_a_target_is_shown(p2ptrain: Command, home: Home, tmp_path: Path) -> None:
    to = program(tmp_path, "#!/bin/sh\nexit 3\n")
    assert p2ptrain("notify", "add", to, "--home", home.root).out == f"program: {to} on {ALL}\n"
    tried = p2ptrain("notify", "test", "program", "--home", home.root)
    assert (tried.code, tried.out) == (75, "program: it ended with status 3\n")
    assert "error[NOTIFY] 1 target did not accept the message" in tried.err


def test_names_are_made_and_targets_are_few(p2ptrain: Command, home: Home) -> None:
    for _ in range(TARGETS_MAX):
        assert p2ptrain("notify", "add", "ntfy:topic", "--home", home.root).code == 0
    full = p2ptrain("notify", "add", "ntfy:topic", "--home", home.root)
    assert (full.code, "there are 8 targets already" in full.err) == (2, True)
    names = [each["name"] for each in json.loads(home.notify.read_text())["targets"]]
    assert names == ["ntfy", *(f"ntfy-{number}" for number in range(2, TARGETS_MAX + 1))]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["file:///etc/passwd"], "the target is neither a URL"),
        (["ftp://example.org/"], "the target is neither a URL"),
        (["http://"], "the target is neither a URL"),
        (["http://[::1"], "the target is neither a URL"),
        (["https://:word@example.org/"], "the URL contains a user or a password"),
        (["https://example.org/\r\nX: y"], "characters that it cannot have"),
        (["ntfy:../x"], "the topic of ntfy is invalid"),
        (["cmd:/no/such/program"], "is no program that you can run"),
        (["cmd:ls -l"], "is no program that you can run"),
        (["ntfy:x", "--on", "stalled,rain"], "--on is 'stalled,rain'"),
        (["ntfy:x", "--on", ","], "--on is ''"),
        (["ntfy:x", "--name", "X Y"], "the name is 'X Y'"),
        (["ntfy:x", "--secret", "missing"], "missing cannot be read"),
    ],
)
def test_wrong_target_is_refused(
    p2ptrain: Command, home: Home, words: list[str], told: str
) -> None:
    refused = p2ptrain("notify", "add", *words, "--home", home.root)
    assert (refused.code, told in refused.err) == (2, True)
    assert "error[NOTIFY]" in refused.err
    assert not home.notify.exists()


def test_secret_is_private_long_enough_and_for_urls(
    p2ptrain: Command, home: Home, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("short")
    words = ("notify", "add", "https://example.org/", "--secret", key, "--home", home.root)
    assert "other users can read the secret" in p2ptrain(*words).err
    key.chmod(0o600)
    assert "the secret has 5 bytes" in p2ptrain(*words).err
    key.write_bytes(b"\xff" * 20)
    assert "is not text" in p2ptrain(*words).err
    key.write_bytes(b"\n")
    assert "is empty" in p2ptrain(*words).err
    key.write_text(SECRET)
    topic = ("notify", "add", "ntfy:x", "--secret", key, "--home", home.root)
    assert "only a URL can have a secret" in p2ptrain(*topic).err


@pytest.mark.parametrize("text", ["{}", "[", '{"targets": [{"name": 1, "to": 2, "on": []}]}'])
def test_damaged_file_is_refused(p2ptrain: Command, home: Home, text: str) -> None:
    home.notify.write_text(text)
    home.notify.chmod(0o600)
    shown = p2ptrain("notify", "ls", "--home", home.root)
    assert (shown.code, "is damaged or cannot be read" in shown.err) == (2, True)
