"""Encode every value in exactly one way, so that all peers compute the same digests and signatures.

The encoding is canonical JSON: sorted keys, no spaces, ASCII only; integers, strings, booleans,
None, lists and maps of them. It was chosen over a binary form because standard tools in any
language can then read and check a chain. The `read_*` functions below check values that come from
peers. They raise RemoteProtocolError, which names the wrong field.
"""

from __future__ import annotations

import binascii
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, get_type_hints

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, is_digest

INTEGER_MAX = 2**53 - 1
"""Largest integer that every JSON reader represents exactly."""

NAME_CHARACTERS_MAX = 128
"""Maximum length of a peer id. Real ones have 52 characters; names in tests are short."""

SIGNATURE_BYTES_MAX = 128

T = TypeVar("T")

Reader = Callable[[object, str], Any]
"""read(value, field) returns the checked value of the field with this name."""

_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode


def canonical(value: object) -> bytes:
    """Encode `value` as canonical JSON."""
    return _encode(value).encode("ascii")


def plain_of(value: Any) -> object:
    """Return the form of a value that `canonical` can encode; None if the value is None."""
    return None if value is None else value.plain()


def unchanged(value: object) -> object:
    return value


def digest_of(domain: bytes, value: object) -> Digest:
    """Return the sha256 of `domain` and the canonical encoding of `value`. Values of different
    kinds use different domains, so their digests never collide.
    """
    return Digest(hashlib.sha256(domain + b"\n" + canonical(value)).hexdigest())


def parse(data: bytes, *, bytes_max: int) -> object:
    """Parse JSON. Raises RemoteProtocolError if it is too large, too deep or not JSON."""
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


def read_map(value: object, *, fields: AbstractSet[str]) -> Mapping[str, object]:
    if not isinstance(value, dict) or value.keys() != fields:
        raise RemoteProtocolError(f"expected a map with the fields {', '.join(sorted(fields))}")
    return value


def read_fields(value: object, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Check that `value` is a map with exactly the fields of `readers`, and read each of them."""
    given = read_map(value, fields=readers.keys())
    return {name: read(given[name], name) for name, read in readers.items()}


def read_kind(value: object, kinds: Mapping[str, T], fault: str) -> tuple[T, Mapping[str, object]]:
    """Return what `kinds` has for the field "kind" of a map, and the map's other fields."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str) or kind not in kinds:
        raise RemoteProtocolError(fault)
    return kinds[kind], {name: item for name, item in value.items() if name != "kind"}


def types_of(build: type[Any]) -> dict[str, Any]:
    """Return the type of each argument of a dataclass's constructor."""
    types = get_type_hints(build)
    return {each.name: types[each.name] for each in dataclasses.fields(build) if each.init}


def built(build: Callable[..., T], *parts: object, **fields: object) -> T:
    """Construct a value that checks itself. Its ValueError becomes a RemoteProtocolError."""
    try:
        return build(*parts, **fields)
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc


def read_list(value: object, field: str, *, length_max: int) -> Sequence[object]:
    if not isinstance(value, list) or len(value) > length_max:
        raise RemoteProtocolError(f"{field} must be a list of at most {length_max} items")
    return value


def read_exactly(value: object, length: int, field: str) -> Sequence[object]:
    items = read_list(value, field, length_max=length)
    if len(items) != length:
        raise RemoteProtocolError(f"{field} must have {length} parts")
    return items


def optional(read: Reader) -> Reader:
    """Return a reader that reads as `read` does, but also accepts None."""
    return lambda value, field: None if value is None else read(value, field)


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
