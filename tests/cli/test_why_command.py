"""`p2ptrain status --why` answers without the parser, as the other frequent commands do."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command, fake_node
from tests.cli.watching.made import made_status, waiting


def test_why_is_printed_in_words_and_as_json(p2ptrain: Command, tmp_path: Path) -> None:
    reply = json.dumps(waiting(made_status(), 1).to_json()).encode() + b"\n"
    with fake_node(tmp_path, reply, reply, reply) as requests:
        shown = p2ptrain("status", "--why", "--home", tmp_path)
        told = p2ptrain("status", "--home", tmp_path, "--json", "--why").json
        plain = p2ptrain("status", "--home", tmp_path)
    assert shown.out.splitlines()[1] == "waits for     members are still training: swift-moose"
    assert (told["schema"], told["waiting"]["names"]) == (1, ["swift-moose"])
    assert "run       metagene-mini" in plain.out
    assert requests == [{"command": "status"}] * 3
