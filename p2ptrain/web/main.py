"""The process of the page: choose a port, say which, and serve until told to end.

`page.json` in the home says where the page is. The process keeps the file locked, so that another
program that gets the same port later is not mistaken for it. With `--attached`, the process ends
when its standard input ends: it cannot outlive the node that started it, however the node ends.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import secrets
import socket
import sys
from pathlib import Path

import trio
from starlette.types import ASGIApp

from p2ptrain.archive.home import Home
from p2ptrain.errors import P2PTrainError
from p2ptrain.private_file import read_private_file, write_new
from p2ptrain.web.app import make_app
from p2ptrain.web.hub import Hub
from p2ptrain.web.listener import bind, serve
from p2ptrain.web.page_file import load_page

HOST = "127.0.0.1"
PORT = 4280
TOKEN_BYTES, TOKEN_BYTES_MAX = 16, 200
LOCK_LOOK_S = 1.0
MEMORY_BYTES_MAX = 512 * 2**20
"""Maximum bytes of memory. The process needs 60 MB, and fails rather than take the trainer's."""


def main(arguments: list[str] | None = None) -> int:
    """Run the process, and return its exit status."""
    given = _arguments(arguments)
    home = Home(given.home.absolute(), to_make=False)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    try:
        return _run(home, given)
    except (OSError, P2PTrainError) as exc:
        sys.stderr.write(f"the page cannot be served: {exc}\n")
        return exc.exit_code if isinstance(exc, P2PTrainError) else 1


def _run(home: Home, given: argparse.Namespace) -> int:
    """Serve until told to end. Raises OSError, P2PTrainError: the page cannot be served."""
    token = load_token(home.page_token)
    with bind(HOST, given.port) as sock:
        hub = Hub(home)
        app = make_app(hub, home, load_page(), token)
        try:
            trio.run(_serve, app, sock, hub, home, given.attached, strict_exception_groups=True)
        except* KeyboardInterrupt:
            pass
    return 0


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m p2ptrain.web", description="Serve the page of a node, on loopback."
    )
    parser.add_argument("--home", type=Path, required=True, help="folder of the node's files")
    parser.add_argument("--port", type=int, default=PORT, help="first port to try")
    parser.add_argument("--attached", action="store_true", help="end when standard input ends")
    return parser.parse_args(arguments)


def load_token(path: Path) -> str:
    """Return the token of this home, which actions need; make it if there is none.

    Raises:
        ConfigError: other users can read the file. OSError: it cannot be read or written.
    """
    what = "the page's token"
    if not path.exists() or not path.stat().st_size:  # A full disk can leave an empty file.
        path.unlink(missing_ok=True)
        write_new(path, secrets.token_hex(TOKEN_BYTES).encode())
    found = read_private_file(path, TOKEN_BYTES_MAX, what=what, code="PAGE-TOKEN")
    return found.decode("ascii", "replace").strip()


async def _serve(app: ASGIApp, sock: socket.socket, hub: Hub, home: Home, attached: bool) -> None:
    port = int(sock.getsockname()[1])
    async with trio.open_nursery() as nursery:
        if attached:
            nursery.start_soon(_end_with_parent, nursery.cancel_scope)
        nursery.start_soon(hub.watch)
        nursery.start_soon(_announce, home.page, port)
        nursery.start_soon(serve, app, sock)
        sys.stdout.write(f"port {port}\n")
        sys.stdout.flush()


async def _announce(path: Path, port: int) -> None:
    """Write where the page is, and keep the file locked. Wait while another process holds it: one
    that serves this home's page too, or that is about to end with its node."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        while not _lock(descriptor):
            await trio.sleep(LOCK_LOOK_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"port": port, "pid": os.getpid()}).encode(), 0)
        await trio.sleep_forever()
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _end_with_parent(scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        while await stream.receive_some():
            pass
    scope.cancel()
