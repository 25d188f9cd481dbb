"""The frames of a reduce: a header of fixed size, and a body whose length is known in advance.

    SUM       payload bytes of one segment, on their way to the owner of its part
    MEAN      payload bytes of one segment, as computed by its owner
    WAITING   the sender cannot send its next segment yet; peer number `part` waits for peer number
              `index` (see wait_for); no body
    DONE      the last frame of this connection, unless an ABORT follows; no body
    SUM_SIGNED, MEAN_SIGNED
              a signature for all SUMs or MEANs of a part (see hop_signatures); only in a reduce
              whose peers sign
    ABORT     the reduce is over; the body names the suspects and the reason

A receiver checks each field against its own plan. It never trusts a length that a peer announces.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import astuple, dataclass
from enum import IntEnum

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ring.blame import Blame

_HEADER = struct.Struct("<BBHIIII8s")
HEADER_BYTES = _HEADER.size
ABORT_BYTES_MAX = 2048
"""Maximum bytes of an ABORT's body: room for a reason of 200 characters and a few peer ids."""
_REASON_CHARACTERS_MAX = 200
_SUSPECTS_MAX = 16


class Kind(IntEnum):
    SUM = 1
    MEAN = 2
    WAITING = 3
    ABORT = 4
    DONE = 5
    SUM_SIGNED = 6
    MEAN_SIGNED = 7


_KINDS = frozenset(Kind)
SIGNATURES = (Kind.SUM_SIGNED, Kind.MEAN_SIGNED)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a frame. Its fields are in their order on the wire."""

    kind: Kind
    stream: int
    part: int
    index: int
    length: int
    step: int
    attempt: int
    tag: bytes

    def encode(self) -> bytes:
        return _HEADER.pack(*astuple(self))


def decode_header(data: bytes | bytearray) -> Header:
    """Decode a header. Raises RemoteProtocolError if `data` is not a valid header."""
    kind, *rest = _HEADER.unpack(data)
    if kind not in _KINDS:
        raise RemoteProtocolError(f"a frame has the unknown kind {kind}")
    return Header(Kind(kind), *rest)


def encode_blame(blame: Blame) -> bytes:
    suspects, reason = list(blame.suspects[:_SUSPECTS_MAX]), blame.reason[:_REASON_CHARACTERS_MAX]
    return pack({"suspects": suspects, "reason": reason})


def decode_blame(data: bytes | bytearray, members: Collection[PeerId]) -> Blame:
    """Decode the body of an ABORT. Suspects must be among `members`, the peers of the reduce.

    Raises:
        RemoteProtocolError: the body is malformed, or a suspect is not among `members`.
    """
    given = fields(unpack(bytes(data), bytes_max=ABORT_BYTES_MAX), suspects=list, reason=str)
    named, reason = given["suspects"], given["reason"]
    assert isinstance(named, list)
    assert isinstance(reason, str)
    if len(named) > _SUSPECTS_MAX or any(name not in members for name in named):
        raise RemoteProtocolError(
            "an abort names too many suspects, or peers that do not take part"
        )
    printable = "".join(letter if letter.isprintable() else "?" for letter in reason)
    return Blame(tuple(named), printable[:_REASON_CHARACTERS_MAX], heard=True)
