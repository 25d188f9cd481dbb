"""Commands that control the running node send one order, and check it before they send it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.cli.commands.control.pause import seconds_until
from p2ptrain.errors import ConfigError
from tests.cli.conftest import Command, fake_node


def reply(**facts: object) -> bytes:
    return json.dumps({"done": "done as you asked", **facts}).encode() + b"\n"


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["pause"], {"command": "pause"}),
        (["pause", "--for", "2h"], {"command": "pause", "for_s": 7200}),
        (["resume"], {"command": "resume"}),
        (["finish"], {"command": "finish"}),
        (
            ["limit", "--up", "20Mbit", "--daily", "50GB", "--threads", "4"],
            {"command": "limit", "up": 2_500_000, "daily": 50 * 10**9, "threads": 4},
        ),
        (["limit", "--up", "off"], {"command": "limit", "up": None}),
        (["limit", "--gpu-mem", "10GB"], {"command": "limit", "gpu_mem": 10**10}),
        (
            ["schedule", "22:00-07:00, SAT 10:00-12:00"],
            {"command": "schedule", "windows": "22:00-07:00, sat 10:00-12:00"},
        ),
        (["schedule", "off"], {"command": "schedule", "windows": None}),
        (
            ["schedule", "--no-battery", "--busy-gpu", "--not-in-use"],
            {
                "command": "schedule",
                "on_battery": True,
                "when_gpu_busy": False,
                "when_in_use": True,
            },
        ),
    ],
)
def test_command_sends_its_order(
    p2ptrain: Command, tmp_path: Path, words: list[str], sent: dict[str, Any]
) -> None:
    with fake_node(tmp_path, reply(shown="up 20 Mbit/s")) as asked:
        done = p2ptrain(*words, "--home", tmp_path)
    assert (done.code, asked) == (0, [sent])
    assert "done as you asked" in done.out


def test_json_is_the_answer_of_the_node(p2ptrain: Command, tmp_path: Path) -> None:
    with fake_node(tmp_path, reply(paused="you paused it until 22:00", until=1.5)):
        done = p2ptrain("pause", "--for", "2h", "--json", "--home", tmp_path)
    told = done.json
    assert (told["paused"], told["until"]) == ("you paused it until 22:00", 1.5)


def test_limit_without_options_shows_the_limits(p2ptrain: Command, tmp_path: Path) -> None:
    with fake_node(tmp_path, reply(shown="")) as asked:
        done = p2ptrain("limit", "--home", tmp_path)
    assert (done.out, asked) == ("limits: none\n", [{"command": "limit"}])


@pytest.mark.parametrize(
    "words",
    [
        ["pause", "--for", "soon"],
        ["pause", "--for", "2h", "--until", "22:00"],
        ["pause", "--until", "25:00"],
        ["limit", "--up", "fast"],
        ["limit", "--up", "1bit"],
        ["limit", "--threads", "many"],
        ["limit", "--threads", "0"],
        ["schedule", "always"],
    ],
)
def test_wrong_value_is_refused_before_anything_is_sent(
    p2ptrain: Command, tmp_path: Path, words: list[str]
) -> None:
    assert p2ptrain(*words, "--home", tmp_path).code == 2


@pytest.mark.parametrize("command", ["pause", "resume", "finish", "limit", "schedule"])
def test_without_a_node_the_command_says_so(
    p2ptrain: Command, tmp_path: Path, command: str
) -> None:
    done = p2ptrain(command, "--home", tmp_path)
    assert done.code == 75
    assert "NO-NODE" in done.err


def test_answer_with_control_characters_is_shown_without_them(
    p2ptrain: Command, tmp_path: Path
) -> None:
    with fake_node(tmp_path, reply(done="a\x1b[2Jb")):
        assert "\x1b" not in p2ptrain("pause", "--home", tmp_path).out


NOON = datetime(2026, 11, 26, 12, 0, 30)


def test_time_without_a_date_is_the_next_one() -> None:
    assert seconds_until("22:00", NOON) == 10 * 3600 - 30
    assert seconds_until("8:30", NOON) == 20.5 * 3600 - 30
    assert seconds_until("2026-11-27 12:00", NOON) == 24 * 3600 - 30


@pytest.mark.parametrize("text", ["2026-11-26 12:00", "2026-13-01 12:00", "noon", "12:60", ""])
def test_past_or_malformed_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        seconds_until(text, NOON)
