"""Decide whether a request may be answered, and add the headers that protect the page.

The server listens on loopback, but every web page in the user's browser can send requests there.
Two attacks matter. With DNS rebinding, a foreign name resolves to 127.0.0.1, so that a foreign page
may read the answers: its requests have a foreign Host. A foreign page may also send requests whose
answers it cannot read: browsers mark them by Origin or Sec-Fetch-Site. Both are refused.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-p2ptrain-token"
METHODS = {"GET", "HEAD", "POST"}
OWN_SITES = {"same-origin", "none"}
"""The values of Sec-Fetch-Site of a request by our own page, or by the user who typed its URL."""

HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def refusal(scope: Scope, token: str) -> tuple[int, str] | None:
    """Return the status and reason with which a request is refused; None if it is allowed."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(hosts[0]):
        return 403, "this page is only served under the name localhost or a loopback address"
    if scope["method"] not in METHODS:
        return 405, "this method is not supported"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{hosts[0]}":
        return 403, "requests by other web pages are refused"
    opens_page = scope["path"] == "/" and scope["method"] != "POST"
    if headers.get("sec-fetch-site", "none") not in OWN_SITES and not opens_page:
        return 403, "requests by other web pages are refused"
    if scope["method"] == "POST":
        return _refused_action(headers, token)
    return None


def _refused_action(headers: Headers, token: str) -> tuple[int, str] | None:
    if headers.get("origin") is None:
        return 403, "an action needs the header Origin, which browsers send"
    given = headers.get(TOKEN_HEADER, "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return 401, "an action needs the token: open the page with `p2ptrain open`"
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return 415, "the body of an action is JSON"
    return None


def is_loopback(host: str) -> bool:
    """Return whether the value of a Host header names this machine. The port may be any: the page
    may be reached through a tunnel."""
    name = host.lower()
    if name.startswith("["):
        name, bracket, port = name[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return False
        port = port[1:]
    else:
        name, _, port = name.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return False
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware that refuses requests, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, *, token: str, content_policy: str) -> None:
        self._app = app
        self._token = token
        self._headers = {**HEADERS, "content-security-policy": content_policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = refusal(scope, self._token)
        app = self._app if refused is None else _refusal_response(*refused)
        await app(scope, receive, send_with_headers)


def _refusal_response(status: int, reason: str) -> PlainTextResponse:
    return PlainTextResponse(reason + "\n", status, headers={"connection": "close"})
