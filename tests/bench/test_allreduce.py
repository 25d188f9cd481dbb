"""The all-reduce benchmark: what it reports, with vectors small enough for a test."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import pytest

from p2ptrain.bench.all_reduce.averaging import AverageMeasured, AverageSetting
from p2ptrain.bench.all_reduce.beside import ContenderRun
from p2ptrain.bench.all_reduce.comparison import (
    AllreduceOutcome,
    AllreduceReport,
    measure,
    settings_of,
    together_of,
)
from p2ptrain.bench.lines import CORES, LOAD
from p2ptrain.bench.processes import Host, ProcessFailed, together
from p2ptrain.cli.main import main


def measured(
    seconds: tuple[float, ...], digest: str = "a", sent_bytes: int = 100
) -> AverageMeasured:
    return AverageMeasured(seconds, seconds, sent_bytes, digest)


def in_two_seconds(setting: AverageSetting, hosts: Sequence[Host]) -> AllreduceOutcome:
    return AllreduceOutcome(2.0, 1.0, 1.0)


def drawn(report: AllreduceReport) -> list[tuple[object, ...]]:
    """Return the fields of a report that a plot uses."""
    names = ("what", "peers", "elements")
    return [tuple(line.details[name] for name in names) for line in report.lines if line.details]


def test_command_reports_times_bytes_and_comparisons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--peers", "2", "--elements", "20000", "--schedules", "direct", "--encryption", "none"]
    once = ["--repeats", "1", "--rounds", "1", "--against", "none", "--json"]
    assert main(["bench", "allreduce", *words, *once]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = [json.loads(line) for line in said.out.splitlines()]
    (point,) = [line for line in lines if "what" in line]
    assert (point["what"], point["peers"], point["elements"], point["rounds_s"]) == (
        "direct int8 plaintext",
        2,
        20_000,
        [point["value"]],
    )
    name = "direct, int8, plaintext, 2 peers, 20,000 elements, 1 streams"
    assert [(line["measure"], line["unit"]) for line in lines] == [
        (name, "s"),
        (name, "CPU s"),
        (name, "×"),
        (CORES, "cores"),
        (f"{LOAD}, before", "processes"),
        (f"{LOAD}, after", "processes"),
    ]
    assert all(line["value"] > 0 for line in lines[:4])
    assert lines[2]["value"] == pytest.approx(1 + 4 / 256, rel=0.02)


def test_repeat_takes_as_long_as_its_slowest_peer() -> None:
    setting = AverageSetting(peers=2, elements=100)
    both = [measured((1.0, 5.0, 2.0)), measured((3.0, 1.0, 2.5), sent_bytes=110)]
    assert together_of(setting, both) == AllreduceOutcome(3.0, 4.5, 1.1)


def test_peers_with_different_means_give_no_result() -> None:
    with pytest.raises(AssertionError):
        together_of(
            AverageSetting(peers=2, elements=100), [measured((1.0,)), measured((1.0,), "b")]
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--against", "mpi"), ("--addresses", "10.0.0.1"), ("--addresses", "n;o/10.0.0.1")),
        *(("--addresses", "localhost"), ("--elements", "many"), ("--schedules", "star")),
        *(
            ("--codecs", "int3"),
            ("--encryption", "rot13"),
            ("--peers", "two"),
            ("--streams", "1,65"),
        ),
    ],
)
def test_wrong_option_of_the_benchmark_is_explained(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "allreduce", option, value]) == 2
    told = capsys.readouterr().err
    assert "the measurement cannot run" in told
    assert "invalid literal" not in told  # Python's own message does not help a user.


def test_bad_link_needs_one_number_of_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "allreduce", "--bad-link", "25", "--peers", "4,8"]) == 2
    assert "needs one value of --peers and one of --elements" in capsys.readouterr().err


def test_every_combination_is_a_setting() -> None:
    made = settings_of([2, 4], [10, 20], ["ring", "grid"], ["int8"], ["none", "tls"], [1], 1)
    assert len(set(made)) == len(made) == 16
    assert [line.unit for line in measure([], 1).lines] == ["cores", "processes", "processes"]


def test_peer_can_run_in_a_network_namespace() -> None:
    assert Host.parse("10.77.0.1").command(["x"]) == ["x"]
    assert Host.parse("wan0/10.77.0.1") == Host("10.77.0.1", "wan0")
    assert Host.parse("wan0/10.77.0.1").command(["x"]) == ["ip", "netns", "exec", "wan0", "x"]


def test_each_peer_runs_at_its_address() -> None:
    setting = AverageSetting(peers=2, elements=5000, encrypted=False, repeats=1)
    report = measure([setting], 1, against=(), hosts=[Host("127.0.0.2"), Host("127.0.0.3")])
    assert drawn(report) == [("ring int8 plaintext", 2, 5000)]


@pytest.mark.needs_torch
def test_other_libraries_are_measured_once_a_round_and_compared_by_size() -> None:
    seconds = iter([4.0, 8.0, 6.0])
    asked: list[tuple[int, int, int]] = []

    def other(hosts: Sequence[Host], elements: int, repeats: int) -> float:
        asked.append((len(hosts), elements, repeats))
        return next(seconds)

    both = [AverageSetting(peers=2, elements=10, schedule=each) for each in ("ring", "direct")]
    report = measure(both, 3, run=in_two_seconds, contenders=partial(ContenderRun, gloo=other))
    assert asked == [(2, 10, 5)] * 3
    ratios = [
        (line.measure[:6], line.value) for line in report.lines if line.against == "gloo fp32"
    ]
    assert ratios == [("ring, ", 3.0), ("direct", 3.0)]
    (gloo,) = [line for line in report.lines if line.details.get("what") == "gloo fp32"]
    assert (gloo.value, gloo.details["rounds_s"]) == (6.0, [4.0, 8.0, 6.0])


@pytest.mark.needs_torch
def test_failed_contender_is_reported_and_not_tried_again() -> None:
    asked: list[int] = []

    def fails(hosts: Sequence[Host], elements: int, repeats: int) -> float:
        asked.append(elements)
        raise ProcessFailed("its daemon does not start")

    def no_environment(packages: Sequence[str]) -> AbstractContextManager[str]:
        raise ProcessFailed("pip: no internet")

    report = measure(
        [AverageSetting(peers=2, elements=10)],
        3,
        against=("gloo", "hivemind"),
        run=in_two_seconds,
        contenders=partial(ContenderRun, gloo=fails, environment=no_environment),
    )
    assert asked == [10]
    assert report.missing == {
        "gloo fp32": "its daemon does not start",
        "hivemind": "it cannot be installed: pip: no internet",
    }
    assert drawn(report) == [("ring int8 TLS", 2, 10)]


def test_failed_process_is_reported_with_its_last_output() -> None:
    words = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(ProcessFailed, match="no such thing"):
        together([words], quiet=True)


def test_bare_sockets_and_one_stream_are_measured_for_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--peers", "2", "--elements", "20000", "--encryption", "none", "--streams", "1,3"]
    once = ["--repeats", "2", "--rounds", "1", "--against", "sockets", "--json"]
    assert main(["bench", "allreduce", *words, *once]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["against"] for line in lines if line["unit"] == "× as fast as"] == [
        "bare sockets",
        "bare sockets",
        "over one stream",
    ]
    assert all(line["value"] > 0 for line in lines)
