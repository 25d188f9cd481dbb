"""Frames as bytes: a big-endian u32 length, then a canonical msgpack map of fields and `kind`.

This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.frames import BLOCKS_MAX, KINDS, PATH_BYTES_MAX, Frame

FRAME_BYTES_MAX = BLOCKS_MAX * (PATH_BYTES_MAX + 3) + 2**16
"""Maximum bytes of a frame: room for the longest list of blocks with the longest paths. In a
typical frame, a path has 130 bytes and the list has 500 blocks."""

_LENGTH = struct.Struct(">I")

T = TypeVar("T")


def encode(frame: Frame) -> bytes:
    """Return the frame with its length prefix, ready to be sent."""
    body = encode_body(frame)
    assert len(body) <= FRAME_BYTES_MAX, f"a {frame.kind} frame of {len(body)} bytes"
    return _LENGTH.pack(len(body)) + body


def encode_body(message: Any) -> bytes:
    """Return a frame, or another dataclass with a `kind`, as a map without a length prefix."""
    values = {each.name: getattr(message, each.name) for each in fields(message)}
    return pack({"kind": message.kind, **values})


def decode_body(body: bytes | memoryview) -> Frame:
    """Return the frame that `body` (without length prefix) encodes.

    Raises RemoteProtocolError: `body` is not exactly one valid frame.
    """
    return decode_map(body, KINDS, FRAME_BYTES_MAX, "frame")


def decode_map(
    body: bytes | memoryview, kinds: Mapping[str, type[T]], bytes_max: int, what: str
) -> T:
    """Return the dataclass that `body` encodes, one of `kinds`. `what` is its name in errors.

    Raises RemoteProtocolError: `body` is not exactly one valid map.
    """
    value = unpack(body, bytes_max=bytes_max)
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise RemoteProtocolError(f"a {what} of a trainer is not a map with a kind")
    made: Any = kinds.get(kind := value.pop("kind"))
    if made is None:
        raise RemoteProtocolError(f"a {what} of a trainer has the unknown kind {kind[:40]!r}")
    if set(value) != {field.name for field in fields(made)}:
        raise RemoteProtocolError(f"a {kind} {what} has the wrong fields: {sorted(value)[:8]}")
    try:
        decoded: T = made(**{name: _tuples(item) for name, item in value.items()})
    except ValueError as exc:
        raise RemoteProtocolError(f"a {kind} {what} is invalid: {exc}") from exc
    return decoded


def _tuples(item: object) -> object:
    """Return `item` with tuples instead of lists, since no field of these messages is a list."""
    return tuple(map(_tuples, item)) if isinstance(item, list) else item


class FrameReader:
    """Turns the bytes of a stream, in pieces of any size, into frames.

    After an error, close the stream, because frame boundaries can no longer be found.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return all frames that `data` completes, in order.

        Raises RemoteProtocolError: a frame is too long or invalid.
        """
        self._pending += data
        return [decode_body(body) for body in iter(self._take_body, None)]

    def end(self) -> None:
        """Report the end of the stream. Raises RemoteProtocolError if it ended inside a frame."""
        if self._pending:
            raise RemoteProtocolError(f"the stream ended {len(self._pending)} bytes into a frame")

    def _take_body(self) -> bytes | None:
        if len(self._pending) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._pending)
        if length > FRAME_BYTES_MAX:
            raise RemoteProtocolError(
                f"a frame of {length} bytes exceeds the limit: {FRAME_BYTES_MAX}"
            )
        end = _LENGTH.size + length
        if len(self._pending) < end:
            return None
        body = bytes(self._pending[_LENGTH.size : end])
        del self._pending[:end]
        return body
