"""`p2ptrain track` copies each outer step once, across restarts and crashes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.cli.history import opened_series
from p2ptrain.cli.tracking.copying import copy_for_ever, copy_new
from p2ptrain.cli.tracking.run_loggers import package
from p2ptrain.cli.tracking.targets import JsonLines, TensorBoard, open_target, to_aim, to_wandb
from p2ptrain.errors import ConfigError, MachineUnfit
from p2ptrain.observe.series import StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from tests.cli.conftest import Command
from tests.cli.watching.made import NOW, STEPS, made_steps, write_series

RUN = "ab" * 32


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    write_series(home, RUN)
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def copied(home: Path, target: Any, first: int = 0, *, now: float = NOW) -> int:
    with opened_series(home) as reader:
        return copy_new(reader, target, first, now)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_settled_steps_are_copied_once(home: Path, folder: Path) -> None:
    target = JsonLines(folder)
    assert (copied(home, target), copied(home, target)) == (STEPS - 2, 0)
    assert copied(home, target, now=NOW + 1000) == 2
    target.close()
    found = lines(folder)
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert (found[0]["schema"], found[0]["loss"], len(found[0]["peers"])) == (1, 5.9, 3)
    assert {row["peer_name"] for row in found[0]["peers"]} > {"sunny-koala"}


def test_restart_continues_after_a_torn_line(home: Path, folder: Path) -> None:
    target = JsonLines(folder)
    copied(home, target)
    target.close()
    file = folder / "steps.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    again = JsonLines(folder)
    assert again.newest == STEPS - 3
    assert copied(home, again, first=5) == 1
    again.close()
    assert [row["step"] for row in lines(folder)] == list(range(1, STEPS - 1))


def test_first_step_can_be_chosen(home: Path, folder: Path) -> None:
    target = JsonLines(folder)
    assert copied(home, target, first=20, now=NOW + 100) == STEPS - 19
    target.close()


def test_file_of_another_program_is_not_touched(folder: Path) -> None:
    (folder / "steps.jsonl").write_text("dear diary\n")
    with pytest.raises(ConfigError, match="not an outer step"):
        JsonLines(folder)
    assert (folder / "steps.jsonl").read_text() == "dear diary\n"


@dataclass
class Writer:
    """A stand-in for tensorboardX's writer."""

    folder: Path
    purge_step: int | None
    scalars: list[tuple[str, float, int, float]] = field(default_factory=list)
    flushed: int = 0
    closed: bool = False

    def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None:
        self.scalars.append((tag, value, step, walltime))

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed = True


def test_tensorboard_gets_scalars_and_discards_what_a_crash_left(home: Path, folder: Path) -> None:
    made = list[Writer]()

    def make(where: Path, purge_step: int | None) -> Writer:
        made.append(Writer(where, purge_step))
        return made[-1]

    target = TensorBoard(folder, make)
    assert copied(home, target) == STEPS - 2
    target.write(made_steps()[-2], ())  # A crash comes before the flush.
    first = made_steps()[0]
    assert made[0].purge_step is None
    assert made[0].scalars[:2] == [
        ("loss/train", first.loss, 1, first.time),
        ("loss/held_out", first.held_out, 1, first.time),
    ]
    assert made[0].flushed == 1
    again = TensorBoard(folder, make)
    assert (again.newest, made[1].purge_step) == (STEPS - 2, STEPS - 1)
    again.close()
    assert made[1].closed


@dataclass
class FakeRun:
    """A stand-in for a run of wandb or of aim."""

    given: dict[str, Any]
    id: str = "blue-sky-7"
    hash: str = "c0ffee"
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    closed: bool = False

    def log(self, values: dict[str, float], step: int) -> None:
        self.steps[step] = values

    def track(self, value: float, name: str, step: int) -> None:
        self.steps.setdefault(step, {})[name] = value

    def finish(self) -> None:
        self.closed = True

    close = finish


@dataclass
class FakePackage:
    """A stand-in for the package wandb or aim. It keeps the runs that were opened."""

    runs: list[FakeRun] = field(default_factory=list)

    def init(self, **given: Any) -> FakeRun:
        self.runs.append(FakeRun(given))
        return self.runs[-1]

    Run = init

    def Settings(self, **given: Any) -> dict[str, Any]:
        return given


