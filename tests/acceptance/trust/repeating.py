"""An auditor that repeats links of chains of checkpoints, as `proofs.checkpoints` describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from p2ptrain.kernels import codec
from p2ptrain.proofs.checkpoints import LINKS, link_distance
from p2ptrain.proofs.moments import MomentsFormat
from p2ptrain.trainer.formats.inner_bounds import is_muons, ratio_max
from p2ptrain.trainer.formats.shapes import layout_of
from tests.acceptance.trust.simulated_peer import MODEL, Floats, Moments, Point, SimulatedPeer


def int8(vector: Floats) -> Floats:
    """Return the vector as it is after the codec of contributions."""
    kernels = codec("int8", 256)
    payload, out = np.empty(kernels.encoded_bytes(vector.size), np.uint8), np.empty_like(vector)
    kernels.quantise(vector, payload)
    kernels.dequantise(payload, out)
    return out


@dataclass(frozen=True, slots=True)
class Auditor:
    """Repeats links in fp32 with whole batches."""

    peer: SimulatedPeer
    moments_format: MomentsFormat = field(init=False)

    def __post_init__(self) -> None:
        inner = self.peer.inner
        entries = layout_of(MODEL).entries
        muon = tuple(slice(each.offset, each.end) for each in entries if is_muons(each, inner))
        made = MomentsFormat(ratio_max(inner), inner.clip, muon)
        object.__setattr__(self, "moments_format", made)

    def kept(self, moments: Moments) -> Moments:
        """Return the moments after their codec."""
        momentum = moments.get("momentum_buffer", np.float32(0))
        mean, square = self.moments_format.decode(
            self.moments_format.encode(moments["exp_avg"] + momentum, moments["exp_avg_sq"])
        )
        is_muon = np.zeros(mean.size, bool)
        for run in self.moments_format.muon:
            is_muon[run] = True
        zero = np.float32(0)
        return {
            "exp_avg": np.where(is_muon, zero, mean),
            "exp_avg_sq": square,
            "momentum_buffer": np.where(is_muon, mean, zero),
            "step": moments["step"],
        }

    def distances(
        self,
        theta: Floats,
        points: Sequence[Point],
        lease: Sequence[int],
        first_step: int,
        links: Sequence[int],
    ) -> list[float]:
        """Return the distances of these links of a chain with `LINKS` links."""
        every, found = len(lease) // LINKS, []
        for link in links:
            start, end = (int8(theta - points[each].weights) for each in (link, link + 1))
            blocks = lease[link * every : (link + 1) * every]
            moments = self.kept(points[link].moments)
            moments["step"] = points[0].moments["step"] + np.float32(link * every)
            began = Point(theta - start, moments)
            ours = self.peer.train(began, blocks, first_step + link * every)[-1].weights
            found.append(link_distance(start, end, theta - ours))
        return found
