"""The types of the functions that sign and verify. The node passes them in: this package does not
hold a key and does not know the signature scheme.
"""

from __future__ import annotations

from collections.abc import Callable

from p2ptrain.ids import PeerId

Sign = Callable[[bytes], bytes]
"""sign(message) returns this node's signature."""

Verify = Callable[[PeerId, bytes, bytes], bool]
"""verify(peer, message, signature) returns whether the peer signed the message."""
