"""The identity of a peer: an Ed25519 key, which determines its libp2p peer id.

The peer id of an Ed25519 key *contains* the public key. Therefore a signature can be checked with
the claimed signer's id alone, without a directory or a certificate authority. This module does not
use libp2p; it contains the six bytes with which libp2p's peer ids begin.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from p2ptrain import private_file
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.ids import PeerId

SEED_BYTES = 32

_PREFIX = bytes.fromhex("002408011220")
"""The bytes of a peer id before the key: a multihash of type `identity` (00) and 36 bytes (24) that
contains the protobuf message {1: Ed25519 (0801), 2: 32 bytes (1220)}."""


_FIELD = 2**255 - 19
_SMALL_ORDER_Y = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)
"""The y coordinates of the eight points of Ed25519 with an order that divides 8. If such a point is
used as a public key, anybody can, without a secret, make signatures that verify for at least one
message in eight."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A peer that can sign. `seed` is the secret; `repr` does not show it."""

    peer: PeerId
    seed: bytes = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity with the 32 bytes `seed` as its secret."""
        assert len(seed) == SEED_BYTES
        public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
        raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return cls(PeerId(base58.b58encode(_PREFIX + raw).decode()), seed)

    def sign(self, message: bytes) -> bytes:
        """Return a signature of 64 bytes. Use a different prefix for each kind of message."""
        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)


def load_or_create(path: Path) -> Identity:
    """Return the identity stored at `path`. If the file does not exist, create a new identity in a
    file that only its owner can read.

    Raises:
        ConfigError: the file is not a key, or other users can read it.
    """
    if path.exists():
        return _load(path)  # also on a read-only disk, where `write_new` would fail
    seed = os.urandom(SEED_BYTES)
    if private_file.write_new(path, seed):
        return Identity.from_seed(seed)
    return _load(path)


def _load(path: Path) -> Identity:
    seed = private_file.read_private_file(
        path, 2 * SEED_BYTES, what="the identity key", code="ID-MODE"
    )
    if len(seed) != SEED_BYTES:
        raise ConfigError(
            f"the identity key {path} does not have {SEED_BYTES} bytes",
            code="ID-BROKEN",
            likely="the file is damaged or is not an identity key",
            do="restore it from a backup, or move it away to start as a new peer",
        )
    return Identity.from_seed(seed)


@lru_cache(maxsize=4096)
def public_key_of(peer: PeerId) -> bytes:
    """Return the 32 bytes of the Ed25519 public key that `peer` contains.

    Raises:
        RemoteProtocolError: `peer` is not the id of an Ed25519 key, its key has a small order, so
            that anybody could sign for it, or its key is not canonically encoded.
    """
    try:
        decoded = base58.b58decode(peer) if len(peer) <= 64 else b""
    except ValueError:
        decoded = b""
    if len(decoded) != len(_PREFIX) + 32 or not decoded.startswith(_PREFIX):
        raise RemoteProtocolError(f"{peer[:64]!r} is not the id of an Ed25519 key")
    public_key = decoded[len(_PREFIX) :]
    y = int.from_bytes(public_key, "little") & (2**255 - 1)  # the top bit is the sign of x
    if y >= _FIELD or y in _SMALL_ORDER_Y:
        raise RemoteProtocolError(
            f"{peer[:64]!r} names a key that is not canonical or has a small order"
        )
    return public_key


def peer_of_key(public_key: bytes) -> PeerId:
    """Return the peer id that contains these 32 bytes.

    Raises RemoteProtocolError: they are not an Ed25519 key that `public_key_of` accepts.
    """
    peer = PeerId(base58.b58encode(_PREFIX + public_key[: SEED_BYTES + 1]).decode())
    public_key_of(peer)
    return peer


def is_peer_id(text: object) -> bool:
    """Return whether `text`, which is not trusted, is the id of an Ed25519 key."""
    if not isinstance(text, str):
        return False
    try:
        public_key_of(PeerId(text))
    except RemoteProtocolError:
        return False
    return True


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """Return whether `peer` signed `message`. Return False for malformed input; never raise."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer)).verify(signature, message)
    except (InvalidSignature, RemoteProtocolError, ValueError):
        return False
    return True
