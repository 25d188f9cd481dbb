"""Native arithmetic on pseudo-gradients, bit-identical on all machines. See `codecs` and
`sketches`."""

from __future__ import annotations

from p2ptrain.kernels.codecs import (
    BLOCK_MAX,
    CODECS,
    UNBOUNDED,
    VARIANTS,
    BadScale,
    Codec,
    CodecName,
    NonFinite,
    codec,
)
from p2ptrain.kernels.sketches import SKETCH_VARIANTS, WIDTH, Sums, add_sketch

__all__ = [
    "BLOCK_MAX",
    "CODECS",
    "SKETCH_VARIANTS",
    "UNBOUNDED",
    "VARIANTS",
    "WIDTH",
    "BadScale",
    "Codec",
    "CodecName",
    "NonFinite",
    "Sums",
    "add_sketch",
    "codec",
]
