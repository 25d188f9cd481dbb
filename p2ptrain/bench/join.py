"""`p2ptrain bench join`: fetch a blob from several peers, check and sync it, and compare with HTTP.

The HTTP download uses the standard library and one connection. It does not check the data, and
syncs its file once at the end. The fetch and the HTTP download take turns within one run, so that a
busy machine affects both equally.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from p2ptrain.bench.joining import JOINER, JoinMeasured, JoinSetting, make_blob, parts_of
from p2ptrain.bench.lines import FigureLine
from p2ptrain.bench.processes import Host, ProcessFailed
from p2ptrain.bench.timing import elapsed_s

PIECE_BYTES = 1 << 20
PROCESS_S_MAX = 3600.0
LOOPBACK = "127.0.0.1"
HTTP = "plain HTTP, unchecked"


def measure(
    setting: JoinSetting, rounds: int, hosts: Sequence[Host], *, http_too: bool = True
) -> Iterable[FigureLine]:
    """Measure the fetch and the HTTP download alternately, `rounds` times each; the best time of
    each counts.

    The joiner runs on the first of `hosts`, the peers on the others. Raises ProcessFailed.
    """
    ours: list[JoinMeasured] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(run(setting, hosts))
        if http_too:
            theirs.append(http_seconds(setting.bytes))
    best = min(ours, key=lambda each: each.seconds)
    secrecy = "TLS" if setting.encrypted else "plaintext"
    name = f"join, {setting.bytes / 1e6:,.0f} MB from {setting.peers} peers, {secrecy}"
    yield FigureLine(name, best.seconds, "s")
    yield FigureLine(name, setting.bytes / best.seconds / 1e6, "MB/s")
    yield FigureLine(name, best.cpu_s, "CPU s")
    for fault in best.dropped:
        yield FigureLine(f"{name}: dropped", 1, fault)
    if theirs:
        yield FigureLine(HTTP, setting.bytes / min(theirs) / 1e6, "MB/s")
        yield FigureLine(name, min(theirs) / best.seconds, "× as fast as", HTTP)


def run(setting: JoinSetting, hosts: Sequence[Host]) -> JoinMeasured:
    """Run all processes of `setting`, each on its host. Raises ProcessFailed."""
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-") as name:
        folder = Path(name)
        digest = make_blob(folder, setting.bytes)
        program = [sys.executable, "-m", "p2ptrain.bench.joining", json.dumps(asdict(setting))]
        commands = [
            host.command([*program, str(me), host.address, name, digest])
            for me, host in enumerate(hosts)
        ]
        return JoinMeasured(**json.loads(_answer_of_the_first(commands)))


def _answer_of_the_first(commands: list[list[str]]) -> str:
    assert JOINER == 0, "the first command is the joiner's"
    running = [
        subprocess.Popen(each, stdout=subprocess.PIPE if number == JOINER else None, text=True)
        for number, each in enumerate(commands)
    ]
    try:
        answer = running[JOINER].communicate(timeout=PROCESS_S_MAX)[0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    if running[JOINER].returncode:
        raise ProcessFailed("the joiner failed; its output is above")
    return answer


class _SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def http_seconds(size: int) -> float:
    """Download `size` bytes over HTTP on loopback, sync them to disk, and return the seconds."""
    with tempfile.TemporaryDirectory(prefix="p2ptrain-bench-") as name:
        folder = Path(name)
        with (folder / "blob").open("wb") as out:
            out.writelines(parts_of(size))
        handler = partial(_SilentHandler, directory=name)
        with ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            url = f"http://{LOOPBACK}:{server.server_port}/blob"
            seconds = elapsed_s(lambda: _download(url, folder / "copy"))
            server.shutdown()
            thread.join()
    return seconds


def _download(url: str, target: Path) -> None:
    with urllib.request.urlopen(url) as reply, target.open("wb") as out:
        while piece := reply.read(PIECE_BYTES):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
