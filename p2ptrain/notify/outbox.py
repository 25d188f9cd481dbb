"""The messages that wait for one target. This module has no clock and sends nothing.

There is at most one message for each cause in ten minutes. The queue and the tries of a message are
bounded. Each message that is not sent is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from p2ptrain.notify.messages import Message
from p2ptrain.notify.targets import CAUSES

EACH_S = 600.0
QUEUE_MAX = 16
RETRY_S = (10.0, 60.0, 300.0)
"""Seconds between the tries of a message. After the last try it is dropped."""

COUNT_MAX = 2**53


@dataclass(slots=True)
class Outbox:
    """The counts are since the target was added. Times are in Unix seconds: they outlive the
    process."""

    sent: int = 0
    limited: int = 0
    """Messages that came within ten minutes after one of the same cause."""
    dropped: int = 0
    """Messages for which the queue was full, or that the target did not accept in any try."""
    untold: int = 0
    """Messages that were not sent since the last one that was."""
    fault: str = ""
    """Why the last try failed; "" if it did not."""
    last: dict[str, float] = field(default_factory=dict)
    """When the newest message of each cause was put into the queue."""
    _queue: deque[Message] = field(default_factory=deque)
    _tries: int = 0
    _due: float = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, message: Message, now: float) -> bool:
        """Put a message into the queue, and return True; or count it, and return False."""
        # A clock that was set back must not silence a cause until it has caught up.
        if 0 <= now - self.last.get(message.cause, -EACH_S) < EACH_S:
            self.limited += 1
            self.untold += 1
            return False
        self.last[message.cause] = now
        if len(self._queue) >= QUEUE_MAX:
            self._drop()
            return False
        self._queue.append(message)
        return True

    def due(self, now: float) -> Message | None:
        """Return the message to send now, if there is one."""
        waits = self._tries and 0 < self._due - now <= max(RETRY_S)
        return None if waits or not self._queue else replace(self._queue[0], left_out=self.untold)

    def tried(self, fault: str, now: float) -> None:
        """Note the outcome of sending the message that was due: "" or why it failed."""
        assert self._queue, "nothing was due"
        self.fault = fault
        if fault and self._tries < len(RETRY_S):
            self._due = now + RETRY_S[self._tries]
            self._tries += 1
            return
        self._queue.popleft()
        self._tries = 0
        if fault:
            self._drop()
        else:
            self.sent += 1
            self.untold = 0

    def _drop(self) -> None:
        self.dropped += 1
        self.untold += 1

    def to_json(self) -> dict[str, Any]:
        """Return what outlives the process: all except the queue, whose messages count as dropped
        when the process ends."""
        counts = {name: getattr(self, name) for name in COUNTS}
        waiting = len(self._queue)
        counts |= {"dropped": self.dropped + waiting, "untold": self.untold + waiting}
        return {**counts, "fault": self.fault, "last": dict(self.last)}

    @classmethod
    def from_json(cls, tree: object) -> Outbox:
        """Return the outbox that was kept; invalid values count as absent."""
        if not isinstance(tree, Mapping):
            return cls()
        counts = {name: tree[name] for name in COUNTS if _is_count(tree.get(name))}
        kept = tree.get("last")
        last = {
            cause: float(kept[cause])
            for cause in CAUSES
            if isinstance(kept, Mapping) and isinstance(kept.get(cause), int | float)
        }
        return cls(**counts, fault=str(tree.get("fault", ""))[:300], last=last)


COUNTS = ("sent", "limited", "dropped", "untold")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= COUNT_MAX
