"""The head: this node's position in a run, in one small file that is replaced atomically.

The head is written last, after everything that it refers to is durable. So everything that a head
refers to can be loaded. The file begins with a digest of its content, so that damage is detected.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from blake3 import blake3

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.ids import Digest, RunId, is_digest

HEAD_BYTES_MAX = 4096
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Head:
    """The ledger position (`height`, `head`) and outer step up to which entries were applied.

    `snapshot` is the newest snapshot that this store holds completely, of outer step
    `snapshot_step`. Both are None if the store does not hold a snapshot yet.
    """

    run: RunId
    height: int
    head: Digest
    step: int
    snapshot: Digest | None = None
    snapshot_step: int | None = None

    def __post_init__(self) -> None:
        assert is_digest(self.run)
        assert is_digest(self.head)
        assert min(self.height, self.step) >= 0
        assert (self.snapshot is None) == (self.snapshot_step is None)
        assert self.snapshot is None or is_digest(self.snapshot)

    def to_bytes(self) -> bytes:
        body = pack(asdict(self))
        return blake3(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> Head:
        """Parse a head file. Raises StoreError with code STORE-HEAD if it is damaged."""
        body = data[_DIGEST_BYTES:]
        try:
            if blake3(body).digest() != data[:_DIGEST_BYTES]:
                raise RemoteProtocolError("it does not match its own digest")
            value, none = unpack(body, bytes_max=HEAD_BYTES_MAX), type(None)
            optional = {"snapshot": (str, none), "snapshot_step": (int, none)}
            found: dict[str, Any] = fields(
                value, run=str, height=int, head=str, step=int, **optional
            )
            return cls(**found)
        except RemoteProtocolError as exc:
            raise StoreError(
                f"the store's head is damaged: {exc.what}",
                code="STORE-HEAD",
                likely="the disk is faulty, or another program wrote into the store",
                do="remove the file `head` from the store; the node then rejoins the run",
            ) from exc
