"""The types of identifiers: of peers, runs and contents.

They are strings, so they can be printed, compared and serialised directly. They are NewTypes, so
mypy reports a peer id that is used as a digest. To check an untrusted string, use
`identity.is_peer_id` or `is_digest`.
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
    """Return whether `text`, which is not trusted, has the form of a Digest or a RunId."""
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)
