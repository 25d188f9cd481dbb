"""The help of each command appears quickly, explains every option, and ends with examples."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from p2ptrain.cli.command_table import COMMANDS
from p2ptrain.cli.main import app_for, main

app = app_for()

SLOW = {"torch", "libp2p", "trio", "numpy", "cryptography", "msgpack", "rich"}

PROGRAM = """
import sys
from p2ptrain.cli.main import main
code = main(sys.argv[1:])
print("modules", len(sys.modules), *(name for name in sys.modules if "." not in name))
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--help"], SLOW | {"pydantic"}),
        # Typer imports pydantic to check the type of an option. This takes 20 ms.
        (["node", "--help"], SLOW),
        (["run", "publish", "--help"], SLOW),
    ],
)
def test_help_does_not_import_slow_modules(words: list[str], slow: set[str]) -> None:
    count, modules = imported(words)
    assert slow.isdisjoint(modules)
    assert count < 400, "the help imports too many modules; each takes about 0.2 ms"


def imported(words: list[str], status: int = 0) -> tuple[int, list[str]]:
    """Run a command in a process of its own, and return the number of modules that it imports, and
    the names of the packages."""
    program = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    _, count, *modules = done.stdout.splitlines()[-1].split()
    return int(count), modules


@pytest.mark.parametrize(
    ("words", "status", "slow"),
    [
        (["--help"], 0, SLOW | {"pydantic"}),
        (["explain", "NET-REFUSED"], 0, SLOW | {"pydantic"}),
        (["status", "--home"], 75, SLOW | {"pydantic"}),
        (["id", "--json", "--home"], 0, SLOW - {"cryptography"} | {"pydantic"}),
    ],
)
def test_frequent_commands_import_little(
    words: list[str], status: int, slow: set[str], tmp_path: Path
) -> None:
    """They take 0.12 to 0.16 s of processor time. They took up to 0.44 s before."""
    count, modules = imported([*words, *[str(tmp_path)] * (words[-1] == "--home")], status)
    assert slow.isdisjoint(modules)
    assert count < 260


def test_lines_of_commands_that_are_not_loaded_are_those_of_their_help() -> None:
    lines = {each.name: each.line for each in COMMANDS}
    loaded = typer.main.get_command(app)
    assert isinstance(loaded, typer.core.TyperGroup)
    helps = {name: (each.help or "").partition("\n\n")[0] for name, each in loaded.commands.items()}
    assert {name: text.replace("\n", " ") for name, text in helps.items()} == lines
    shown = typer.main.get_command(app_for(""))
    assert isinstance(shown, typer.core.TyperGroup)
    assert list(shown.commands) == list(loaded.commands)


@pytest.mark.parametrize(
    "words",
    [["id", "--home"], ["status", "--wrong"], ["explain", "A", "B"]],
)
def test_wrong_arguments_of_frequent_commands_are_explained(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.rstrip()


def pages() -> list[list[str]]:
    found: list[list[str]] = [[]]
    found += [[command.name or ""] for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        assert group.name is not None
        found.append([group.name])
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            found.append([group.name, command.name or command.callback.__name__.strip("_")])
    return found


@pytest.mark.parametrize("words", pages(), ids=" ".join)
def test_every_page_ends_with_examples_of_its_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    text, _, shown = capsys.readouterr().out.partition("Examples:\n")
    assert "Usage: p2ptrain" in text
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert 1 <= len(lines) <= 4
    assert all(line.startswith(" ".join(["p2ptrain", *words])) for line in lines)


def test_every_option_is_explained() -> None:
    def silent(command: Any, words: str) -> list[str]:
        found = [
            f"{words} {each.opts[0]}"
            for each in command.params
            if each.opts[0].startswith("-") and not each.help
        ]
        for name, below in getattr(command, "commands", {}).items():
            found += silent(below, f"{words} {name}")
        return found

    assert silent(typer.main.get_command(app), "p2ptrain") == []


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("p2ptrain 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nod"], "Did you mean 'node'?"),
        (["node", "--bootsrap", "x"], "--bootsrap"),
        (["node", "--ranks", "many"], "--ranks"),
        (["run", "publish"], "RUN.TOML"),
        (["explain", "A", "B"], "B"),
    ],
)
def test_usage_error_exits_with_status_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    written = capsys.readouterr()
    assert said in written.err
    assert written.out == ""


@pytest.mark.parametrize("words", [["status", "--hmoe", "x"], ["ckpt", "nonsense"]])
def test_usage_error_is_also_reported_as_json(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 2
    written = capsys.readouterr()
    error = json.loads(written.out)["error"]
    assert error["code"] == "USAGE"
    assert words[1] in error["what"]
    assert words[1] in written.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_output_is_valid_on_any_terminal(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bare, encoding))
    assert main(["run", "check", "grün😀.toml", "--json"]) == 2
    assert "grün😀.toml" in json.loads(bare.getvalue())["error"]["what"]


def test_missing_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    written = capsys.readouterr()
    assert "Commands:" in written.out + written.err
