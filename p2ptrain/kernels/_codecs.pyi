from collections.abc import Callable

Outcome = tuple[int, int, float, float]
"""The fault (0 if there is none), its block, and the peaks of the payloads read and written."""

Kernel = Callable[..., Outcome]
"""Called with the number of the codec, the block length and the index of the variant, then with the
arguments of the method of `Codec` that has the same name.
"""

BLOCK_MAX: int

quantise: Kernel
dequantise: Kernel
quantise_difference: Kernel
add_difference: Kernel
add_difference_requantise: Kernel
outer_step: Kernel
check: Kernel

def variants() -> tuple[str, ...]: ...
def encoded_bytes(codec: int, numel: int, block: int) -> int: ...
