"""What a kernel refuses, shared by the native kernels and their reference.

It does not know whose data it was; the caller knows the peer and the part.
"""

from __future__ import annotations

from p2ptrain.errors import P2PTrainError


class NonFinite(P2PTrainError):
    """A block to be quantised holds a NaN, an infinity, or what the codec cannot hold."""

    default_code = "NAN"

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} is not finite")
        self.block = block


class BadScale(P2PTrainError):
    """A block of a payload has what no quantise writes: a scale that is negative, NaN, infinite or
    too large, or in codecs without scales a value that is NaN, infinite or too large.

    The payload came from elsewhere: whoever made it is at fault.
    """

    default_code = "PAYLOAD-SCALE"

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} holds a scale or value that no codec writes")
        self.block = block
