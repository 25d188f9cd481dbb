"""The position of each parameter in the flat vectors θ, m and local: one canonical table.

All peers must have exactly the same table, no matter how many ranks they have. So the rule is
fixed: entries are sorted by name, each starts at the next multiple of 16 elements, and the total is
padded in the same way. Sixteen fp32 elements are one cache line (64 bytes). So two ranks that write
neighbouring parameters never share a cache line, and SIMD loads start aligned.

The offsets follow from names and shapes. The offsets are sent anyway and checked on arrival, so
that a peer with a different placement rule is refused and cannot corrupt the state.

This module does not use torch or handle memory: it is a table and its checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest

ALIGN_ELEMENTS = 16

# Maximum number of entries. A 1,000-layer model with nine matrices a layer stays below 10,000.
ENTRIES_MAX = 65_536
NAME_CHARACTERS_MAX = 256
DIMENSIONS_MAX = 8
# Maximum number of parameters: 2⁴⁰ take 4 TiB per vector, more than a machine can provide in this
# decade. It is far below 2⁶³, so that sums and products of offsets and sizes cannot overflow in
# native code.
NUMEL_MAX = 2**40
# Maximum bytes of an encoded layout: more than ENTRIES_MAX entries need, at 60–100 bytes each.
WIRE_BYTES_MAX = 16 * 2**20


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """One parameter: `numel` elements of `shape`, row-major, starting at element `offset`."""

    name: str
    shape: tuple[int, ...]
    offset: int

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= NAME_CHARACTERS_MAX or not self.name.isprintable():
            raise ValueError(f"a parameter's name has 1 to {NAME_CHARACTERS_MAX} characters")
        if len(self.shape) > DIMENSIONS_MAX:
            raise ValueError(
                f"{self.name} has {len(self.shape)} dimensions; the maximum is {DIMENSIONS_MAX}"
            )
        if not all(0 < extent <= NUMEL_MAX for extent in self.shape) or self.numel > NUMEL_MAX:
            raise ValueError(f"{self.name} has the invalid shape {self.shape}")

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The first element after this parameter, padding not included."""
        return self.offset + self.numel


@dataclass(frozen=True, slots=True)
class Layout:
    """The table of all parameters. Create it with `Layout.of`; the constructor only checks.

    `numel` is the length of every flat vector, padding included. Padding is part of the state: it
    starts at zero and stays zero, since its pseudo-gradient is zero.
    """

    entries: tuple[LayoutEntry, ...]
    numel: int = field(init=False)
    digest: Digest = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.entries) <= ENTRIES_MAX:
            raise ValueError(f"a layout has 1 to {ENTRIES_MAX} entries, not {len(self.entries)}")
        expected_offset, previous = 0, ""
        for entry in self.entries:
            if entry.name <= previous:
                raise ValueError(f"{entry.name} is listed twice or out of order")
            if entry.offset != expected_offset:
                raise ValueError(
                    f"{entry.name} has the offset {entry.offset}; it should be {expected_offset}"
                )
            expected_offset, previous = aligned(entry.end), entry.name
        if expected_offset > NUMEL_MAX:
            raise ValueError(f"{expected_offset} parameters exceed the limit of {NUMEL_MAX}")
        object.__setattr__(self, "numel", expected_offset)
        object.__setattr__(self, "digest", Digest(blake3(self.to_wire()).hexdigest()))

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, Sequence[int]]]) -> Layout:
        """Return the layout of a model's (name, global shape) pairs, given in any order.

        Raises ValueError for a repeated name, an empty tensor or an invalid size.
        """
        entries, offset = [], 0
        for name, shape in sorted((name, tuple(map(int, shape))) for name, shape in parameters):
            entries.append(LayoutEntry(name, shape, offset))
            offset = aligned(entries[-1].end)
        return cls(tuple(entries))

    def to_wire(self) -> bytes:
        return pack([[entry.name, list(entry.shape), entry.offset] for entry in self.entries])

    @classmethod
    def from_wire(cls, data: bytes) -> Layout:
        """Parse a layout that a peer sent. Raises RemoteProtocolError if it is not a valid
        layout.
        """
        rows = unpack(data, bytes_max=WIRE_BYTES_MAX)
        if not isinstance(rows, list) or not 0 < len(rows) <= ENTRIES_MAX:
            raise RemoteProtocolError(f"the layout is not a list of 1 to {ENTRIES_MAX} entries")
        try:
            return cls(tuple(_entry(row) for row in rows))
        except ValueError as exc:
            raise RemoteProtocolError(f"the layout is invalid: {exc}") from exc


def aligned(elements: int) -> int:
    """Return the next multiple of ALIGN_ELEMENTS, or `elements` itself if it is one."""
    return -(-elements // ALIGN_ELEMENTS) * ALIGN_ELEMENTS


def _entry(row: object) -> LayoutEntry:
    match row:
        # Not isinstance: False is an int equal to 0, so the same table could have a second digest.
        case [str(name), list(shape), int(offset)] if {*map(type, shape), type(offset)} == {int}:
            return LayoutEntry(name, tuple(shape), offset)
    raise ValueError("an entry is not [name, shape, offset]")
