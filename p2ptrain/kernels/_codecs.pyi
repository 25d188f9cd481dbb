from p2ptrain.kernels.codecs import Bytes, Floats

Outcome = tuple[int, int, float, float]
BLOCK_MAX: int

def variants() -> tuple[str, ...]: ...
def encoded_bytes(codec: int, numel: int, block: int) -> int: ...
def quantise(codec: int, block: int, variant: int, src: Floats, out: Bytes) -> Outcome: ...
def dequantise(codec: int, block: int, variant: int, payload: Bytes, out: Floats) -> Outcome: ...
def quantise_difference(
    codec: int,
    block: int,
    variant: int,
    theta: Floats,
    local: Floats,
    weight: float,
    out: Bytes,
    residual: Floats | None,
    residual_out: Floats | None,
) -> Outcome: ...
def add_difference(
    codec: int,
    block: int,
    variant: int,
    payload: Bytes,
    theta: Floats,
    local: Floats | None,
    weight: float,
    total: Floats,
    residual: Floats | None,
) -> Outcome: ...
def add_difference_requantise(
    codec: int,
    block: int,
    variant: int,
    payload: Bytes,
    theta: Floats,
    local: Floats | None,
    weight: float,
    divisor: float,
    out: Bytes,
    residual: Floats | None,
    residual_out: Floats | None,
) -> Outcome: ...
def outer_step(
    codec: int,
    block: int,
    variant: int,
    theta: Floats,
    momentum: Floats,
    payload: Bytes,
    lr: float,
    mu: float,
) -> Outcome: ...
def check(codec: int, block: int, variant: int, payload: Bytes, numel: int) -> Outcome: ...
