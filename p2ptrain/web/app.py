"""The web application: answer each path. `hub` has the data, and `guard` says who may ask."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from p2ptrain.archive.home import Home
from p2ptrain.web import charts
from p2ptrain.web.actions import act, refused
from p2ptrain.web.guard import Guard
from p2ptrain.web.history import Row
from p2ptrain.web.hub import Hub
from p2ptrain.web.page_file import Page
from p2ptrain.web.state import to_json
from p2ptrain.web.stream import EventStream
from p2ptrain.web.summary import metrics, run_text

LOOK_S = 1.5
"""Seconds for which a request waits for the node. After that, it gets the last known state."""

COMPRESSED_BYTES_MIN = 1024
SERIES_KEPT = 8
"""Maximum number of answers about the series in the cache: all readers ask for the same ones."""


def make_app(hub: Hub, home: Home, page: Page, token: str) -> ASGIApp:
    """Return the application."""
    answers = _Answers(hub, home, page)
    get: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/": answers.page,
        "/run.txt": answers.run_text,
        "/metrics": answers.metrics,
        "/api/v1/state": answers.state,
        "/api/v1/series": answers.series,
        "/api/v1/events": answers.events,
        "/api/v1/samples": answers.samples,
        "/api/v1/stream": answers.stream,
    }
    routes = [Route(path, answer, methods=["GET"]) for path, answer in get.items()]
    routes.append(Route("/api/v1/actions/{name}", answers.action, methods=["POST"]))
    return Guard(Starlette(routes=routes), token=token, content_policy=page.content_policy)


class _Answers:
    def __init__(self, hub: Hub, home: Home, page: Page) -> None:
        self._hub = hub
        self._home = home
        self._page = page
        self._series: dict[tuple[int, int, int], str] = {}

    async def page(self, request: Request) -> Response:
        tag = f'"{self._page.tag}"'
        headers = {"cache-control": "no-cache", "etag": tag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        body = self._page.body
        if _takes_gzip(request):
            body, headers["content-encoding"] = self._page.compressed, "gzip"
        return Response(body, media_type="text/html", headers=headers)

    async def state(self, request: Request) -> Response:
        found = await self._look()
        tag = f'"{found["serial"]}"'
        headers = {"cache-control": "no-cache", "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return _json(request, to_json(found), headers)

    async def series(self, request: Request) -> Response:
        first = _number(request, "from", 0, 1 << 53)
        points = _number(request, "points", charts.POINTS, charts.POINTS_MAX)
        if first is None or points is None:
            return refused(400, "from and points are whole numbers")
        key = (self._hub.history.version(), first, max(1, points))
        if key not in self._series:
            if len(self._series) >= SERIES_KEPT:
                self._series.clear()
            self._series[key] = to_json(
                {"serial": self._hub.serial, **charts.series(self._hub.history, first, key[2])}
            )
        return _json(request, self._series[key])

    async def events(self, request: Request) -> Response:
        # Events that members told have negative ids, and come after all others.
        before = _number(request, "before", 1 << 53, 1 << 53, signed=True)
        limit = _number(request, "limit", 100, charts.EVENTS_MAX)
        if before is None or limit is None:
            return refused(400, "before and limit are whole numbers")
        rows = self._hub.history.events(before, limit)
        return _json(request, to_json({"schema": 1, "events": [charts.event(row) for row in rows]}))

    async def samples(self, request: Request) -> Response:
        await self._look()
        found = charts.samples(self._hub.history, self._hub.facts.prompts)
        return _json(request, to_json(found))

    async def stream(self, request: Request) -> Response:
        client = self._hub.clients.enter()
        if client is None:
            return JSONResponse(
                {"error": "too many readers of the stream"},
                503,
                headers={"retry-after": "10", "connection": "close"},
            )
        try:
            await self._look()
            first = self._hub.first_event()
        except BaseException:  # Also if the request is cancelled here.
            self._hub.clients.leave(client)
            raise
        return EventStream(
            client, first, compressed=_takes_gzip(request), leave=self._hub.clients.leave
        )

    async def run_text(self, request: Request) -> Response:
        return PlainTextResponse(run_text(await self._look()))

    async def metrics(self, request: Request) -> Response:
        kind = "text/plain; version=0.0.4"
        return PlainTextResponse(metrics(await self._look()), media_type=kind)

    async def action(self, request: Request) -> Response:
        return await act(self._home.control, request.path_params["name"], request)

    async def _look(self) -> Row:
        with trio.move_on_after(LOOK_S):
            await self._hub.look()
        return self._hub.state()


def _number(
    request: Request, name: str, usual: int, most: int, *, signed: bool = False
) -> int | None:
    """Return a number of the query, limited to `most`; None if it is malformed."""
    given = request.query_params.get(name)
    if given is None:
        return usual
    digits = given.removeprefix("-") if signed else given
    valid = digits.isascii() and digits.isdigit() and len(digits) < 20
    return max(-most, min(int(given), most)) if valid else None


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _json(request: Request, text: str, headers: dict[str, str] | None = None) -> Response:
    body, told = text.encode(), {"vary": "accept-encoding", **(headers or {})}
    if len(body) >= COMPRESSED_BYTES_MIN and _takes_gzip(request):
        body, told["content-encoding"] = gzip.compress(body, 6, mtime=0), "gzip"
    return Response(body, media_type="application/json", headers=told)
