"""`p2ptrain open` prints the URL of a page that is served now, with its token."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.private_file import write_new
from tests.cli.conftest import Command

TOKEN = "00112233445566778899aabbccddeeff"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Home]:
    """Return a home whose page is served at port 4290, as far as its files tell."""
    home = Home(tmp_path)
    write_new(home.page_token, TOKEN.encode())
    with home.page.open("w") as file:
        file.write(json.dumps({"port": 4290, "pid": 1}))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield home


def test_url_has_the_token_in_its_fragment(page: Home, p2ptrain: Command) -> None:
    done = p2ptrain("open", "--no-browser", "--home", page.root)
    assert done.out == f"http://127.0.0.1:4290/#token={TOKEN}\n"
    assert p2ptrain("open", "--no-browser", "--json", "--home", page.root).code == 0


def test_browser_gets_a_private_file_instead_of_the_token(
    page: Home, p2ptrain: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    assert p2ptrain("open", "--browser", "--home", page.root).code == 0
    opened = page.root / "open.html"
    assert seen.read_text() == opened.as_uri()
    assert opened.stat().st_mode & 0o777 == 0o600
    assert TOKEN in opened.read_text()


def test_page_that_is_not_served_is_not_opened(p2ptrain: Command, tmp_path: Path) -> None:
    """Another program may have the port by now, so the token must not be sent there."""
    home = Home(tmp_path)
    write_new(home.page_token, TOKEN.encode())
    home.page.write_text(json.dumps({"port": 4290}))
    done = p2ptrain("open", "--home", tmp_path)
    assert done.code == 75
    assert "PAGE-NONE" in done.err
    assert TOKEN not in done.out + done.err


def test_token_that_others_can_read_is_refused(page: Home, p2ptrain: Command) -> None:
    page.page_token.chmod(0o644)
    done = p2ptrain("open", "--home", page.root)
    assert done.code == 2
    assert "PAGE-TOKEN" in done.err
