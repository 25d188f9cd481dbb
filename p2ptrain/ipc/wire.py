"""Frames as bytes: a big-endian u32 length, then a canonical msgpack map of fields and `kind`.

This module does no I/O.
"""

from __future__ import annotations

import struct
from dataclasses import fields

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.frames import BLOCKS_MAX, KINDS, PATH_BYTES_MAX, Frame

FRAME_BYTES_MAX = BLOCKS_MAX * (PATH_BYTES_MAX + 3) + 2**16
"""Maximum bytes of a frame: room for the longest list of blocks with the longest paths. In a
typical frame, a path has 130 bytes and the list has 500 blocks."""

_LENGTH = struct.Struct(">I")


def encode(frame: Frame) -> bytes:
    """Return the frame with its length prefix, ready to be sent."""
    body = encode_body(frame)
    assert len(body) <= FRAME_BYTES_MAX, f"a {frame.kind} frame of {len(body)} bytes"
    return _LENGTH.pack(len(body)) + body


def encode_body(frame: Frame) -> bytes:
    """Return the frame without its length prefix."""
    return pack({"kind": frame.kind} | {f.name: getattr(frame, f.name) for f in fields(frame)})


def decode_body(body: bytes | memoryview) -> Frame:
    """Return the frame that `body` (without length prefix) encodes.

    Raises:
        RemoteProtocolError: `body` is not exactly one valid frame.
    """
    value = unpack(body, bytes_max=FRAME_BYTES_MAX)
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise RemoteProtocolError("a trainer frame is not a map with a kind")
    frame_type = KINDS.get(kind := value.pop("kind"))
    if frame_type is None:
        raise RemoteProtocolError(f"a trainer frame has the unknown kind {kind[:40]!r}")
    if isinstance(paths := value.get("block_paths"), list):
        value["block_paths"] = tuple(paths)
    if set(value) != {field.name for field in fields(frame_type)}:
        raise RemoteProtocolError(f"a {kind} frame has the wrong fields: {sorted(value)[:8]}")
    try:
        return frame_type(**value)
    except ValueError as exc:
        raise RemoteProtocolError(f"a {kind} frame is invalid: {exc}") from exc


class FrameReader:
    """Turns the bytes of a stream, in pieces of any size, into frames.

    After an error, close the stream, because frame boundaries can no longer be found.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return all frames that `data` completes, in order.

        Raises:
            RemoteProtocolError: a frame is too long or invalid.
        """
        self._pending += data
        frames: list[Frame] = []
        while (body := self._take_body()) is not None:
            frames.append(decode_body(body))
        return frames

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
                f"a frame of {length} bytes exceeds the limit of {FRAME_BYTES_MAX}"
            )
        end = _LENGTH.size + length
        if len(self._pending) < end:
            return None
        body = bytes(self._pending[_LENGTH.size : end])
        del self._pending[:end]
        return body
