"""Query the node that runs in a home (the folder with a node's files), over a unix socket. Request
and reply are one line of JSON each.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from p2ptrain.archive.home import is_in_use
from p2ptrain.cli.output import progress
from p2ptrain.errors import P2PTrainError, RemoteProtocolError, TryLater, readable
from p2ptrain.suggested_command import to_paste

DEADLINE_S = 5.0
REPLY_BYTES_MAX = 4 * 2**20
REASON_CHARACTERS_MAX = 300
SOCKET_PATH_BYTES_MAX = 100
"""Longest socket path used directly; the kernel accepts 107. A longer path is reached through a
descriptor of its folder."""


def send_command(
    home: Path,
    command: str,
    *,
    deadline_s: float = DEADLINE_S,
    arguments: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return the reply of the node in `home` to `command` with these `arguments`.

    Raises:
        TryLater: NO-NODE, no node runs there; NODE-SILENT, the node does not answer in time or has
        no socket; NOT-YET, the node is still starting. RemoteProtocolError: the node refused, or
        its reply is malformed.
    """
    request = json.dumps({**(arguments or {}), "command": command}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as asker, _reachable(home / "control.sock") as path:
        asker.settimeout(deadline_s)
        try:
            asker.connect(path)
            asker.sendall(request)
            with asker.makefile("rb") as reply:
                line = reply.readline(REPLY_BYTES_MAX)
        except TimeoutError as exc:
            raise TryLater(
                f"the node in {home} has not answered for {deadline_s:.0f} s",
                code="NODE-SILENT",
                likely="the machine is very busy, or the node hangs",
                do="try again; if that does not help, stop the node and read its journal",
            ) from exc
        except OSError as exc:
            if is_in_use(home / "lock"):
                raise TryLater(
                    f"the process that uses {home} does not answer",
                    code="NODE-SILENT",
                    likely=(
                        "a node is starting or stopping, or another command is using that home"
                    ),
                    do="try again in a few seconds",
                ) from exc
            raise no_node(home) from exc
    return _parsed(home, line)


def no_node(home: Path) -> TryLater:
    """Return the error that says that no node runs in `home`, and why the last one ended."""
    from p2ptrain.archive.home import Home
    from p2ptrain.observe.journal import newest_records

    records = newest_records(Home(home, to_make=False).journal)
    start = f"start one: {to_paste(home, 'node --bootstrap ADDRESS')}"
    evidence, do = _last_end(records[-1], home, start) if records else ("", start)
    told = [evidence] if evidence else []
    return TryLater(f"no node is running in {home}", code="NO-NODE", evidence=told, do=do)


def _last_end(last: Mapping[str, object], home: Path, start: str) -> tuple[str, str]:
    """Say how the node ended whose last record in the journal is `last`, and what to do. `start`
    says how to start a node."""
    when, again = _when(last), f"start it again: {to_paste(home, 'node')}"
    if last["event"] != "stopped":
        killed = "it was killed, or the machine lost power: see whether memory ran out (dmesg)"
        said = f"{when} the last node here wrote its last line, without a reason"
        return said, f"{killed}, then {again}"
    code, reason = str(last.get("code", "")), str(last.get("reason", ""))
    if not code:
        return f"{when} the last node here was stopped by its user", start
    said = f"{when} the last node here ended: [{code}] {reason[:REASON_CHARACTERS_MAX]}"
    return said, f"p2ptrain explain {code} says what to do; then {again}"


def _when(record: Mapping[str, object]) -> str:
    """Return the local date and time of a record of the journal."""
    at = record.get("time")
    if not isinstance(at, int | float):
        return "at an unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def notify(home: Path, command: str, *, without_node: str) -> None:
    """Send `command` to the node in `home`. If no node is running there, print `without_node`. If
    the node cannot be notified, print the reason.
    """
    try:
        send_command(home, command)
    except P2PTrainError as error:
        if error.code == "NO-NODE":
            progress(without_node)
        else:
            progress(f"the node in this home could not be notified: {error.what}")


def _parsed(home: Path, line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except ValueError as exc:
        raise RemoteProtocolError(f"the node's reply is not JSON: {readable(line)}") from exc
    if not isinstance(reply, dict):
        raise RemoteProtocolError("the node's reply is not an object")
    if reply.get("code") == "NOT-YET":
        raise TryLater(
            str(reply.get("error", "")),
            code="NOT-YET",
            do=f"{to_paste(home, 'status')} shows its progress",
        )
    if "error" in reply:
        raise RemoteProtocolError(f"the node refused: {reply['error']}")
    return reply


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield str(path)[:SOCKET_PATH_BYTES_MAX]  # There is no socket here, so connecting fails.
        return
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
