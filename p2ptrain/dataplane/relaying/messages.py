"""The messages between a relay and the two ends of a relayed connection.

    A ──► relay    hello: purpose "relay", the other end B, and a key
    B ──► relay    hello: purpose "relay", the other end A, and the same key
    relay ──► both joined, or refused with a kind and a reason

The key says what the connection is for. It names the end that is the TLS client inside, the
dialler. This module knows only the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId, RunId, is_digest

PURPOSE = "relay"
ANSWER_BYTES_MAX = 512
REASON_CHARACTERS_MAX = 100
"""At most four bytes each, so an answer fits into ANSWER_BYTES_MAX."""
NONCE_BYTES = 16
COUNT_MAX = 1 << 40
STREAMS_MAX = 64
"""Maximum number of streams of an edge, as in a reduce."""


@dataclass(frozen=True, slots=True)
class EdgeKey:
    """One stream of one attempt at a reduce, between two neighbours. `dialler` is the TLS client.

    Raises:
        RemoteProtocolError: a field is invalid.
    """

    run: RunId
    step: int
    attempt: int
    stream: int
    dialler: PeerId

    def __post_init__(self) -> None:
        _check_ids(self.run, self.dialler)
        count(self.step, COUNT_MAX, "a relayed edge")
        count(self.attempt, COUNT_MAX, "a relayed edge")
        count(self.stream, STREAMS_MAX - 1, "a relayed edge")

    def to_wire(self) -> dict[str, object]:
        numbers = {"step": self.step, "attempt": self.attempt, "stream": self.stream}
        return {"kind": "edge", "run": self.run, "dialler": self.dialler, **numbers}


@dataclass(frozen=True, slots=True)
class FetchKey:
    """One connection over which `dialler` fetches chunks. The random nonce tells it from others.

    Raises:
        RemoteProtocolError: a field is invalid.
    """

    run: RunId
    nonce: bytes
    dialler: PeerId

    def __post_init__(self) -> None:
        _check_ids(self.run, self.dialler)
        if len(self.nonce) != NONCE_BYTES:
            raise RemoteProtocolError("a relayed fetch has no valid nonce")

    def to_wire(self) -> dict[str, object]:
        return {"kind": "fetch", "run": self.run, "dialler": self.dialler, "nonce": self.nonce}


RelayKey = EdgeKey | FetchKey


def key_from_wire(value: object) -> RelayKey:
    """Parse a key from a peer. Raises RemoteProtocolError if it is malformed."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == "edge":
        numbers = dict.fromkeys(("step", "attempt", "stream"), int)
        wire = fields(value, kind=str, run=str, dialler=str, **numbers)
        step, attempt, stream = (int(str(wire[name])) for name in numbers)
        run, dialler = RunId(str(wire["run"])), PeerId(str(wire["dialler"]))
        return EdgeKey(run, step, attempt, stream, dialler)
    if kind == "fetch":
        wire = fields(value, kind=str, run=str, dialler=str, nonce=bytes)
        nonce = wire["nonce"]
        assert isinstance(nonce, bytes)
        return FetchKey(RunId(str(wire["run"])), nonce, PeerId(str(wire["dialler"])))
    raise RemoteProtocolError("a relay's key has no valid kind")


Pair = tuple[PeerId, PeerId]


@dataclass(frozen=True, slots=True)
class EdgeId:
    """All streams between two peers for one purpose: they count as one edge. `purpose` is the key
    without its stream."""

    pair: Pair
    purpose: tuple[object, ...]

    @property
    def is_fetch(self) -> bool:
        return self.purpose[0] == "fetch"


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """`peer` asks to be joined with `other` under `key`.

    Raises:
        RemoteProtocolError: the two ends are the same, or the dialler is neither of them.
    """

    peer: PeerId
    other: PeerId
    key: RelayKey

    def __post_init__(self) -> None:
        if not is_peer_id(self.other) or self.other == self.peer:
            raise RemoteProtocolError("a relay's request names no other end", peer=self.peer)
        if self.key.dialler not in (self.peer, self.other):
            raise RemoteProtocolError("a relay's request has a foreign dialler", peer=self.peer)

    @property
    def edge(self) -> EdgeId:
        low, high = sorted((self.peer, self.other))
        if isinstance(self.key, EdgeKey):
            return EdgeId((low, high), ("edge", self.key.run, self.key.step, self.key.attempt))
        return EdgeId((low, high), ("fetch", self.key.run, self.key.nonce))

    def to_hello(self) -> dict[str, object]:
        return {"purpose": PURPOSE, "with": self.other, "key": self.key.to_wire()}

    @classmethod
    def from_hello(cls, hello: Mapping[str, object], peer: PeerId) -> RelayRequest:
        """Parse the hello of `peer`. Raises RemoteProtocolError if it is malformed."""
        if set(hello) != {"purpose", "with", "key"}:
            raise RemoteProtocolError("a hello to a relay is malformed", peer=peer)
        return cls(peer, PeerId(str(hello["with"])), key_from_wire(hello["key"]))


class Refusal(StrEnum):
    """Why the relay does not join two peers."""

    NOT_ALLOWED = "not-allowed"
    """The peers may not use this relay for this purpose."""
    FULL = "full"
    """The relay's limits are reached."""
    ABSENT = "absent"
    """The other end did not come in time."""
    OTHER = "other"
    """A kind that this version does not know."""


@dataclass(frozen=True, slots=True)
class Refused:
    kind: Refusal
    reason: str


def encode_answer(refused: Refused | None) -> bytes:
    """Return the relay's answer; None means that the two ends are joined."""
    if refused is None:
        return pack({"joined": True, "kind": "", "reason": ""})
    reason = refused.reason[:REASON_CHARACTERS_MAX]
    return pack({"joined": False, "kind": str(refused.kind), "reason": reason})


def decode_answer(data: bytes) -> Refused | None:
    """Parse a relay's answer. Raises RemoteProtocolError if it is malformed."""
    wire = fields(unpack(data, bytes_max=ANSWER_BYTES_MAX), joined=bool, kind=str, reason=str)
    if wire["joined"]:
        return None
    known = {str(kind): kind for kind in Refusal}
    reason = str(wire["reason"])[:REASON_CHARACTERS_MAX]
    shown = "".join(each if each.isprintable() else "?" for each in reason)
    return Refused(known.get(str(wire["kind"]), Refusal.OTHER), shown)


def _check_ids(run: str, peer: str) -> None:
    if not is_digest(run) or not is_peer_id(peer):
        raise RemoteProtocolError("a relay's key names an invalid run or peer")
