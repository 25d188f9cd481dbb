"""`p2ptrain service` writes a systemd user unit, or says what to do without systemd."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from p2ptrain.cli.commands.control.service import NO_RESTART, unit_path, unit_text
from p2ptrain.errors import ConfigError
from tests.cli.conftest import Command


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of user units. There is no systemctl in this test's PATH."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return tmp_path / "config" / "systemd" / "user"


def test_dry_run_prints_everything_and_writes_nothing(
    p2ptrain: Command, units: Path, tmp_path: Path
) -> None:
    home = tmp_path / "my node"
    done = p2ptrain(
        "service", "install", "--dry-run", "--home", home, "--", "--yes", "--limit-up", "20Mbit"
    )
    assert done.code == 0
    assert f"would write {units / 'p2ptrain.service'}:" in done.out
    command = f'{sys.executable} -m p2ptrain.cli node --home "{home}" --yes --limit-up 20Mbit'
    lines = done.out.splitlines()
    assert f"ExecStart={command}" in lines
    assert f"RestartPreventExitStatus={NO_RESTART}" in lines
    assert "KillMode=mixed" in lines
    assert "would run: systemctl --user enable --now p2ptrain.service" in lines
    assert not units.exists()


def test_without_systemd_the_error_names_another_way(
    p2ptrain: Command, units: Path, tmp_path: Path
) -> None:
    done = p2ptrain("service", "install", "--home", tmp_path / "home", "--", "--yes")
    assert done.code == 4
    assert "SERVICE-NONE" in done.err
    assert f"@reboot p2ptrain node --yes --home {tmp_path / 'home'}" in done.err
    assert not units.exists()


def test_node_that_nobody_agreed_to_is_not_installed(
    p2ptrain: Command, units: Path, tmp_path: Path
) -> None:
    done = p2ptrain("service", "install", "--dry-run", "--home", tmp_path)
    assert done.code == 2
    assert "once in a terminal" in done.err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "agreed").write_text("")
    assert p2ptrain("service", "install", "--dry-run", "--home", tmp_path).code == 0


def test_unit_of_another_program_is_left_alone(
    p2ptrain: Command, units: Path, tmp_path: Path
) -> None:
    units.mkdir(parents=True)
    path = units / "p2ptrain.service"
    path.write_text("[Unit]\n")
    assert p2ptrain("service", "remove", "--home", tmp_path).code == 2
    assert path.read_text() == "[Unit]\n"
    assert p2ptrain("service", "remove", "--name", "other", "--home", tmp_path).code == 2
    path.write_text(unit_text(tmp_path, []))
    done = p2ptrain("service", "remove", "--dry-run", "--home", tmp_path)
    assert done.out.splitlines() == [
        "would run: systemctl --user disable --now p2ptrain.service",
        f"would delete {path}",
        "would run: systemctl --user daemon-reload",
    ]
    assert path.exists()


def test_words_are_quoted_for_systemd(tmp_path: Path) -> None:
    text = unit_text(tmp_path, ["--note", 'a "b" $HOME 100 % \\', "--seed"])
    assert '--note "a \\"b\\" $$HOME 100 %% \\\\" --seed\n' in text
    with pytest.raises(ConfigError):
        unit_text(tmp_path, ["--note", "a\nExecStartPre=/bin/sh"])


@pytest.mark.parametrize("name", ["", "A", "../x", "a b", "x" * 50])
def test_invalid_unit_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        unit_path(name, {"XDG_CONFIG_HOME": "/nowhere"})
