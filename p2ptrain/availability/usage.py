"""Count the bytes of bulk data that a node moves in a day of local time, for the owner's limit."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

USAGE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """The bytes sent (`up`) and received (`down`) on `day`, a date such as "2026-11-26"."""

    day: str = ""
    up: int = 0
    down: int = 0

    @property
    def total(self) -> int:
        return self.up + self.down

    def after(self, up: int, down: int, day: str) -> Usage:
        """Return the usage after `up` and `down` more bytes on `day`. A new day begins at 0."""
        if day != self.day:
            return Usage(day, up, down)
        return Usage(day, self.up + up, self.down + down)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Usage:
        """Return the usage in a file. A damaged file counts as no usage: it costs at most the bytes
        of one day."""
        try:
            tree = json.loads(data)
            day, up, down = tree["day"], tree["up"], tree["down"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls()
        if not isinstance(day, str) or type(up) is not int or type(down) is not int:
            return cls()
        return cls(day, max(0, up), max(0, down))
