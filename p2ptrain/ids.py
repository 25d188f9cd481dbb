"""The types of the identifiers of peers, runs and contents.

They are strings, so that they print, compare and serialise as themselves. They are NewTypes, so
that mypy reports a peer id that is passed where a digest belongs. To check a string from outside,
use `identity.is_peer_id` or `is_digest`.
"""

from __future__ import annotations

from typing import NewType

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58, such as "12D3KooW…": it contains the peer's Ed25519 public key."""

Digest = NewType("Digest", str)
"""A 256-bit hash as 64 lower-case hexadecimal characters."""

RunId = NewType("RunId", str)
"""The digest of a run's manifest: 64 lower-case hexadecimal characters."""

_HEX = frozenset("0123456789abcdef")


def is_digest(text: object) -> bool:
    """Return whether `text`, which may come from a peer, has the form of a Digest or a RunId."""
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)
