"""The messages with which two peers agree to punch holes in their NATs, and when.

    offer     "these are the addresses of my ports": one candidate for each stream
    answer    "and these are mine"
    go        "begin now"
    refusal   "I will not", with a reason

The peer that offers is the TLS client of all streams. A random nonce connects the messages of one
agreement, so an old message has no effect on a later agreement. This module knows only the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from p2ptrain.dataplane.candidates import STREAMS_MAX, ExternalAddress
from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError

MESSAGE_BYTES_MAX = 2048
"""Maximum bytes of a message: 8 candidates of up to 65 bytes, and the other fields."""
NONCE_BYTES = 16
ABOUT_BYTES_MAX = 200
REASON_BYTES_MAX = 200
ATTEMPTS_MAX = 16
"""Maximum number of times that an offer is sent."""
SPENT_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class PunchOffer:
    """`about` says what the connections are for; the receiver decides whether it wants them.
    `attempt` counts how often the offer was sent before."""

    nonce: bytes
    about: str
    attempt: int
    candidates: tuple[ExternalAddress, ...]

    def __post_init__(self) -> None:
        _check_nonce(self.nonce)
        _check_candidates(self.candidates)
        count(self.attempt, ATTEMPTS_MAX - 1, "an offer")
        if not 0 < len(self.about.encode()) <= ABOUT_BYTES_MAX:
            raise RemoteProtocolError("an offer does not say what it is about, or says too much")


@dataclass(frozen=True, slots=True)
class PunchAnswer:
    """`attempt` is that of the offer which is answered. `spent_ms` is how long the answer took the
    peer, so that the other end can subtract it from the round trip."""

    nonce: bytes
    attempt: int
    spent_ms: int
    candidates: tuple[ExternalAddress, ...]

    def __post_init__(self) -> None:
        _check_nonce(self.nonce)
        _check_candidates(self.candidates)
        count(self.attempt, ATTEMPTS_MAX - 1, "an answer")
        count(self.spent_ms, SPENT_MS_MAX, "an answer")


@dataclass(frozen=True, slots=True)
class PunchGo:
    nonce: bytes

    def __post_init__(self) -> None:
        _check_nonce(self.nonce)


@dataclass(frozen=True, slots=True)
class PunchRefusal:
    nonce: bytes
    reason: str

    def __post_init__(self) -> None:
        _check_nonce(self.nonce)
        if len(self.reason.encode()) > REASON_BYTES_MAX:
            raise RemoteProtocolError("the reason of a refusal is too long")


PunchMessage = PunchOffer | PunchAnswer | PunchGo | PunchRefusal


def encode(message: PunchMessage) -> bytes:
    """Return `message` as bytes, at most MESSAGE_BYTES_MAX."""
    match message:
        case PunchOffer(nonce, about, attempt, candidates):
            wire: dict[str, object] = {
                "kind": "offer",
                "nonce": nonce,
                "about": about,
                "attempt": attempt,
                "candidates": [each.to_wire() for each in candidates],
            }
        case PunchAnswer(nonce, attempt, spent_ms, candidates):
            wire = {
                "kind": "answer",
                "nonce": nonce,
                "attempt": attempt,
                "spent_ms": spent_ms,
                "candidates": [each.to_wire() for each in candidates],
            }
        case PunchGo(nonce):
            wire = {"kind": "go", "nonce": nonce}
        case PunchRefusal(nonce, reason):
            wire = {"kind": "refusal", "nonce": nonce, "reason": reason}
    packed = pack(wire)
    assert len(packed) <= MESSAGE_BYTES_MAX
    return packed


def decode(data: bytes) -> PunchMessage:
    """Parse a message from a peer. Raises RemoteProtocolError if it is malformed."""
    wire = unpack(data, bytes_max=MESSAGE_BYTES_MAX)
    kind = wire.get("kind") if isinstance(wire, dict) else None
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise RemoteProtocolError("a message about punching has no valid kind")
    return read(wire)


def _read_offer(wire: object) -> PunchOffer:
    found = fields(wire, kind=str, nonce=bytes, about=str, attempt=int, candidates=list)
    attempt = count(found["attempt"], ATTEMPTS_MAX - 1, "an offer")
    return PunchOffer(_nonce(found), str(found["about"]), attempt, _candidates(found))


def _read_answer(wire: object) -> PunchAnswer:
    found = fields(wire, kind=str, nonce=bytes, attempt=int, spent_ms=int, candidates=list)
    attempt = count(found["attempt"], ATTEMPTS_MAX - 1, "an answer")
    spent_ms = count(found["spent_ms"], SPENT_MS_MAX, "an answer")
    return PunchAnswer(_nonce(found), attempt, spent_ms, _candidates(found))


def _read_go(wire: object) -> PunchGo:
    return PunchGo(_nonce(fields(wire, kind=str, nonce=bytes)))


def _read_refusal(wire: object) -> PunchRefusal:
    found = fields(wire, kind=str, nonce=bytes, reason=str)
    return PunchRefusal(_nonce(found), str(found["reason"]))


_READERS: dict[str, Callable[[object], PunchMessage]] = {
    "offer": _read_offer,
    "answer": _read_answer,
    "go": _read_go,
    "refusal": _read_refusal,
}


def _nonce(found: Mapping[str, object]) -> bytes:
    nonce = found["nonce"]
    assert isinstance(nonce, bytes)
    return nonce


def _candidates(found: Mapping[str, object]) -> tuple[ExternalAddress, ...]:
    listed = found["candidates"]
    assert isinstance(listed, list)
    if len(listed) > STREAMS_MAX:
        raise RemoteProtocolError("a message names too many candidates")
    return tuple(ExternalAddress.from_wire(each) for each in listed)


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise RemoteProtocolError("a message about punching has no valid nonce")


def _check_candidates(candidates: tuple[ExternalAddress, ...]) -> None:
    if not 0 < len(candidates) <= STREAMS_MAX:
        raise RemoteProtocolError("a message names no candidates, or too many")
