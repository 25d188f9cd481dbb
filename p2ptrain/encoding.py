"""Canonical bytes for all values that a node signs, hashes or sends in messages.

A value has exactly one encoding: msgpack with sorted string keys in maps, and numbers in their
shortest form. Therefore equal values have equal digests, and `unpack` refuses any other encoding.
This module does not know what the values mean: each message checks its own fields.
"""

from __future__ import annotations

import math

import msgpack

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError

DEPTH_MAX = 12
"""Maximum nesting depth. Our deepest message, a page of certified entries, has seven levels."""


def _ordered(value: object, depth: int) -> object:
    if depth > DEPTH_MAX:
        raise LocalProtocolError(f"a value is nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise LocalProtocolError("a map has a key that is not a string")
        return {key: _ordered(value[key], depth + 1) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_ordered(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise LocalProtocolError(f"{value} does not have a canonical encoding")
    return value


def pack(value: object) -> bytes:
    """Return the canonical encoding of a tree of dict, list, tuple, str, bytes, int, finite float,
    bool and None. A tuple is encoded as a list.

    Raises:
        LocalProtocolError: the tree contains anything else, or is nested too deeply.
    """
    try:
        packed = msgpack.packb(_ordered(value, 0), use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as exc:
        raise LocalProtocolError(f"a value cannot be encoded: {exc}") from exc
    assert isinstance(packed, bytes)
    return packed


def unpack(data: bytes | memoryview, *, bytes_max: int) -> object:
    """Return the value that `data` encodes.

    Raises:
        RemoteProtocolError: `data` is longer than `bytes_max`, not msgpack, not canonical, or
            nested too deeply.
    """
    if len(data) > bytes_max:
        raise RemoteProtocolError(f"a message has {len(data)} bytes; the maximum is {bytes_max}")
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
        canonical = pack(value)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as exc:
        raise RemoteProtocolError(f"a message is not msgpack: {exc}") from exc
    except LocalProtocolError as exc:
        raise RemoteProtocolError(f"a message is not a valid value: {exc.what}") from exc
    if canonical != bytes(data):
        raise RemoteProtocolError("a message is not in canonical form")
    return value


def count(value: object, most: int, what: str) -> int:
    """Return `value` if it is an integer from 0 to `most`; a bool does not count as an integer.
    Otherwise raise RemoteProtocolError, which names `what` as the kind of message."""
    if type(value) is not int or not 0 <= value <= most:
        raise RemoteProtocolError(f"{what} has a number that is out of range")
    return value


def fields(value: object, **types: type | tuple[type, ...]) -> dict[str, object]:
    """Return `value` if it is a map with exactly the fields in `types`, each of its type. A bool
    does not count as an int.

    Raises:
        RemoteProtocolError: `value` is not a map, or a field is missing, unknown or of wrong type.
    """
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"expected a map, not {type(value).__name__}")
    if set(value) != set(types):
        odd = sorted(set(value) ^ set(types))
        raise RemoteProtocolError(f"fields missing or unknown: {', '.join(map(str, odd[:6]))}")
    for name, kind in types.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        given = value[name]
        if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
            raise RemoteProtocolError(f"field {name} has the wrong type {type(given).__name__}")
    return value
