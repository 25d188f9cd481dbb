from p2ptrain.kernels import Bytes, Floats

Outcome = tuple[int, int] | None
BLOCK_MAX: int

def variants() -> tuple[str, ...]: ...
def quantise(src: Floats, out: Bytes, block: int, variant: int) -> Outcome: ...
def dequantise(payload: Bytes, out: Floats, block: int, variant: int) -> Outcome: ...
def quantise_difference(
    theta: Floats, local: Floats, weight: float, out: Bytes, block: int, variant: int
) -> Outcome: ...
def add_difference_requantise(
    payload: Bytes,
    theta: Floats,
    local: Floats,
    weight: float,
    divisor: float,
    out: Bytes,
    block: int,
    variant: int,
) -> Outcome: ...
def outer_step(
    theta: Floats,
    momentum: Floats,
    payload: Bytes,
    lr: float,
    mu: float,
    block: int,
    variant: int,
) -> Outcome: ...
def check(payload: Bytes, numel: int, block: int) -> Outcome: ...
