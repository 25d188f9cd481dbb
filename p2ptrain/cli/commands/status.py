"""`p2ptrain status`, `p2ptrain id` and `p2ptrain explain`: information for the user."""

from __future__ import annotations

import difflib
import time
from typing import Annotated

import typer

from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.error_codes import CODES
from p2ptrain.cli.homes import HomeOption, home_path, open_home
from p2ptrain.cli.output import JsonOption, examples, result, result_json, result_or_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError

STATUS_EXAMPLES = examples(
    "p2ptrain status",
    "p2ptrain status --why",
    "p2ptrain status --home /srv/seed --json",
)
ID_EXAMPLES = examples("p2ptrain id", "p2ptrain id --home /srv/seed --json")
EXPLAIN_EXAMPLES = examples("p2ptrain explain NET-REFUSED", "p2ptrain explain")


def status(
    home: HomeOption = None,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Show only what the node waits for: for whom, since when, until when."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the node is doing, and the run's progress."""
    reply = send_command(home_path(home), "status")
    if why:
        _explain_wait(reply, as_json=as_json)
        return
    if as_json:
        result_json(reply)
        return
    from p2ptrain.observe.status import NodeStatus, status_lines

    for line in status_lines(NodeStatus.from_json(reply)):
        result(printable(line))


def _explain_wait(reply: dict[str, object], *, as_json: bool) -> None:
    from p2ptrain.observe.status import NodeStatus
    from p2ptrain.observe.why import why_json, why_lines

    found = NodeStatus.from_json(reply)
    if as_json:
        result_json(why_json(found))
        return
    for line in why_lines(found, time.time()):
        result(printable(line))


def identity(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show this node's peer id.

    The organiser needs the id to admit you. The first call creates the key from which the id is
    computed.
    """
    from p2ptrain.identity import load_or_create
    from p2ptrain.names import peer_name

    known = (home_path(home) / "identity.key").is_file()
    peer = load_or_create(open_home(home, to_write=not known, to_make=True).identity).peer
    result_or_json(peer, {"peer": peer, "peer_name": peer_name(peer)}, as_json=as_json)


def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="Error code, such as NET-REFUSED.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain an error code, and say what to do.

    Without a code, list all codes.
    """
    if code is None:
        if as_json:
            result_json({"codes": dict(sorted(CODES.items()))})
            return
        for each, text in sorted(CODES.items()):
            result(f"{each:<18} {text.partition('. ')[0].removesuffix('.')}.")
        return
    wanted = code.upper()
    if wanted not in CODES:
        near = difflib.get_close_matches(wanted, CODES, n=3)
        raise ConfigError(
            f"there is no error code {printable(code)[:40]!r}",
            code="CODE-UNKNOWN",
            do=f"did you mean {' or '.join(near)}?" if near else "p2ptrain explain lists all codes",
        )
    facts = {"codes": {wanted: CODES[wanted]}}
    result_or_json(f"{wanted}: {CODES[wanted]}", facts, as_json=as_json)
