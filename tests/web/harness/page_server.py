"""Serve the page with a made history, for checks in a browser and for work on the page.

    python -m tests.web.harness.page_server --port 4290 [--step-s 10] [--hostile] [--report]

It behaves like the node's web process, as far as the page can tell. `GET /made/silent` ends all
streams and makes the API answer 503, and `GET /made/loud` undoes this. With `--report` there is no
API, only the page and `data.json` beside it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.web import made_bodies
from tests.web.made_history import STEP_S, History, advance, made

PAGE = Path(__file__).parents[3] / "p2ptrain" / "web" / "static" / "page.html"
ADDRESS = "127.0.0.1"
TOKEN = "made-token"
POLL_S = 0.25


def content_security_policy(page: str) -> str:
    """Return the strict policy that the page has to work under."""
    script, style = (
        base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()
        for found in (inline(page, "script"), inline(page, "style"))
    )
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


def inline(page: str, tag: str) -> str:
    """Return the text of the only element `tag` of the page."""
    (found,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return str(found)


class Serving:
    """The state that all connections share. `silent` makes the server look stuck."""

    def __init__(self, history: History, *, report: bool) -> None:
        self.history = history
        self.report = report
        self.silent = False
        self.steps: list[tuple[dict[str, object], int]] = []
        self.actions: list[str] = []

    def advance_every(self, step_s: float) -> None:
        chance = random.Random(7)
        while True:
            time.sleep(step_s)
            newest = self.history.steps[-1]["step"]
            known = len(self.history.events)
            self.history.now = time.time()
            found = advance(self.history, chance, newest + 1, self.history.now)
            self.history.serial += 1
            self.steps.append((found, known))


class Answers(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    serving: Serving

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        history, now = self.serving.history, time.time()
        if split.path == "/":
            return self._page()
        if split.path.startswith("/made/"):
            self.serving.silent = split.path == "/made/silent"
            return self._json({"actions": self.serving.actions, "advanced": history.now})
        if split.path == "/data.json" and self.serving.report:
            return self._json(made_bodies.everything(history, now))
        if self.serving.report:
            return self._send(404, b"", "text/plain")
        if self.serving.silent:
            return self._send(503, b"", "text/plain")
        match split.path:
            case "/api/v1/state":
                self._json(made_bodies.state(history, now))
            case "/api/v1/series":
                self._json(made_bodies.series(history))
            case "/api/v1/events":
                before = int(query["before"]) if "before" in query else None
                self._json(made_bodies.events(history, before))
            case "/api/v1/samples":
                self._json(made_bodies.samples(history))
            case "/api/v1/stream":
                self._stream()
            case _:
                self._send(404, b"", "text/plain")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length).decode()
        if self.headers.get("X-P2PTrain-Token") != TOKEN:
            return self._json({"error": "The token is wrong."}, 403)
        action = self.path.rsplit("/", 1)[-1]
        self.serving.actions.append(f"{action} {body}")
        self._json({"done": f"Your node accepted: {action}."})

    def _page(self) -> None:
        page = PAGE.read_text(encoding="utf-8")
        policy = content_security_policy(page)
        if self.serving.report:
            bare = '<meta name="p2ptrain-data" content="">'
            assert bare in page
            page = page.replace(bare, bare.replace('""', '"data.json"'))
        self._send(200, page.encode(), "text/html; charset=utf-8", policy)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        told, sent, base = len(self.serving.steps), 0.0, self.serving.history.serial
        try:
            self._event("state", made_bodies.state(self.serving.history, time.time()))
            while not self.serving.silent:
                for step, known in self.serving.steps[told:]:
                    self._event("step", step)
                    for event in self.serving.history.events[known:]:
                        self._event("event", event)
                    told, sent = told + 1, 0.0
                if time.monotonic() - sent > 1.0:
                    sent = time.monotonic()
                    base = self._patch(base)
                time.sleep(POLL_S)
        except OSError:
            pass
        self.close_connection = True

    def _patch(self, base: int) -> int:
        """Send what changed since the state `base`, as a patch. Return the new serial."""
        history = self.serving.history
        state = made_bodies.state(history, time.time())
        status = {name: state["status"][name] for name in ("state", "inner_step", "outer_step")}
        patch = {"now": state["now"], "heard_s_ago": 0.3, "sentence": state["sentence"]}
        members = {"0": {"state": status["state"]}}
        patch["status"] = {**status, "members": members}
        history.serial += 1
        self._event("state", {"serial": history.serial, "base": base, "patch": patch})
        return history.serial

    def _event(self, kind: str, body: object) -> None:
        text = f"event: {kind}\ndata: {json.dumps(body)}\n\n"
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _json(self, body: object, status: int = 200) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str, policy: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the checks print their own results."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=4290)
    parser.add_argument("--step-s", type=float, default=STEP_S)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args(arguments)
    history = made(time.time(), steps=options.steps, hostile=options.hostile)
    Answers.serving = Serving(history, report=options.report)
    clock = threading.Thread(
        target=Answers.serving.advance_every, args=(options.step_s,), daemon=True
    )
    clock.start()
    with ThreadingHTTPServer((ADDRESS, options.port), Answers) as server:
        server.daemon_threads = True
        sys.stdout.write(f"http://{ADDRESS}:{server.server_address[1]}/\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
