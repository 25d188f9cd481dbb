"""Pass the actions of the page's buttons on to the node. `guard` has checked the token."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from p2ptrain.errors import P2PTrainError
from p2ptrain.web import capped
from p2ptrain.web.history import Row
from p2ptrain.web.node_client import ask

ACTIONS = {
    "pause": "The node pauses.",
    "resume": "The node resumes.",
    "finish": "The node finishes this outer step, and then stops.",
    "limit": "The new limits apply.",
}
"""The actions. The page shows the sentence if the node's answer contains none."""

BODY_BYTES_MAX = 4096
BODY_S = 5.0
DETAILS_MAX = 16
ANSWER_S = 30.0


async def act(control: Path, name: str, request: Request) -> JSONResponse:
    """Carry out an action, and return the answer for the page."""
    if name not in ACTIONS:
        return refused(404, f"the actions are {', '.join(ACTIONS)}")
    details = details_in(await _body(request))
    if details is None:
        return refused(400, "the body is not a small JSON object of numbers, texts and booleans")
    try:
        reply = await ask(control, name, details, within_s=ANSWER_S)
    except P2PTrainError as exc:
        return refused(503, exc.what)
    if "error" in reply:
        return refused(409, capped.text(str(reply["error"])))
    said = reply.get("done")
    return JSONResponse({"done": capped.text(said) if isinstance(said, str) else ACTIONS[name]})


def refused(status: int, reason: str) -> JSONResponse:
    return JSONResponse({"error": reason}, status)


async def _body(request: Request) -> bytes:
    """Return the body; b"" if it is too long, or takes too long to arrive."""
    whole, body = b"", bytearray()
    with trio.move_on_after(BODY_S), suppress(ClientDisconnect):
        async for piece in request.stream():
            body += piece
            if len(body) > BODY_BYTES_MAX:
                return b""
        whole = bytes(body)
    return whole


def details_in(body: bytes) -> Row | None:
    """Return the object in `body`; None if it is not a small object of scalars."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or len(found) > DETAILS_MAX or "command" in found:
        return None
    scalars = all(isinstance(each, str | int | float | None) for each in found.values())
    return found if scalars else None
