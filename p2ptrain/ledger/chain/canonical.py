"""A single encoding for every value, so that all peers compute the same digests and signatures.

Canonical JSON: sorted keys, no spaces, ASCII only; integers, strings, booleans, None, lists and
maps of them. It was chosen over a binary form because standard tools in any language can then read
and check a chain. The `read_*` functions below take values from peers; their errors name the field
that is wrong.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, is_digest

INTEGER_MAX = 2**53 - 1
"""Largest integer that every JSON reader represents exactly."""

NAME_CHARACTERS_MAX = 128
"""Maximum number of characters in a peer id. A real peer id has 52 characters; names in tests are
short.
"""

SIGNATURE_BYTES_MAX = 128

_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode


def canonical(value: object) -> bytes:
    """Encode `value` as canonical JSON."""
    return _encode(value).encode("ascii")


def digest_of(domain: bytes, value: object) -> Digest:
    """Return the sha256 of `domain` and the canonical encoding of `value`. Values of different
    kinds use different domains, so their digests never collide.
    """
    return Digest(hashlib.sha256(domain + b"\n" + canonical(value)).hexdigest())


def parse(data: bytes, *, bytes_max: int) -> object:
    """Parse JSON from a peer or from disk. Raises RemoteProtocolError if it is too large, too deep
    or not JSON.
    """
    if len(data) > bytes_max:
        raise RemoteProtocolError(
            f"a ledger message has {len(data)} bytes; the maximum is {bytes_max}"
        )
    try:
        value: object = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise RemoteProtocolError("a ledger message is not JSON") from exc
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed as a number")


def read_map(value: object, *, fields: frozenset[str]) -> Mapping[str, object]:
    if not isinstance(value, dict) or value.keys() != fields:
        raise RemoteProtocolError(f"expected a map with the fields {', '.join(sorted(fields))}")
    return value


def read_list(value: object, field: str, *, length_max: int) -> Sequence[object]:
    if not isinstance(value, list) or len(value) > length_max:
        raise RemoteProtocolError(f"{field} must be a list of at most {length_max} items")
    return value


def read_int(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value <= INTEGER_MAX:
        raise RemoteProtocolError(f"{field} must be an integer from 0 to 2^53 − 1")
    return value


def read_peer(value: object, field: str) -> PeerId:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= NAME_CHARACTERS_MAX
        or not value.isascii()
    ):
        raise RemoteProtocolError(f"{field} must be a peer id")
    return PeerId(value)


def read_digest(value: object, field: str) -> Digest:
    if not is_digest(value):
        raise RemoteProtocolError(f"{field} must be a digest")
    return Digest(str(value))


def read_signature(value: object, field: str) -> bytes:
    if not isinstance(value, str) or len(value) > 2 * SIGNATURE_BYTES_MAX:
        raise RemoteProtocolError(f"{field} must be a signature")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError) as exc:
        raise RemoteProtocolError(f"{field} must be a signature in base64") from exc


def encode_signature(signature: bytes) -> str:
    return binascii.b2a_base64(signature, newline=False).decode("ascii")
