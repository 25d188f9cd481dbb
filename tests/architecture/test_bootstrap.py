"""The commands in bootstrap/, the links in pages, and the scripts work in this version."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from p2ptrain.cli.commands import node
from p2ptrain.cli.main import main
from p2ptrain.config.node import NodeConfig
from tests.architecture.sources import ROOT

SEED = NodeConfig(
    home=Path("/var/lib/p2ptrain"),
    listen=("/ip4/0.0.0.0/tcp/4201",),
    data_host="0.0.0.0",
    data_port=4202,
    seed=True,
    assume_yes=True,
    port_mapping=True,
    page_port=4280,
)


def command_of_unit() -> list[str]:
    unit = (ROOT / "bootstrap" / "p2ptrain-seed.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, *words = shlex.split(line)
    assert program == "/opt/p2ptrain/.venv/bin/p2ptrain"
    return words


def command_of_container() -> list[str]:
    file = (ROOT / "bootstrap" / "Containerfile").read_text()
    (line,) = re.findall(r"^CMD (.*)$", file, re.MULTILINE)
    words = json.loads(line)
    assert isinstance(words, list)
    return words


@pytest.mark.parametrize("command", [command_of_unit, command_of_container])
def test_bootstrap_command_starts_a_seed(command: object, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[NodeConfig] = []

    def start(config: NodeConfig) -> int:
        started.append(config)
        return 0

    monkeypatch.setattr(node, "start", start)
    assert callable(command)
    assert main(command()) == 0
    assert started == [SEED]


def test_every_file_that_a_page_links_to_exists() -> None:
    pages = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "bootstrap/README.md",
    ]
    pages += [str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "decisions").glob("*.md")]
    for name in pages:
        links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text())
        missing = [link for link in links if not (ROOT / name).parent.joinpath(link).exists()]
        assert missing == []


def test_every_script_runs_from_anywhere_and_stops_at_the_first_error() -> None:
    scripts = [each for each in (ROOT / "scripts").iterdir() if each.is_file()]
    for script in [*scripts, ROOT / ".ci" / "run"]:
        text = script.read_text()
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "set -euo pipefail" in text
        assert "BASH_SOURCE" in text
        assert script.stat().st_mode & 0o111


PAGE_BYTES_MAX = 12_000
"""The maximum length of ARCHITECTURE.md. Details belong in the pages of docs/decisions."""


def test_architecture_page_is_short_and_the_index_lists_every_decision() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= PAGE_BYTES_MAX
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in pages if f"({name})" not in index] == []
    assert [name[:3] for name in pages] == [f"{number:03}" for number in range(1, len(pages) + 1)]
