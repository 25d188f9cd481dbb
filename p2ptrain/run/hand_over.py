"""Replace an organiser's key by a new one: a document that the organisers sign.

An organiser signs it with the old key, to change it. If the old key is lost, other organisers sign
it: as many as must sign an allowlist. Documents that the old key signed before stay valid: each
hand-over names the first allowlist and the first amendment for which the old key does not count.

A key can be replaced once, and the first hand-over that a node gets stays: a thief of the old key
could sign another one later. `number` orders the hand-overs, because the signer of a later one may
be a key that an earlier one has introduced.

This module does not know which keys are in force: see `published_run`.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.run.co_organisers import ORGANISERS_MAX
from p2ptrain.run.envelope import COSIGNATURES_BYTES_MAX, Signed
from p2ptrain.run.reading import from_plain, plain

KIND = "hand-over"
HAND_OVER_BYTES_MAX = 1024 + COSIGNATURES_BYTES_MAX
HAND_OVERS_MAX = 32
"""Maximum number of hand-overs in a run. Every newcomer gets and checks all of them."""

NUMBER_MAX = 2**53


@dataclass(frozen=True, slots=True)
class HandOver:
    """The key `old` is replaced by `new`. Signatures by `old` count only for allowlists with a
    number below `first_list`, and for amendments with one below `first_amendment`."""

    run: RunId
    number: int
    old: PeerId
    new: PeerId
    first_list: int
    first_amendment: int
    created_unix: int

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if not 1 <= self.number <= HAND_OVERS_MAX:
            raise ValueError(f"number {self.number} is not 1 to {HAND_OVERS_MAX}")
        if not (is_peer_id(self.old) and is_peer_id(self.new)) or self.old == self.new:
            raise ValueError("the old and the new key are not two peer ids")
        for value in (self.first_list, self.first_amendment, self.created_unix):
            if not 0 <= value <= NUMBER_MAX:
                raise ValueError("a number of the hand-over is out of range")


@dataclass(frozen=True, slots=True)
class SignedHandOver:
    """A hand-over with its signatures, as sent to peers and stored in a node's home."""

    hand_over: HandOver
    signed: Signed

    @classmethod
    def publish(cls, identity: Identity, hand_over: HandOver) -> SignedHandOver:
        return cls(hand_over, Signed.by(identity, KIND, pack(plain(hand_over))))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, run: RunId) -> SignedHandOver:
        """Return the hand-over of `run` in `data`, which may come from any peer. Whether its
        signers may sign it is not checked here.

        Raises RemoteProtocolError: it is too long, malformed, altered, or of another run."""
        bytes_max = HAND_OVER_BYTES_MAX
        signed = Signed.from_bytes(
            data, kind=KIND, bytes_max=bytes_max, signatures_max=ORGANISERS_MAX
        )
        payload = unpack(signed.payload, bytes_max=bytes_max)
        hand_over = from_plain(HandOver, payload, "the hand-over")
        if hand_over.run != run:
            raise RemoteProtocolError("this hand-over belongs to a different run")
        return cls(hand_over, signed)

    def to_bytes(self) -> bytes:
        return self.signed.to_bytes()
