"""Native arithmetic on pseudo-gradients, bit-identical on all machines. See `codecs`."""

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

__all__ = [
    "BLOCK_MAX",
    "CODECS",
    "UNBOUNDED",
    "VARIANTS",
    "BadScale",
    "Codec",
    "CodecName",
    "NonFinite",
    "codec",
]
