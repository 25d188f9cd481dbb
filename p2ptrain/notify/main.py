"""The process that sends messages: look, send, and wait for the node's end.

Standard input is a pipe that the node holds. When it ends, the node has ended or is about to. The
process then forks: the parent ends at once, so the node does not wait, and the child tells how the
node has ended. An alarm ends the child if it takes too long.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import select
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

from p2ptrain.archive.home import Home
from p2ptrain.errors import P2PTrainError
from p2ptrain.notify.messages import Message, inert
from p2ptrain.notify.notifier import Notifier
from p2ptrain.notify.sending import send
from p2ptrain.notify.targets import Target, load_targets
from p2ptrain.notify.watching import Watcher, end_of_node, pending_peers

LOOK_S = 2.0
ASK_EVERY_S = 20.0

END_LOOK_S = 0.2
END_S = 30
"""Seconds in which a node ends; it has 20 for its goodbye."""

LAST_S = 90
"""Seconds after which the process ends, whatever it does. Each target has a deadline of 10 s."""


def main(arguments: list[str] | None = None) -> int:
    """Run the process, and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m p2ptrain.notify", description="Send messages about a node to its owner."
    )
    parser.add_argument("--home", type=Path, required=True, help="folder of the node's files")
    home = Home(parser.parse_args(arguments).home.absolute(), to_make=False)
    try:
        _alone(home)
        _Process(home).run()
    except (OSError, P2PTrainError) as exc:
        sys.stderr.write(f"no messages can be sent: {exc}\n")
        return exc.exit_code if isinstance(exc, P2PTrainError) else 1
    return 0


def _alone(home: Home) -> None:
    """Wait for the end of the process of an earlier node, so that nothing is sent twice. The lock
    is never released: it ends with this process and the child."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(home.notify_lock, flags, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


class _Process:
    """Sends until there are no targets, or the node has ended."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._began = time.time()
        self._notifier = Notifier(home.notify_state, partial(secrets.token_hex, 8))
        self._watcher = Watcher(home, self._notifier.place)
        self._asked = -ASK_EVERY_S
        self._machine = inert(socket.gethostname())[:64]

    def run(self) -> None:
        while targets := load_targets(self._home.notify):
            self._notifier.use(targets)
            self._look()
            ready, _, _ = select.select([sys.stdin], [], [], LOOK_S)
            if ready and not os.read(sys.stdin.fileno(), 4096):
                self._tell_end()
                return

    def _look(self) -> None:
        now = time.time()
        self._notifier.take(self._watcher.look(now), now)
        if self._notifier.wants("pending") and time.monotonic() - self._asked >= ASK_EVERY_S:
            self._asked = time.monotonic()
            ask = partial(pending_peers, self._home.control)
            self._notifier.take(self._watcher.requests(ask), now)
        for fault in self._notifier.send_due(self._send, time.time):
            sys.stdout.write(f"{fault}\n")
            sys.stdout.flush()
        self._notifier.keep(self._watcher.place)

    def _send(self, target: Target, message: Message) -> str:
        return send(target, message, machine=self._machine, run=self._watcher.run)

    def _tell_end(self) -> None:
        self._watcher.close()  # A connection of SQLite must not be used after a fork.
        if os.fork():
            return
        signal.alarm(LAST_S)
        os.setsid()
        end = time.monotonic() + END_S
        while (why := end_of_node(self._home, self._began)) is None and time.monotonic() < end:
            time.sleep(END_LOOK_S)
        now = time.time()
        self._notifier.take(self._watcher.look(now), now)
        self._notifier.take([("ended", why)] if why else [], now)
        self._notifier.keep(self._watcher.place)  # Before the alarm can come.
        for _ in range(self._notifier.waiting):
            self._notifier.send_due(self._send, time.time)
        self._notifier.keep(self._watcher.place)
