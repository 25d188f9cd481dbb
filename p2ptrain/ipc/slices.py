"""Requests of a rank that does not share memory with its node: reading θ, writing its weights.

    rank → node                                   node → rank
    ─────────────────────────────────────────     ──────────────────────────────────────
                                                  Welcome, once all ranks have joined; or Refused
    ReadTheta   these ranges of θ                 their bytes, one range after another
    WriteLocal  these ranges, then their bytes    one byte, once the node has stored all bytes
    ReadBlock   a data block, by its path         its length as u32, its bytes; 0 if it is missing
    Ending      the rank's exit status            nothing

A message is a big-endian u32 length and a canonical msgpack map, like a frame. Weights that follow
a message are little-endian fp32, as in memory. A rank has one open request at a time. Ranges count
elements of the run's canonical layout, so this module knows nothing about shards or the number of
ranks.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.frames import check_text
from p2ptrain.ipc.wire import decode_map, encode_body

MESSAGE_BYTES_MAX = 2**20
RANGES_MAX = 2**15
"""Maximum number of ranges in one message: several times as many as a model of 1000 layers needs,
and few enough for MESSAGE_BYTES_MAX."""
PATH_CHARACTERS_MAX = 4096
CONFIG_CHARACTERS_MAX = 2**16
REASON_CHARACTERS_MAX = 400
PIECE_BYTES = 2**22
DONE = b"\x01"
LENGTH = struct.Struct(">I")

Ranges = Sequence[tuple[int, int]]
"""Start and end of each range, in elements."""


def _check_ranges(ranges: object) -> None:
    if not isinstance(ranges, tuple) or not 0 < len(ranges) <= RANGES_MAX:
        raise ValueError(f"not a tuple of 1 to {RANGES_MAX} ranges")
    for each in ranges:
        if not isinstance(each, tuple) or len(each) != 2:
            raise ValueError("a range is not a start and an end")
        start, end = each
        if type(start) is not int or type(end) is not int or not 0 <= start < end:
            raise ValueError(f"{start!r} to {end!r} is not a valid range")


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node's answer once all ranks have connected. `generation` differs each time the ranks
    connect anew; `config` is the TrainerConfig as JSON."""

    kind: ClassVar[str] = "welcome"
    generation: int
    config: str

    def __post_init__(self) -> None:
        if type(self.generation) is not int or self.generation < 0:
            raise ValueError(f"generation is {self.generation!r}, not a count")
        check_text("config", self.config, CONFIG_CHARACTERS_MAX)


@dataclass(frozen=True, slots=True)
class Refused:
    """The caller knows the secret, but this rank is not accepted."""

    kind: ClassVar[str] = "refused"
    reason: str

    def __post_init__(self) -> None:
        check_text("reason", self.reason, REASON_CHARACTERS_MAX)


@dataclass(frozen=True, slots=True)
class _OfRanges:
    ranges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check_ranges(self.ranges)


class ReadTheta(_OfRanges):
    __slots__ = ()
    kind: ClassVar[str] = "read-theta"


class WriteLocal(_OfRanges):
    __slots__ = ()
    kind: ClassVar[str] = "write-local"


@dataclass(frozen=True, slots=True)
class ReadBlock:
    kind: ClassVar[str] = "read-block"
    path: str

    def __post_init__(self) -> None:
        check_text("path", self.path, PATH_CHARACTERS_MAX)


@dataclass(frozen=True, slots=True)
class Ending:
    kind: ClassVar[str] = "ending"
    status: int

    def __post_init__(self) -> None:
        if type(self.status) is not int or not 0 <= self.status < 256:
            raise ValueError(f"status is {self.status!r}, not an exit status")


Message = Welcome | Refused | ReadTheta | WriteLocal | ReadBlock | Ending
_KINDS: dict[str, type[Message]] = {each.kind: each for each in get_args(Message)}


def send(sock: socket.socket, message: Message) -> None:
    """Send one message. Raises OSError."""
    body = encode_body(message)
    assert len(body) <= MESSAGE_BYTES_MAX, f"a {message.kind} message of {len(body)} bytes"
    sock.sendall(LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket) -> Message | None:
    """Return the next message; None if the other side closed the connection between two messages.

    Raises RemoteProtocolError, OSError.
    """
    try:
        first = sock.recv(1)
    except ConnectionError:
        return None
    if not first:
        return None
    (count,) = LENGTH.unpack(first + receive_bytes(sock, LENGTH.size - 1))
    if count > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a message of {count} bytes exceeds the limit: {MESSAGE_BYTES_MAX}"
        )
    return decode(receive_bytes(sock, count))


def decode(body: bytes) -> Message:
    """Return the message that `body` encodes.

    Raises RemoteProtocolError: `body` is not exactly one valid message.
    """
    return decode_map(body, _KINDS, MESSAGE_BYTES_MAX, "message")


def receive_bytes(sock: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes. Raises OSError."""
    data = bytearray(count)
    receive_into(sock, memoryview(data))
    return bytes(data)


def receive_into(sock: socket.socket, view: memoryview) -> None:
    """Fill `view` with bytes from `sock`. Raises OSError."""
    while view:
        got = sock.recv_into(view, min(len(view), PIECE_BYTES))
        if got == 0:
            raise ConnectionError("the other side closed the connection in the middle of a message")
        view = view[got:]


def stay_alert(sock: socket.socket) -> None:
    """Make the kernel detect within half a minute that the other machine is gone, even on a
    connection that is idle for hours."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 10),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, 30_000),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def bear_silence(sock: socket.socket) -> None:
    """Disable the send timeout that `stay_alert` sets. Use this on the connection for frames: a
    busy rank does not read frames for minutes, and the timeout would close the connection half a
    minute after the send buffer is full, although the rank is alive. A lost machine is still
    detected on the rank's other connection, on which it sends the requests of this module."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
