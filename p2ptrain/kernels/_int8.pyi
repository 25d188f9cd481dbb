from typing_extensions import Buffer

Outcome = tuple[int, int] | None
BLOCK_MAX: int

def variants() -> tuple[str, ...]: ...
def quantise(src: Buffer, out: Buffer, block: int, variant: int) -> Outcome: ...
def dequantise(payload: Buffer, out: Buffer, block: int, variant: int) -> Outcome: ...
def quantise_difference(
    theta: Buffer, local: Buffer, weight: float, out: Buffer, block: int, variant: int
) -> Outcome: ...
def add_difference_requantise(
    payload: Buffer,
    theta: Buffer,
    local: Buffer,
    weight: float,
    divisor: float,
    out: Buffer,
    block: int,
    variant: int,
) -> Outcome: ...
def outer_step(
    theta: Buffer,
    momentum: Buffer,
    payload: Buffer,
    lr: float,
    mu: float,
    block: int,
    variant: int,
) -> Outcome: ...
def check(payload: Buffer, numel: int, block: int) -> Outcome: ...
