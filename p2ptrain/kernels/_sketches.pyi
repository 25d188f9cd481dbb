WIDTH: int
ELEMENT_BITS: int

def variants() -> tuple[str, ...]: ...
def add(
    variant: int, values: object, first: int, seed: int, unit_exponent: int, sums: object
) -> bool: ...
