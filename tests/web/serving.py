"""A page served in the test's own process: a home with a history, a node that is only a control
socket, and a client.
"""

from __future__ import annotations

import json
import socket
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from p2ptrain.archive.home import Home
from p2ptrain.identity import Identity
from p2ptrain.names import peer_name
from p2ptrain.observe.series.rows import EventRow, PeerStepRow, Row, StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.observe.status import MemberStatus, NodeStatus
from p2ptrain.web.app import make_app
from p2ptrain.web.hub import Hub
from p2ptrain.web.listener import bind, serve
from p2ptrain.web.page_file import load_page

TOKEN = "0123456789abcdef"
PEERS = tuple(Identity.from_seed(bytes([number]) * 32).peer for number in range(1, 4))
RUN = "ab" * 32


def status(**changes: Any) -> NodeStatus:
    members = tuple(
        MemberStatus(peer, peer_name(peer), "voter", "green", "training", 1000, 50.0, 0.123)
        for peer in PEERS
    )
    told: dict[str, Any] = {
        "peer": PEERS[0],
        "peer_name": peer_name(PEERS[0]),
        "state": "training (inner 3/10)",
        "state_name": "training",
        "run": RUN,
        "run_name": "demo",
        "outer_step": 5,
        "outer_steps": 600,
        "tokens": 1000,
        "tokens_total": 3000,
        "members": members,
        "addresses": ("/ip4/203.0.113.7/tcp/4201",),
    }
    return NodeStatus(**told | changes)


@dataclass
class FakeNode:
    """Answers on a control socket. `asked` are the requests."""

    says: NodeStatus = field(default_factory=status)
    asked: list[dict[str, object]] = field(default_factory=list)

    async def answer(self, stream: trio.SocketStream) -> None:
        request = json.loads(await stream.receive_some(65_536))
        self.asked.append(request)
        match request["command"]:
            case "brief-status":
                reply = self.says.to_json()
            case "invitation":
                reply = {"invitation": "p2ptrain:1abc", "warnings": []}
            case "pause":
                reply = {"done": "paused for 60 s"}
            case _:
                reply = {"error": "not now"}
        with suppress(trio.BrokenResourceError):  # The page's process may not wait for it.
            await stream.send_all(json.dumps(reply).encode() + b"\n")


def step_rows(step: int) -> list[Row]:
    """Return the rows of an outer step in which all peers took part."""
    return [
        StepRow(step, 1e9 + step, tokens=300, tokens_total=300 * step, loss=9 - step / 100),
        *(PeerStepRow(step, peer, tokens=100, train_ms=900) for peer in PEERS),
        EventRow(1e9 + step, step, "join", PEERS[1], "A peer joined."),
    ]


@dataclass
class Clock:
    """The clock of the hub, which a test can put forward."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@dataclass
class Served:
    """A served page."""

    clock: Clock
    home: Home
    node: FakeNode
    port: int
    hub: Hub
    writer: SeriesWriter

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def ask(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Make one request, and return the status, the headers and the body."""
        async with await self.connect() as stream:
            await stream.send_all(self.request(path, method, body, **headers))
            received = b"".join([piece async for piece in stream])
        return parsed(received)

    def request(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
        told = {"host": self.host, "connection": "close"}
        if body:
            told |= {"content-length": str(len(body)), "content-type": "application/json"}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def parsed(received: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
    return int(first.split()[1]), headers, body


@asynccontextmanager
async def served(
    folder: Path, nursery: trio.Nursery, *, connections_max: int = 96, send_s: float = 10.0
) -> AsyncIterator[Served]:
    """Serve the page of a home with five outer steps, until the nursery is cancelled."""
    home = Home(folder)
    writer = SeriesWriter(folder / "series.db", RUN)
    for step in range(1, 6):
        writer.write(step_rows(step))
    node = FakeNode()
    control = trio.socket.socket(socket.AF_UNIX)
    await control.bind(str(home.control))
    control.listen(16)
    listeners = [trio.SocketListener(control)]
    nursery.start_soon(trio.serve_listeners, node.answer, listeners)
    with bind("127.0.0.1", 0) as sock:
        clock = Clock()
        hub = Hub(home, clock)
        app = make_app(hub, home, load_page(), TOKEN)

        async def serve_it() -> None:
            await serve(app, sock, connections_max=connections_max, send_s=send_s)

        nursery.start_soon(serve_it)
        nursery.start_soon(hub.watch)
        try:
            yield Served(clock, home, node, int(sock.getsockname()[1]), hub, writer)
        finally:
            writer.close()
            hub.history.close()


class Events:
    """The events of a stream, as a browser reads them: chunks, compression, then lines."""

    def __init__(self, stream: trio.SocketStream, *, compressed: bool) -> None:
        self._stream = stream
        self._inflate = zlib.decompressobj(31) if compressed else None
        self._raw = b""
        self._text = b""
        self.bytes_read = 0
        self._started = False

    async def next(self, kind: str) -> Any:
        """Return the data of the next event of this kind."""
        while True:
            while b"\n\n" not in self._text:
                await self._read()
            whole, _, self._text = self._text.partition(b"\n\n")
            lines = whole.decode().split("\n")
            if f"event: {kind}" in lines:
                (data,) = (line for line in lines if line.startswith("data: "))
                return json.loads(data.removeprefix("data: "))

    async def _read(self) -> None:
        piece = await self._stream.receive_some(65_536)
        assert piece, "the stream has ended"
        self.bytes_read += len(piece)
        self._raw += piece
        if not self._started and b"\r\n\r\n" in self._raw:
            _, _, self._raw = self._raw.partition(b"\r\n\r\n")
            self._started = True
        while self._started and (found := _chunk(self._raw)):
            data, self._raw = found
            self._text += self._inflate.decompress(data) if self._inflate else data


def _chunk(raw: bytes) -> tuple[bytes, bytes] | None:
    size, line_end, rest = raw.partition(b"\r\n")
    if not line_end or len(rest) < int(size, 16) + 2:
        return None
    length = int(size, 16)
    return rest[:length], rest[length + 2 :]
