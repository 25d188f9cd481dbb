"""The format of a run's updates as blobs: the checks that are the same for a node and for an audit.

The ledger names an update by digest, which says nothing about its form. An update that is read here
has the size, the description and the scales that every update of the run has; the digest shows
whether it is the right one. Nothing here knows of peers.
"""

from __future__ import annotations

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
from p2ptrain.store import BlobManifest
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
    """The updates of one run. The update of an outer step covers one of its `fragments`."""

    run: RunId
    layout: Layout
    fragments: tuple[Fragment, ...]
    spec: CodecSpec
    merge: Merge = "mean"

    @property
    def codec(self) -> kernels.Codec:
        return kernels.codec(self.spec.name, self.spec.block)

    @classmethod
    def of(cls, run: RunId, manifest: RunManifest) -> UpdateFormat:
        """Return the format of the updates of `run`, whose manifest is `manifest`."""
        layout = layout_of(manifest.model)
        cut = fragments(layout, manifest.sync.fragments)
        return cls(run, layout, cut, manifest.codec, manifest.sync.merge)

    def fragment(self, step: int) -> Fragment:
        """Return the fragment that the update of outer step `step` covers."""
        return self.fragments[step % len(self.fragments)]

    def numel(self, step: int) -> int:
        """Return how many elements are averaged in outer step `step`."""
        radial = self._radial(step)
        return self.fragment(step).numel if radial is None else radial.contributed

    def payload_bytes(self, step: int) -> int:
        """Return the length in bytes of the update of `step`."""
        return self.codec.encoded_bytes(self.numel(step))

    def contribution(self, step: int, theta: Floats, local: Floats, most: float) -> Floats | None:
        """Return the vector that a peer contributes instead of θ − `local`, with no element larger
        than `most`; None if θ − `local` itself is averaged.
        """
        radial = self._radial(step)
        return None if radial is None else radial.contribution(theta - local, most)

    def merged(
        self, payload: bytes | memoryview, step: int, most: float
    ) -> tuple[bytes | memoryview, kernels.Codec]:
        """Return the pseudo-gradient to apply, and its codec. It is the update itself, unless `rda`
        computes it from the update, with elements no larger than `most`. `most` is the bound on
        influence in that step (`Amendments.influence_max`, the same for all).
        """
        radial = self._radial(step)
        if radial is None:
            return payload, self.codec
        mean = np.empty(radial.contributed, np.float32)
        self.codec.dequantise(payload, mean)
        merged = radial.merged(mean, most)
        del mean  # For a large model each takes gigabytes, so free one before making the next.
        exact = kernels.codec("fp32", self.spec.block)
        made = bytearray(exact.encoded_bytes(radial.numel))
        exact.quantise(merged, made)
        return memoryview(made), exact

    def _radial(self, step: int) -> Radial | None:
        if self.merge == "mean":
            return None
        return Radial.of(self.layout, self.fragment(step), self.spec.block)

    @property
    def payload_bytes_mean(self) -> int:
        """The mean length in bytes of an update over the outer steps."""
        lengths = [self.payload_bytes(step) for step in range(len(self.fragments))]
        return sum(lengths) // len(lengths)

    def meta(self, step: int) -> dict[str, object]:
        """Return an update's description of itself. It is equal on all peers, since the digest
        covers it.
        """
        return {
            "run": self.run,
            "step": step,
            "numel": self.numel(step),
            "codec": self.spec.name,
            "block": self.spec.block,
        }

    def check_manifest(self, blobs: Blobs, digest: Digest, step: int) -> None:
        """Check that the blob is an update of `step`. Raises RemoteProtocolError if not;
        StoreError.
        """
        manifest = blobs.manifest(digest)
        if manifest.kind != KIND or dict(manifest.meta) != self.meta(step):
            raise RemoteProtocolError(f"{digest[:12]} is not an update of outer step {step}")
        if manifest.size != self.payload_bytes(step):
            raise RemoteProtocolError(f"update {digest[:12]} has {manifest.size} bytes")

    def hold(self, payload: bytes | memoryview, step: int, opened: Opened, most: float) -> None:
        """Check the update of outer step `step`, made in the reduce that was `opened`, against the
        bound on influence. `most` is the bound on one participant (`Amendments.influence_max`).

        The check uses the largest element, as the kernels decode it: scales alone are not enough if
        a liar wrote codes that no codec writes. Bound and elements are the same to the last bit on
        every machine, so all nodes decide alike (SPEC.md S14).

        Raises RemoteProtocolError (INFLUENCE-BROKEN).
        """
        bound = mean_max(
            self.codec, opened.schedule, opened.peers, most, feedback=self.spec.feedback
        )
        peak = self._peak(payload, self.numel(step), bound)
        if peak > bound:
            raise RemoteProtocolError(
                f"the update of outer step {step} moves a weight by {peak:.3g}; the run "
                f"allows {bound:.3g} (policy.influence_max)",
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

    def read(self, blobs: Blobs, digest: Digest, step: int) -> bytes:
        """Return the payload, which can be applied. Raises as `check_manifest` does."""
        self.check_manifest(blobs, digest, step)
        payload = blobs.read_blob(digest)
        try:
            self.codec.check(payload, self.numel(step))
        except kernels.BadScale as exc:
            what = f"update {digest[:12]} holds values that no codec writes"
            raise RemoteProtocolError(what) from exc
        return payload
