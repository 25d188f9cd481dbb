"""Identities with a public key that is a point of small order. Anybody can sign for them.

If the public key is the neutral element, the signature (neutral element, 0) is valid for every
message, unless the verifier refuses such keys. RFC 8032 lets the verifier decide, and OpenSSL
accepts such keys.
"""

from __future__ import annotations

import base58

from p2ptrain.encoding import pack
from p2ptrain.ids import PeerId
from p2ptrain.run.join_request import KIND

NEUTRAL = bytes([1]) + bytes(31)
SIGNATURE = NEUTRAL + bytes(32)

KEYS = tuple(
    bytes.fromhex(text)
    for text in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    )
)
"""Six of the eight points of small order, in their usual encoding."""

_PREFIX = bytes.fromhex("002408011220")


def peer_of(key: bytes) -> PeerId:
    return PeerId(base58.b58encode(_PREFIX + key).decode())


def join_request(run: str, key: bytes = NEUTRAL) -> bytes:
    """Return a join request for `key` with the signature that anybody can make."""
    peer = peer_of(key)
    request = pack({"run": run, "peer": peer, "created_unix": 1, "note": ""})
    return pack({"kind": KIND, "payload": request, "signature": SIGNATURE, "signer": peer})
