"""The format of an update as a blob: the checks that are the same for a node and for an audit.

The ledger names an update by digest, which says nothing about its form. An update that is read here
has the size, the description and the scales that every update of its outer step has; the digest
shows whether it is the right one. Nothing here knows of peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2ptrain import kernels
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, RunId
from p2ptrain.ledger.chain.values import Roster, Schedule
from p2ptrain.ring import mean_max
from p2ptrain.run.manifest import CodecSpec, RunManifest
from p2ptrain.state import Layout
from p2ptrain.store import BlobManifest, Store
from p2ptrain.sync import Merge
from p2ptrain.sync.fragments import Fragment, fragments
from p2ptrain.sync.radial import Radial
from p2ptrain.trainer.formats.shapes import layout_of

KIND = "update"

Floats = NDArray[np.float32]


class Blobs(Protocol):
    """A store, or a read-only store. Both raise StoreError."""

    def manifest(self, digest: Digest) -> BlobManifest: ...

    def read_blob(self, digest: Digest) -> bytes: ...


_RUN = 1 << 20
"""Elements that are decoded together: a few megabytes."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The properties of a reduce's roster that the bound on its update depends on."""

    schedule: Schedule
    peers: int

    @classmethod
    def by(cls, roster: Roster) -> Opened:
        return cls(roster.schedule, len(roster.peers))


@dataclass(frozen=True, slots=True)
class UpdateFormat:
    """The update of outer step `step`, which covers one fragment of θ."""

    run: RunId
    step: int
    layout: Layout
    fragment: Fragment
    spec: CodecSpec
    merge: Merge
    influence_max: float
    """How far each element of a participant's weights may be from θ; the same for all peers."""

    @property
    def codec(self) -> kernels.Codec:
        return kernels.codec(self.spec.name, self.spec.block)

    @property
    def numel(self) -> int:
        """How many elements are averaged."""
        radial = self._radial()
        return self.fragment.numel if radial is None else radial.contributed

    @property
    def payload_bytes(self) -> int:
        """The length of the update, in bytes."""
        return self.codec.encoded_bytes(self.numel)

    def contribution(self, theta: Floats, local: Floats) -> Floats | None:
        """Return the vector that a peer contributes instead of θ − `local`, with no element larger
        than `influence_max`; None if θ − `local` itself is averaged.
        """
        radial = self._radial()
        return None if radial is None else radial.contribution(theta - local, self.influence_max)

    def merged(self, payload: bytes | memoryview) -> tuple[bytes | memoryview, kernels.Codec]:
        """Return the pseudo-gradient to apply, and its codec. It is the update itself, unless `rda`
        computes it from the update, with elements no larger than `influence_max`.
        """
        radial = self._radial()
        if radial is None:
            return payload, self.codec
        mean = np.empty(radial.contributed, np.float32)
        self.codec.dequantise(payload, mean)
        merged = radial.merged(mean, self.influence_max)
        del mean  # For a large model each takes gigabytes, so free one before making the next.
        exact = kernels.codec("fp32", self.spec.block)
        made = bytearray(exact.encoded_bytes(radial.numel))
        exact.quantise(merged, made)
        return memoryview(made), exact

    def _radial(self) -> Radial | None:
        if self.merge == "mean":
            return None
        return Radial.of(self.layout, self.fragment, self.spec.block)

    @property
    def meta(self) -> dict[str, object]:
        """The update's description of itself, equal on all peers, since the digest covers it."""
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

    def check_manifest(self, blobs: Blobs, digest: Digest) -> None:
        """Check that the blob is an update of this step. Raises RemoteProtocolError if not;
        StoreError.
        """
        manifest = blobs.manifest(digest)
        if manifest.kind != KIND or dict(manifest.meta) != self.meta:
            raise RemoteProtocolError(f"{digest[:12]} is not an update of outer step {self.step}")
        if manifest.size != self.payload_bytes:
            raise RemoteProtocolError(f"update {digest[:12]} has {manifest.size} bytes")

    def hold(self, payload: bytes | memoryview, opened: Opened) -> None:
        """Check the update, made in the reduce that was `opened`, against the bound on influence.

        The check uses the largest element, as the kernels decode it: scales alone are not enough if
        a liar wrote codes that no codec writes. Bound and elements are the same to the last bit on
        every machine, so all nodes decide alike (SPEC.md S14).

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
                f"the update of outer step {self.step} moves a weight by {peak:.3g}, where "
                f"{bound:.3g} is agreed (policy.influence_max)",
                code="INFLUENCE-BROKEN",
            )

    def _peak(self, payload: bytes | memoryview, numel: int, bound: float) -> float:
        """Return the largest magnitude of an element. If the scales show that the update is far
        from the bound, return what they say.
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

    def read(self, blobs: Blobs, digest: Digest) -> bytes:
        """Return the payload, which can be applied. Raises as `check_manifest` does."""
        self.check_manifest(blobs, digest)
        payload = blobs.read_blob(digest)
        try:
            self.codec.check(payload, self.numel)
        except kernels.BadScale as exc:
            what = f"update {digest[:12]} holds what no codec writes"
            raise RemoteProtocolError(what) from exc
        return payload


def published_formats(run: RunId, manifest: RunManifest) -> tuple[UpdateFormat, ...]:
    """Return the formats of the first updates of `run`, one for each fragment, as published."""
    layout = layout_of(manifest.model)
    cut = fragments(layout, manifest.sync.fragments)
    terms = manifest.codec, manifest.sync.merge, manifest.influence_max
    return tuple(UpdateFormat(run, step, layout, each, *terms) for step, each in enumerate(cut))


def payload_bytes_mean(formats: Sequence[UpdateFormat]) -> int:
    """Return the mean length of an update over the outer steps, in bytes. `formats` has one format
    for each fragment.
    """
    return sum(each.payload_bytes for each in formats) // len(formats)
