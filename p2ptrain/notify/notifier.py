"""Put news into the outboxes of the targets, send what is due, and remember it across restarts.

Time, news and sending are arguments, so that the tests need no clock and no network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from p2ptrain.notify.messages import Message, inert
from p2ptrain.notify.outbox import Outbox
from p2ptrain.notify.targets import Target, replace_private
from p2ptrain.notify.watching import News, Place

STATE_BYTES_MAX = 65_536

Send = Callable[[Target, Message], str]
"""Sends a message, and returns "" or why that failed."""


class Notifier:
    """The outboxes of all targets. `new_id` returns a new id for a message."""

    def __init__(self, kept: Path, new_id: Callable[[], str]) -> None:
        tree = kept_state(kept)
        self.place = Place(_number(tree.get("event")), _number(tree.get("step")))
        self._boxes = {name: Outbox.from_json(each) for name, each in outboxes_in(tree).items()}
        self._targets: tuple[Target, ...] = ()
        self._path = kept
        self._new_id = new_id
        self._written = ""

    def use(self, targets: Sequence[Target]) -> None:
        """Send to these targets from now on."""
        self._targets = tuple(targets)
        self._boxes = {each.name: self._boxes.get(each.name, Outbox()) for each in targets}

    def wants(self, cause: str) -> bool:
        return any(cause in target.on for target in self._targets)

    def take(self, news: Sequence[News], now: float) -> None:
        """Offer each news to the targets that want its cause."""
        for cause, text in news:
            message = Message(self._new_id(), now, cause, inert(text))
            for target in self._targets:
                if cause in target.on:
                    self._boxes[target.name].offer(message, now)

    def send_due(self, send: Send, now: Callable[[], float]) -> list[str]:
        """Send at most one message to each target. Return the faults in words."""
        faults = []
        for target in self._targets:
            box = self._boxes[target.name]
            if (message := box.due(now())) is None:
                continue
            dropped, fault = box.dropped, inert(send(target, message))
            box.tried(fault, now())
            if fault:
                last = "; the message is dropped" if box.dropped > dropped else ""
                faults.append(f"{target.name} did not accept a message: {fault}{last}")
        return faults

    @property
    def waiting(self) -> int:
        """Return the number of messages that are not sent yet."""
        return sum(map(len, self._boxes.values()))

    def keep(self, place: Place) -> None:
        """Remember how far the series was read, and the counts. If the disk is full, do not."""
        boxes = {name: box.to_json() for name, box in self._boxes.items()}
        text = json.dumps({"event": place.event, "step": place.step, "targets": boxes})
        if text != self._written:
            with suppress(OSError):
                replace_private(self._path, text.encode())
                self._written = text


def kept_state(path: Path) -> dict[str, Any]:
    """Return the tree that was kept; an empty one if there is none, or if it is damaged."""
    try:
        with path.open("rb") as file:
            tree = json.loads(file.read(STATE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def outboxes_in(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the outboxes in a tree that was kept, by the names of their targets."""
    found = tree.get("targets")
    return found if isinstance(found, dict) else {}


def _number(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
