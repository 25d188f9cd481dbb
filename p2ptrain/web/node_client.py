"""Ask the node a question over its control socket. A question and its answer are one line of JSON.

This module does not know what the questions mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from p2ptrain.errors import TryLater

DEADLINE_S = 5.0
REPLY_BYTES_MAX = 4 * 2**20
SOCKET_PATH_BYTES_MAX = 100
"""Longest socket path used directly; the kernel accepts 107."""

Reply = dict[str, object]


async def ask(
    socket: Path, command: str, details: Mapping[str, object] | None = None, *, within_s: float = 0
) -> Reply:
    """Return the node's answer; it may be a refusal, with an `error`.

    Raises TryLater: the node does not answer within `within_s` (5 s by default), or answers with
    something other than an object.
    """
    request = json.dumps({**(details or {}), "command": command}).encode() + b"\n"
    try:
        with trio.fail_after(within_s or DEADLINE_S):
            async with _reachable(socket) as path, await trio.open_unix_socket(path) as stream:
                await stream.send_all(request)
                reply = json.loads(await _line(stream))
    except (OSError, ValueError, RecursionError, trio.BrokenResourceError) as exc:
        raise TryLater("the node does not answer", code="NODE-SILENT") from exc
    except trio.TooSlowError as exc:
        raise TryLater("the node does not answer in time", code="NODE-SILENT") from exc
    if not isinstance(reply, dict):
        raise TryLater("the node's answer is not an object", code="NODE-SILENT")
    return reply


async def _line(stream: trio.SocketStream) -> bytes:
    received = bytearray()
    while b"\n" not in received:
        piece = await stream.receive_some()
        if not piece:
            break
        received += piece
        if len(received) > REPLY_BYTES_MAX:
            raise ValueError("the reply is too long")
    return bytes(received)


@asynccontextmanager
async def _reachable(path: Path) -> AsyncIterator[str]:
    """Return a path of the socket that is short enough for the kernel."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
