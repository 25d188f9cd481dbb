"""The faults that kernels report, shared by the native kernels and their reference.

This module does not know where the data came from; the caller knows the peer and the part.
"""

from __future__ import annotations

from p2ptrain.errors import P2PTrainError


class NonFinite(P2PTrainError):
    """A block to be quantised contains a NaN, an infinity, or a value too large for the codec."""

    default_code = "NAN"

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} contains a NaN, an infinity or a value that is too large")
        self.block = block


class BadScale(P2PTrainError):
    """A block of a payload contains something that `quantise` never writes: a scale that is
    negative, NaN, infinite or too large, or, in codecs without scales, a value that is NaN,
    infinite or too large.

    The payload came from another peer, which is at fault.
    """

    default_code = "PAYLOAD-SCALE"

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} contains an invalid scale or value")
        self.block = block
