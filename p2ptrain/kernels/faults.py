"""What a kernel refuses, shared by the native kernels and their reference.

It does not know whose data it was; the caller knows the peer and the part.
"""

from __future__ import annotations

from p2ptrain.errors import P2PTrainError


class NonFinite(P2PTrainError):
    """A block to be quantised holds a NaN, an infinity, or a magnitude above 2^100."""

    default_code = "NAN"

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block} is not finite")
        self.block = block


class BadScale(P2PTrainError):
    """A block of a payload has a scale that no quantise writes: NaN, infinite, negative, too large.

    The payload came from elsewhere: whoever made it is at fault.
    """

    default_code = "PAYLOAD-SCALE"

    def __init__(self, block: int) -> None:
        super().__init__(f"the scale of block {block} is not one that a codec writes")
        self.block = block
