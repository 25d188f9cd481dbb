"""Native arithmetic on pseudo-gradients, bit-identical on all machines. See `codecs`."""

from __future__ import annotations

from p2ptrain.kernels.codecs import (
    BLOCK_MAX,
    CODECS,
    UNBOUNDED,
    VARIANTS,
    Bytes,
    Codec,
    CodecName,
    Floats,
    codec,
)
from p2ptrain.kernels.faults import BadScale, NonFinite

__all__ = [
    "BLOCK_MAX",
    "CODECS",
    "UNBOUNDED",
    "VARIANTS",
    "BadScale",
    "Bytes",
    "Codec",
    "CodecName",
    "Floats",
    "NonFinite",
    "codec",
]
