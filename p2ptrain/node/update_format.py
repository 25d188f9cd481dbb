"""What an update of a run is as a blob: the checks that are the same for a node and for an audit.

An update is named by the ledger, but a name says nothing of what it names. What is read here has
the size, the description and the scales that every update of the run has; whether it is the right
one, its digest says. Nothing here knows of peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from p2ptrain import kernels
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, RunId
from p2ptrain.run.manifest import CodecSpec
from p2ptrain.store import BlobManifest

KIND = "update"


class Blobs(Protocol):
    """A store, or one that is only read. Both raise StoreError."""

    def manifest(self, digest: Digest) -> BlobManifest: ...

    def read_blob(self, digest: Digest) -> bytes: ...


@dataclass(frozen=True, slots=True)
class UpdateFormat:
    """The updates of one run, of `numel` parameters each."""

    run: RunId
    numel: int
    spec: CodecSpec

    @property
    def codec(self) -> kernels.Codec:
        return kernels.codec(self.spec.name, self.spec.block)

    @property
    def payload_bytes(self) -> int:
        """The length of every update."""
        return self.codec.encoded_bytes(self.numel)

    def meta(self, step: int) -> dict[str, object]:
        """What an update says of itself. Equal on all peers, since it is part of what is named."""
        return {
            "run": self.run,
            "step": step,
            "numel": self.numel,
            "codec": self.spec.name,
            "block": self.spec.block,
        }

    def check_manifest(self, blobs: Blobs, digest: Digest, step: int) -> None:
        """Raises RemoteProtocolError for what is no update of `step`; StoreError."""
        manifest = blobs.manifest(digest)
        if manifest.kind != KIND or dict(manifest.meta) != self.meta(step):
            raise RemoteProtocolError(f"{digest[:12]} is not an update of outer step {step}")
        if manifest.size != self.payload_bytes:
            raise RemoteProtocolError(f"update {digest[:12]} has {manifest.size} bytes")

    def read(self, blobs: Blobs, digest: Digest, step: int) -> bytes:
        """The payload, which can be applied. Raises as `check_manifest` does."""
        self.check_manifest(blobs, digest, step)
        payload = blobs.read_blob(digest)
        try:
            self.codec.check(payload, self.numel)
        except kernels.BadScale as exc:
            what = f"update {digest[:12]} holds what no codec writes"
            raise RemoteProtocolError(what) from exc
        return payload
