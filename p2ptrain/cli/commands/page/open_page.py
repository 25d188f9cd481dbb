"""`p2ptrain open`: show the page of the node in this home, with the token that actions need."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.output import JsonOption, examples, result_or_json
from p2ptrain.errors import ConfigError, TryLater
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home

EXAMPLES = examples("p2ptrain open", "p2ptrain open --no-browser --home /srv/seed")

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
FILE_BYTES_MAX = 1000

BrowserOption = Annotated[
    bool | None,
    typer.Option(
        "--browser/--no-browser",
        help="Open the page in a browser.",
        show_default="if there is a display",
    ),
]


def open_page(
    home: HomeOption = None, browser: BrowserOption = None, as_json: JsonOption = False
) -> None:
    """Show the node's page in a browser.

    Print its URL first.

    The URL contains a secret: anybody who knows it and can connect to this machine's loopback
    address can pause the node. For the page of another machine, forward its port first: ssh -L
    4280:127.0.0.1:4280 MACHINE.
    """
    from p2ptrain.archive.home import Home

    where = Home(home_path(home), to_make=False)
    url = url_of(where)
    result_or_json(url, {"url": url}, as_json=as_json)
    if browser if browser is not None else _has_display():
        _show(url, where.root)


def url_of(where: Home) -> str:
    """Return the URL of the page, with its token.

    Raises:
        TryLater: no page is served there now. ConfigError: other users can read the token.
    """
    from p2ptrain.archive.home import is_in_use
    from p2ptrain.private_file import read_private_file

    try:
        # A process that got the same port later does not hold this lock.
        served = (
            json.loads(where.page.read_text()[:FILE_BYTES_MAX]) if is_in_use(where.page) else {}
        )
        port = int(served["port"])
        token = read_private_file(
            where.page_token, FILE_BYTES_MAX, what="the page's token", code="PAGE-TOKEN"
        )
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise TryLater(
            f"no page is served from {where.root}",
            code="PAGE-NONE",
            likely="no node runs there, it starts just now, or it was started with --no-page",
            do=f"see whether it runs: {to_paste(where.root, 'status')}",
        ) from exc
    return f"http://127.0.0.1:{port}/#token={token.decode('ascii', 'replace').strip()}"


def _has_display() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(each) for each in DISPLAYS)


def _show(url: str, root: Path) -> None:
    """Open `url` in the user's browser. The browser gets a private file that leads there: other
    users of this machine can see the words of its command, and these must not contain the token."""
    import webbrowser

    path = root / "open.html"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">\n')
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}", code="HOME") from exc
    webbrowser.open(path.as_uri())
