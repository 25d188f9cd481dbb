"""The two functions that sign and verify. The caller passes them in: this package holds no key and
knows no signature scheme.
"""

from __future__ import annotations

from collections.abc import Callable

from p2ptrain.ids import PeerId

Sign = Callable[[bytes], bytes]
"""sign(message) returns this node's signature."""

Verify = Callable[[PeerId, bytes, bytes], bool]
"""verify(peer, message, signature) returns whether the peer signed the message."""
