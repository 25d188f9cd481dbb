"""The format of an update as a blob: the checks that nodes and audits share.

The ledger refers to an update by digest, and a digest says nothing about the format. An update that
is read here has the size, the meta and the valid scales that every update of its outer step must
have. Whether it is the right update follows from its digest. This module knows nothing about peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2ptrain import kernels
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, RunId
from p2ptrain.ledger.chain.values import Roster, Schedule
from p2ptrain.ring import mean_max
from p2ptrain.run.manifest import CodecSpec, RunManifest
from p2ptrain.state import Layout
from p2ptrain.store import BlobReader, Store
from p2ptrain.sync.fragments import Fragment, fragments
from p2ptrain.trainer.formats.shapes import layout_of

KIND = "update"

Floats = NDArray[np.float32]

_RUN = 1 << 20
"""Elements to decode at a time: a few megabytes."""


@dataclass(frozen=True, slots=True)
class ReduceShape:
    """The schedule and number of peers of a reduce. The bound on its update depends on them."""

    schedule: Schedule
    peers: int

    @classmethod
    def by(cls, roster: Roster) -> ReduceShape:
        return cls(roster.schedule, len(roster.peers))


@dataclass(frozen=True, slots=True)
class UpdateFormat:
    """The update of outer step `step`, which covers one fragment of θ."""

    run: RunId
    step: int
    layout: Layout
    fragment: Fragment
    spec: CodecSpec
    influence_max: float
    """Maximum distance of each element of a participant's weights from θ; the same for all
    peers.
    """

    @property
    def codec(self) -> kernels.Codec:
        return kernels.codec(self.spec.name, self.spec.block)

    @property
    def numel(self) -> int:
        """Number of elements that are averaged."""
        return self.fragment.numel

    @property
    def payload_bytes(self) -> int:
        """The length of the update, in bytes."""
        return self.codec.encoded_bytes(self.numel)

    @property
    def meta(self) -> dict[str, object]:
        """The `meta` of the update's blob. It must be equal on all peers, because it is part of
        what the digest is computed from.
        """
        return {
            "run": self.run,
            "step": self.step,
            "numel": self.numel,
            "codec": self.spec.name,
            "block": self.spec.block,
        }

    def write(self, store: Store, payload: bytes | bytearray) -> Digest:
        """Store the update as a blob and return its digest."""
        return store.put_blob(KIND, [payload], self.meta)

    def check_manifest(self, blobs: BlobReader, digest: Digest) -> None:
        """Raise RemoteProtocolError unless the blob is an update of this step. Raises StoreError if
        the blob's manifest (its description and its list of chunks) cannot be read.
        """
        manifest = blobs.manifest(digest)
        if manifest.kind != KIND or dict(manifest.meta) != self.meta:
            raise RemoteProtocolError(f"{digest[:12]} is not an update of outer step {self.step}")
        if manifest.size != self.payload_bytes:
            raise RemoteProtocolError(
                f"update {digest[:12]} has {manifest.size} bytes, not {self.payload_bytes}"
            )

    def check_bound(self, payload: bytes | memoryview, opened: ReduceShape) -> None:
        """Check the update against the bound on influence. `opened` is the reduce that computed it.

        The check uses the largest element, as the kernels decode it: the scales alone are not
        enough, because a liar can write codes that a codec never writes. Bound and elements are
        identical on every machine, so all nodes come to the same decision (SPEC.md S14).

        Raises RemoteProtocolError (INFLUENCE-BROKEN).
        """
        bound = mean_max(
            self.codec,
            opened.schedule,
            opened.peers,
            self.influence_max,
            feedback=self.spec.feedback,
        )
        peak = self._peak(payload, self.numel, bound)
        if peak > bound:
            raise RemoteProtocolError(
                f"the update of outer step {self.step} moves a weight by {peak:.3g}; the run "
                f"allows {bound:.3g} (policy.influence_max)",
                code="INFLUENCE-BROKEN",
            )

    def _peak(self, payload: bytes | memoryview, numel: int, bound: float) -> float:
        """Return the largest magnitude of an element. If the scales alone show that it is far from
        `bound`, return their estimate, which is quicker to compute.
        """
        peak, block = self.codec.peak(payload, numel), self.spec.block
        if not peak <= bound < peak * self.codec.reach:
            return peak
        largest, run = 0.0, max(1, _RUN // block) * block
        values, view = np.empty(min(run, numel), np.float32), memoryview(payload)
        for start in range(0, numel, run):
            stop = min(start + run, numel)
            first, last = self.codec.encoded_bytes(start), self.codec.encoded_bytes(stop)
            part = values[: stop - start]
            self.codec.dequantise(view[first:last], part)
            largest = max(largest, float(part.max()), -float(part.min()))
        return largest

    def read_payload(self, blobs: BlobReader, digest: Digest) -> memoryview:
        """Return the payload, checked and ready to be applied. Raises as `check_manifest` does."""
        self.check_manifest(blobs, digest)
        # The payload may be gigabytes, so do not copy it.
        payload = memoryview(bytearray(self.payload_bytes))
        blobs.read_blob_into(digest, payload)
        try:
            self.codec.check(payload, self.numel)
        except kernels.BadScale as exc:
            what = f"update {digest[:12]} contains invalid values"
            raise RemoteProtocolError(what) from exc
        return payload


def published_formats(run: RunId, manifest: RunManifest) -> tuple[UpdateFormat, ...]:
    """Return the formats of the first updates of `run`, one for each fragment, without
    amendments."""
    layout = layout_of(manifest.model)
    cut = fragments(layout, manifest.sync.fragments)
    terms = manifest.codec, manifest.influence_max
    return tuple(UpdateFormat(run, step, layout, each, *terms) for step, each in enumerate(cut))


def payload_bytes_mean(formats: Sequence[UpdateFormat]) -> int:
    """Return the mean length of an update over the outer steps, in bytes. `formats` has one format
    for each fragment.
    """
    return sum(each.payload_bytes for each in formats) // len(formats)
