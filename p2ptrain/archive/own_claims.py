"""The claims of this node on disk (the ledger's SPEC.md, C1 and S15).

A peer must never use a serial number twice, and must not change its contribution after others know
its claim. So a claim and its serial number are durable before anybody else sees them. After a
restart, the node finds its newest claims here, and their contributions in its store.

The log keeps the newest claims only. Their number is small: a node makes one claim for an outer
step, and another one if it loses its work.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import P2PTrainError, StoreError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import LineId
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.proofs.claims import (
    CLAIM_BYTES_MAX,
    Claim,
    decode_claim,
    encode_claim,
    signed_statement,
)
from p2ptrain.store import Disk, RecordLog

KEPT_STEPS = 2
"""Number of outer steps for which a contribution is kept after its own one, so that others can
check the average."""

CLAIMS_KEPT = 16
"""Number of claims that the log keeps. A node that restarts in every outer step makes two claims
for each, so these are enough for the steps in KEPT_STEPS."""

RECORDS_MAX = 64
"""Number of records after which the log is rewritten with the newest claims: about 40 kB."""

_RECORD_BYTES_MAX = CLAIM_BYTES_MAX + 65_536
"""Maximum size of a record: a claim, a signature, and up to 4,096 numbers of blocks."""


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """A claim of this node, with its signed statement and the blocks that the work used."""

    claim: Claim
    said: ClaimStatement
    trained: tuple[int, ...]


class OwnClaims:
    """The newest claims of this node, oldest first. Any thread may call any method."""

    def __init__(self, path: Path, identity: Identity, disk: Disk | None = None) -> None:
        """Raises StoreError: the log is damaged. Then nobody knows which numbers were used."""
        self._identity = identity
        self._making = threading.Lock()
        try:
            self._log = RecordLog(path, disk=disk)
            records = list(self._log)
            self._made = tuple(map(_from_record, records))[-CLAIMS_KEPT:]
        except P2PTrainError as exc:
            raise StoreError(
                f"{path} cannot be read: {exc.what}",
                code="CLAIMS-BROKEN",
                likely="the file is damaged, or another program wrote into it",
                do=(
                    f"move {path.parent} away and join again as a new peer; without this file the "
                    "node might contradict claims that it made before"
                ),
            ) from exc
        self._records = len(records)
        self._log.keep_open()

    def close(self) -> None:
        self._log.close()

    @property
    def newest(self) -> OwnClaim | None:
        return self._made[-1] if self._made else None

    def named(self, digest: Digest) -> Claim | None:
        """Return the kept claim with this digest, if there is one."""
        found = (each.claim for each in self._made if each.claim.digest == digest)
        return next(found, None)

    def contributions(self, step: int) -> tuple[Digest, ...]:
        """Return the contributions that must be kept while outer step `step` is the current one."""
        claims = (each.claim for each in self._made)
        return tuple(each.contribution for each in claims if each.step >= step - KEPT_STEPS)

    def make(
        self,
        line: LineId,
        step: int,
        base: Digest | None,
        tokens: int,
        trained: tuple[int, ...],
        contribution: Digest,
        *,
        serial_min: int = 1,
    ) -> OwnClaim:
        """Make a claim with the next serial number, or with `serial_min` if that is higher, and
        return it once it is durable.
        Raises StoreError: it cannot be written; then nobody may see it.
        """
        with self._making:
            last = 0 if self.newest is None else self.newest.claim.serial
            serial = max(last + 1, serial_min)
            me, blocks = self._identity.peer, len(trained)
            claim = Claim(me, line, step, serial, base, tokens, blocks, contribution)
            made = OwnClaim(claim, signed_statement(claim, self._identity.sign), trained)
            kept = (*self._made, made)[-CLAIMS_KEPT:]
            if self._records >= RECORDS_MAX:
                self._log.rewrite(map(_to_record, kept))
                self._records = len(kept)
            else:
                self._log.append([_to_record(made)])
                self._records += 1
            self._made = kept
            return made


def _to_record(made: OwnClaim) -> bytes:
    signature, trained = made.said.signature, list(made.trained)
    return pack({"claim": encode_claim(made.claim), "signature": signature, "trained": trained})


def _from_record(record: bytes) -> OwnClaim:
    value = unpack(record, bytes_max=_RECORD_BYTES_MAX)
    told = fields(value, claim=bytes, signature=bytes, trained=list)
    document, signature, trained = told["claim"], told["signature"], told["trained"]
    assert isinstance(document, bytes)
    assert isinstance(signature, bytes)
    assert isinstance(trained, list)
    claim = decode_claim(document)
    numbers = (claim.step, claim.serial, claim.tokens, claim.blocks)
    return OwnClaim(claim, ClaimStatement(*numbers, claim.digest, signature), tuple(trained))
