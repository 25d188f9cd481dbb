"""A signed record of a run's progress after an outer step, and its comparison with the ledger.

The ledger proves the outer step, its tokens and its members. It does not contain a loss, so a loss
is only the claim of the record's signer. A record names the entry to which it belongs, and a reader
ignores records that contradict the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from p2ptrain.encoding import pack, unpack
from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.ids import Digest, PeerId, RunId, is_digest
from p2ptrain.run.envelope import Signed
from p2ptrain.run.reading import from_plain, plain

KIND = "telemetry"
RECORD_BYTES_MAX = 8192
PEERS_MAX = 64
"""Maximum number of participants that a record names. With 56 bytes for each, a record fits."""

LOSS_MAX_NATS = 1e4
COUNT_MAX = 2**53


@dataclass(frozen=True, slots=True)
class TelemetryRecord:
    """The run after its outer step counter has become `step`, according to the signer.

    `head` is the entry at `height`, which ended the step before. `tokens` and `participants` are
    those of the ledger. `loss` is the mean loss of the participants' training, and `held_out` the
    loss of θ of outer step `held_out_step`, in nats per token; None if unknown. `peers` names the
    participants, if the run's manifest allows it.
    """

    run: RunId
    step: int
    height: int
    head: Digest
    tokens: int
    participants: int
    members: int
    loss: float | None
    held_out: float | None
    held_out_step: int
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (is_digest(self.run) and is_digest(self.head)):
            raise ValueError("run or head is not a digest")
        counts = (self.step, self.height, self.tokens, self.held_out_step)
        if not all(0 <= each <= COUNT_MAX for each in (*counts, self.participants, self.members)):
            raise ValueError("a count is out of range")
        for loss in (self.loss, self.held_out):
            if loss is not None and not (math.isfinite(loss) and 0 <= loss <= LOSS_MAX_NATS):
                raise ValueError("a loss is out of range")
        if len(self.peers) > PEERS_MAX or not all(map(is_peer_id, self.peers)):
            raise ValueError(f"peers is not a list of at most {PEERS_MAX} peer ids")

    def to_bytes(self, identity: Identity) -> bytes:
        """Return the record, signed by `identity`."""
        return Signed.by(identity, KIND, pack(plain(self))).to_bytes()


def read_record(data: bytes) -> tuple[PeerId, TelemetryRecord]:
    """Return the signer and the record. Raises RemoteProtocolError: the record is malformed, or the
    signature is wrong."""
    signed = Signed.from_bytes(data, kind=KIND, bytes_max=RECORD_BYTES_MAX)
    value = unpack(signed.payload, bytes_max=RECORD_BYTES_MAX)
    return signed.signer, from_plain(TelemetryRecord, value, "a telemetry record")
