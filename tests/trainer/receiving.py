"""Read a trainer's frames one at a time, from a test that is not asynchronous."""

from __future__ import annotations

import select
import time
from weakref import WeakKeyDictionary

from p2ptrain.ipc.frames import Frame
from p2ptrain.trainer.host.supervisor import LocalTrainer
from p2ptrain.trainer.host.torchrun_trainer import ExternalRanks

_UNREAD: WeakKeyDictionary[LocalTrainer | ExternalRanks, list[Frame]] = WeakKeyDictionary()


def receive(running: LocalTrainer | ExternalRanks, timeout_s: float) -> Frame | None:
    """Return the next frame, or None after `timeout_s`. Raise what `feed` and `check` raise."""
    unread = _UNREAD.setdefault(running, [])
    ends_s = time.monotonic() + timeout_s
    while not unread:
        left_s = max(0.0, ends_s - time.monotonic())
        if not select.select([running.socket], [], [], left_s)[0]:
            running.check()
            return None
        try:
            data = running.socket.recv(65_536)
        except OSError:
            data = b""
        unread += running.feed(data)
    return unread.pop(0)
