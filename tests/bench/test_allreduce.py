"""The bench of the all-reduce: what it reports, for vectors small enough for a test."""

from __future__ import annotations

import json

import pytest

from p2ptrain.cli.main import main
from p2ptrain.testing.bench.allreduce import Outcome, measure, settings_of, together_of
from p2ptrain.testing.bench.averaging import Measured, Setting


def measured(seconds: tuple[float, ...], digest: str = "a", sent_bytes: int = 100) -> Measured:
    return Measured(seconds, seconds, sent_bytes, {}, digest)


def test_the_command_reports_times_bytes_and_how_it_compares(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--peers", "2", "--elements", "20000", "--schedules", "direct", "--encryption", "none"]
    once = ["--repeats", "1", "--rounds", "1", "--no-gloo", "--json"]
    assert main(["bench", "allreduce", *words, *once]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    name = "direct, int8, plaintext, 2 peers, 20,000 elements, 1 streams"
    assert [(line["measure"], line["unit"]) for line in lines] == [
        (name, "s"),
        (name, "CPU s"),
        (name, "×"),
    ]
    assert all(line["value"] > 0 for line in lines)
    assert lines[2]["value"] == pytest.approx(1 + 4 / 256, rel=0.02)


def test_a_repeat_takes_as_long_as_its_slowest_peer() -> None:
    setting = Setting(peers=2, elements=100)
    both = [measured((1.0, 5.0, 2.0)), measured((3.0, 1.0, 2.5), sent_bytes=110)]
    assert together_of(setting, both) == Outcome(3.0, 4.5, 1.1)


def test_peers_that_hold_different_means_are_no_result() -> None:
    with pytest.raises(AssertionError):
        together_of(Setting(peers=2, elements=100), [measured((1.0,)), measured((1.0,), "b")])


@pytest.mark.parametrize(
    ("option", "value"),
    [("--schedules", "star"), ("--codecs", "int3"), ("--encryption", "rot13"), ("--peers", "two")],
)
def test_what_cannot_be_measured_is_told(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "allreduce", option, value]) == 2
    assert "cannot be measured" in capsys.readouterr().err


def test_every_combination_is_a_setting() -> None:
    made = settings_of([2, 4], 10, ["ring", "grid"], ["int8"], ["none", "tls"], 1, 1)
    assert len(set(made)) == len(made) == 8
    assert measure([], 1) == []
