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
from p2ptrain.run.manifest import CodecSpec, RunManifest
from p2ptrain.store import BlobManifest
from p2ptrain.sync.fragments import Fragment, fragments
from p2ptrain.trainer.shapes import layout_of

KIND = "update"


class Blobs(Protocol):
    """A store, or one that is only read. Both raise StoreError."""

    def manifest(self, digest: Digest) -> BlobManifest: ...

    def read_blob(self, digest: Digest) -> bytes: ...


@dataclass(frozen=True, slots=True)
class UpdateFormat:
    """The updates of one run. That of an outer step is about one of its `fragments`."""

    run: RunId
    fragments: tuple[Fragment, ...]
    spec: CodecSpec

    @property
    def codec(self) -> kernels.Codec:
        return kernels.codec(self.spec.name, self.spec.block)

    @classmethod
    def of(cls, run: RunId, manifest: RunManifest) -> UpdateFormat:
        """That of the updates of `run`, whose manifest this is."""
        cut = fragments(layout_of(manifest.model), manifest.sync.fragments)
        return cls(run, cut, manifest.codec)

    def fragment(self, step: int) -> Fragment:
        """What the update of outer step `step` is about."""
        return self.fragments[step % len(self.fragments)]

    def payload_bytes(self, step: int) -> int:
        """The length of the update of `step`."""
        return self.codec.encoded_bytes(self.fragment(step).numel)

    @property
    def payload_bytes_mean(self) -> int:
        """As long as the update of an outer step is on average."""
        lengths = [self.payload_bytes(step) for step in range(len(self.fragments))]
        return sum(lengths) // len(lengths)

    def meta(self, step: int) -> dict[str, object]:
        """What an update says of itself. Equal on all peers, since it is part of what is named."""
        return {
            "run": self.run,
            "step": step,
            "numel": self.fragment(step).numel,
            "codec": self.spec.name,
            "block": self.spec.block,
        }

    def check_manifest(self, blobs: Blobs, digest: Digest, step: int) -> None:
        """Raises RemoteProtocolError for what is no update of `step`; StoreError."""
        manifest = blobs.manifest(digest)
        if manifest.kind != KIND or dict(manifest.meta) != self.meta(step):
            raise RemoteProtocolError(f"{digest[:12]} is not an update of outer step {step}")
        if manifest.size != self.payload_bytes(step):
            raise RemoteProtocolError(f"update {digest[:12]} has {manifest.size} bytes")

    def read(self, blobs: Blobs, digest: Digest, step: int) -> bytes:
        """The payload, which can be applied. Raises as `check_manifest` does."""
        self.check_manifest(blobs, digest, step)
        payload = blobs.read_blob(digest)
        try:
            self.codec.check(payload, self.fragment(step).numel)
        except kernels.BadScale as exc:
            what = f"update {digest[:12]} holds what no codec writes"
            raise RemoteProtocolError(what) from exc
        return payload
