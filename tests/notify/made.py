"""A home with a series that a test writes, and a local server that records the requests it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path

from p2ptrain.archive.home import Home
from p2ptrain.notify.messages import Message
from p2ptrain.observe.series import EventRow
from p2ptrain.observe.series.rows import Row
from p2ptrain.observe.series.writer import SeriesWriter

NOW = 1_800_000_000.0
RUN = "ab" * 32


def message(number: int = 1, cause: str = "stalled", text: str = "This node waits.") -> Message:
    return Message(f"{number:016x}", NOW, cause, text)


def write(home: Home, *rows: Row) -> None:
    writer = SeriesWriter(home.series, RUN)
    writer.write(rows)
    writer.close()


def event(kind: str, text: str, time: float = NOW) -> EventRow:
    return EventRow(time, 5, kind, "", text)


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Ids:
    """Numbered ids."""

    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __call__(self) -> str:
        return f"{next(self.numbers):016x}"


@dataclass
class Server:
    """The requests that a server got: paths, headers in lower case, and bodies. It answers with
    `status`; 0 stands for no answer until `release`."""

    port: int = 0
    status: int = 200
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    release: threading.Event = field(default_factory=threading.Event)

    def texts(self, count: int) -> list[str]:
        """Wait for `count` further messages, and return the texts of all so far."""
        for _ in range(count):
            assert self.arrived.acquire(timeout=60), "no message came"
        return [json.loads(body)["text"] for _, _, body in self.got]

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def served() -> Iterator[Server]:
    """Run a server on loopback."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.got.append((self.path, headers, body))
            server.arrived.release()
            if not server.status:
                server.release.wait()
                return
            self.send_response(server.status)
            if 300 <= server.status < 400:
                self.send_header("Location", "file:///etc/passwd")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    listener = HTTPServer(("127.0.0.1", 0), Handler)
    server.port = listener.server_address[1]
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        listener.shutdown()
        thread.join()
        listener.server_close()


def program(folder: Path, text: str) -> str:
    """Write a program, and return it as a target."""
    path = folder / "program"
    path.write_text(text)
    path.chmod(0o700)
    return f"cmd:{path}"