@pytest.mark.parametrize(
    ("open_it", "local", "after_a_crash", "later"),
    [
        (to_wandb, {"mode": "offline", "resume": None}, {"id": None}, {"id": "blue-sky-7"}),
        (to_aim, {"system_tracking_interval": None}, *[{"run_hash": "c0ffee"}] * 2),
    ],
)
def test_logged_run_is_local_and_whole_after_a_crash(
    home: Path,
    folder: Path,
    open_it: Any,
    local: dict[str, Any],
    after_a_crash: dict[str, str | None],
    later: dict[str, str],
) -> None:
    made = FakePackage()
    crashed = open_it(folder, made)
    assert copied(home, crashed) == STEPS - 2
    [first] = made.runs
    assert first.given.items() >= local.items()
    assert str(folder) in (first.given.get("dir"), first.given.get("repo"))
    assert list(first.steps) == list(range(1, STEPS - 1))
    step = made_steps()[0]
    assert first.steps[1].items() >= {
        ("loss/train", step.loss),
        ("run/tokens_total", step.tokens_total),
        ("run/time", step.time),
    }
    again = open_it(folder, made)  # After a crash, nobody knows which steps are on the disk.
    assert made.runs[1].given.items() >= after_a_crash.items()
    assert copied(home, again) == STEPS - 2
    again.close()
    assert (made.runs[1].steps, made.runs[1].closed) == (first.steps, True)
    last = open_it(folder, made)
    assert made.runs[2].given.items() >= later.items()
    assert (last.newest, copied(home, last)) == (STEPS - 2, 0)
    assert copied(home, last, now=NOW + 1000) == 2
    last.close()
    assert list(made.runs[2].steps) == [STEPS - 1, STEPS]


def test_folders_that_a_crash_left_are_removed_for_this_run_only(folder: Path) -> None:
    made = FakePackage()
    to_wandb(folder, made)
    kept, left = (folder / "wandb" / f"offline-run-1-{name}" for name in ("other", "blue-sky-7"))
    for each in (kept, left):
        each.mkdir(parents=True)
    to_wandb(folder, made)
    assert (kept.exists(), left.exists()) == (True, False)


def test_wandb_learns_nothing_about_this_machine(folder: Path) -> None:
    made = FakePackage()
    to_wandb(folder, made).close()
    settings = made.runs[0].given["settings"]
    assert settings.items() >= {"host": "", "console": "off", "x_disable_meta": True}.items()

    def refuse(**given: Any) -> None:
        raise ValueError("Extra inputs are not permitted")

    made.Settings = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(MachineUnfit, match="not supported") as caught:
        to_wandb(folder, made)
    assert caught.value.code == "TRACK-PACKAGE"


def test_missing_package_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(MachineUnfit, match="no_such_tracker is not installed") as caught:
        package("no_such_tracker")
    assert (caught.value.code, "pip install no_such_tracker" in caught.value.do) == (
        "TRACK-PACKAGE",
        True,
    )


def test_folder_belongs_to_one_run(folder: Path) -> None:
    open_target("jsonl", folder, RUN).close()
    open_target("jsonl", folder, RUN).close()
    with pytest.raises(ConfigError, match="another run"):
        open_target("jsonl", folder, "cd" * 32)
    with pytest.raises(ConfigError, match="there is no target"):
        open_target("csv", folder, RUN)
    with pytest.raises(ConfigError, match="cannot be written"):
        open_target("jsonl", folder / "steps.jsonl" / "below", RUN)


def test_tracker_follows_the_run_until_interrupted(home: Path, folder: Path) -> None:
    target, counts = JsonLines(folder), list[int]()
    pauses = iter(range(2))

    def rest(seconds: float) -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt
        writer = SeriesWriter(home / "series.db", RUN)
        writer.write([StepRow(STEPS + len(counts), time=NOW)])
        writer.close()

    with pytest.raises(KeyboardInterrupt):
        copy_for_ever(home, target, 0, now=lambda: NOW, rest=rest, copied=counts.append)
    target.close()
    assert sum(counts) == len(lines(folder)) == STEPS


def test_command_copies_once_and_reports(
    p2ptrain: Command, organiser_home: Path, folder: Path
) -> None:
    none = p2ptrain("track", folder, "--once", "--home", organiser_home)
    assert (none.code, "SERIES" in none.err) == (4, True)
    from p2ptrain.run import load_run

    run = load_run(organiser_home / "run" / "manifest.signed")
    assert run is not None
    write_series(organiser_home, run.id)
    done = p2ptrain("track", folder, "--once", "--home", organiser_home, "--json")
    assert done.json == {"schema": 1, "run": run.id, "copied": STEPS - 2, "newest_step": STEPS - 2}
    assert "copied 28 outer steps, up to step 28" in done.err
    again = p2ptrain("track", folder, "--once", "--home", organiser_home, "--json")
    assert again.json["copied"] == 0
    shutil.rmtree(folder)
