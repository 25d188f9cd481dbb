"""Serve the Unix socket in a node's directory, which receives the commands of the node's owner.

A request and its answer are one line of JSON each. Any process that can open the socket can control
the node; the permissions of the directory keep other users out. The socket exists as soon as the
node starts. Until the node has joined a run, `startup_status` answers.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from p2ptrain.errors import P2PTrainError
from p2ptrain.node.control.average_order import check_average
from p2ptrain.node.control.orders import ORDERS
from p2ptrain.node.control.status import brief_status, status
from p2ptrain.node.gossip.allowlist_gossip import admission_changed
from p2ptrain.node.gossip.allowlist_survey import newest_allowlist
from p2ptrain.node.gossip.amendment_gossip import amendments_changed
from p2ptrain.node.gossip.grant_gossip import grants_changed
from p2ptrain.node.gossip.hand_over_gossip import hand_overs_changed
from p2ptrain.node.joining.decisions import reload_denials
from p2ptrain.node.joining.hello_server import answer_requests, open_requests
from p2ptrain.node.joining.invitation import answer_invitation
from p2ptrain.node.joining.startup_status import Answer, Command, StartupStatus
from p2ptrain.node.state.context import Context

LINE_BYTES_MAX = 65_536
ANSWER_S = 120.0
"""Deadline in seconds for a command. Most take milliseconds. The check of a wrong average asks the
participants, with deadlines of its own."""


async def serve_commands(path: Path, reception: StartupStatus) -> None:
    """Listen at `path` until cancelled."""
    with suppress(FileNotFoundError):
        # Remove the socket of a killed node. We hold the directory's lock, so no other node runs.
        path.unlink()
    listener = await _bind(path)
    try:
        await trio.serve_listeners(lambda stream: _serve(reception, stream), [listener])
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


async def _bind(path: Path) -> trio.SocketListener:
    """Bind a socket at `path`. The kernel limits a socket's path to 107 bytes, so this uses a short
    path through the open directory."""
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            await sock.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        path.chmod(0o600)
        sock.listen(16)
    except BaseException:  # Also on cancellation: a node may fail to start and end at this moment.
        sock.close()
        raise
    return trio.SocketListener(sock)


async def _serve(reception: StartupStatus, stream: trio.SocketStream) -> None:
    with trio.move_on_after(ANSWER_S), suppress(trio.BrokenResourceError):
        async with stream:
            reply = await answer(reception, await _line(stream))
            await stream.send_all(json.dumps(reply).encode() + b"\n")


async def _line(stream: trio.SocketStream) -> bytes:
    received = bytearray()
    while b"\n" not in received and len(received) < LINE_BYTES_MAX:
        piece = await stream.receive_some()
        if not piece:
            break
        received += piece
    return bytes(received).partition(b"\n")[0]


async def answer(reception: StartupStatus, line: bytes) -> Answer:
    """Obey the command in `line`, and return the reply. It is an error if `line` is malformed or
    the command fails."""
    try:
        request = json.loads(line)
        name = request["command"]
        command = COMMANDS.get(name) or partial(ALL_ORDERS[name], request=request)
    except (ValueError, TypeError, KeyError, RecursionError):
        known = ", ".join((*COMMANDS, *ALL_ORDERS))
        return {"error": f"unknown command; the commands are {known}"}
    if name in STATUSES and reception.context is None:
        return reception.status().to_json()
    try:
        return await reception.obeyed(command)
    except P2PTrainError as exc:
        return {"error": exc.what, "code": exc.code}
    except OSError as exc:
        return {"error": f"{exc.filename}: {exc.strerror}", "code": "OS"}


async def _status(context: Context) -> Answer:
    return (await status(context)).to_json()


async def _brief_status(context: Context) -> Answer:
    return brief_status(context).to_json()


async def _reload_allowlist(context: Context) -> Answer:
    newer = context.admission.reload()
    if newer:
        await admission_changed(context)
    held = context.admission.allowlist
    return {"newer": newer, "sequence": held.allowlist.sequence if held else 0}


async def _reload_amendments(context: Context) -> Answer:
    newer = context.amendments.reload()
    if newer:
        await amendments_changed(context)
    state = context.ledger.snapshot
    agreed = [each.digest for each in state.terms]
    return {"newer": newer, "step": state.step, "agreed": agreed}


async def _reload_grants(context: Context) -> Answer:
    before = context.admission.grants
    newer = context.admission.reload_grants()
    if newer:
        await grants_changed(context, before)
    return {"newer": newer}


async def _reload_hand_overs(context: Context) -> Answer:
    newer = context.admission.reload_hand_overs()
    if newer:
        await hand_overs_changed(context)
    return {"newer": newer}


async def _pending_requests(context: Context) -> Answer:
    return {"pending": sorted(open_requests(context))}


async def _reload_denials(context: Context) -> Answer:
    return {"denials": reload_denials(context)}


async def _scrub(context: Context) -> Answer:
    context.blobs.ask_scrub()
    return {"asked": True}


STATUSES = {"status", "brief-status"}
"""The commands that are answered from the start of the node. The page uses the second one, which
never computes a digest."""

ALL_ORDERS = ORDERS | {"check-average": check_average}
"""The commands that take arguments."""

COMMANDS: dict[str, Command] = {
    "status": _status,
    "brief-status": _brief_status,
    "newest-allowlist": newest_allowlist,
    "reload-allowlist": _reload_allowlist,
    "reload-amendments": _reload_amendments,
    "reload-denials": _reload_denials,
    "reload-grants": _reload_grants,
    "reload-hand-overs": _reload_hand_overs,
    "pending": _pending_requests,
    "join-requests": answer_requests,
    "invitation": answer_invitation,
    "scrub": _scrub,
}
