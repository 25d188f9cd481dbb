"""Messages: their text without control characters, and their form for a web hook, signed.

The signature covers the whole body, which contains an id and a time. A repetition of a message has
the same id, so a receiver can refuse old and repeated ones.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass

from p2ptrain.observe.cells import fitted

TEXT_CELLS_MAX = 600
SIGNATURE = "X-P2PTrain-Signature"


@dataclass(frozen=True, slots=True)
class Message:
    """`time` is in Unix seconds. `left_out` counts the messages to the same target that were not
    sent before this one, because of their number or because it did not accept them."""

    id: str
    time: float
    cause: str
    text: str
    left_out: int = 0

    @property
    def line(self) -> str:
        more = f" ({self.left_out} earlier messages were left out.)" if self.left_out else ""
        return f"{self.text}{more}"


def inert(text: str) -> str:
    """Return a text in which no peer's name can control a terminal, a log or a header. It is
    bounded, and in one line."""
    return fitted(text, TEXT_CELLS_MAX)


def body_of(message: Message, *, machine: str, run: str) -> bytes:
    """Return the body for a web hook: an object in ASCII JSON."""
    tree = {
        "schema": 1,
        "id": message.id,
        "time": message.time,
        "cause": message.cause,
        "machine": machine,
        "run": run,
        "text": message.text,
        "left_out": message.left_out,
    }
    return json.dumps(tree).encode()


def signature_of(body: bytes, secret: str) -> str:
    """Return the value of the header X-P2PTrain-Signature."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
