"""The elements of the flat vectors that are synchronised together.

As in Streaming DiLoCo (arXiv 2501.18512), a fragment consists of complete layers. Of n such
fragments, fragment k has the layers k, k + n, k + 2 n and so on, so that each has layers of every
depth. The embedding and the head are separate fragments, since they change differently from the
layers. Other parameters, such as the last norm, belong to the head's fragment, or to the
embedding's if there is no head.

A fragment is a list of ranges of the canonical layout. Each range extends from the start of one
parameter to the start of a later one. Padding belongs to the parameter before it. So the fragments
together cover the vector, and θ, m, local weights and residuals are split in the same way on all
peers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from numpy.typing import NDArray

from p2ptrain.errors import counted

_LAYER = re.compile(r"blocks\.(\d+)\.")
EMBEDDING = "embedding."
_HEAD = "head."


class ParameterPlace(Protocol):
    """A parameter's name, and its start in the flat vector."""

    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...


class FlatLayout(Protocol):
    """The part of a layout that this module uses: its parameters in order, and the vectors'
    length."""

    @property
    def entries(self) -> Sequence[ParameterPlace]: ...
    @property
    def numel(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fragment:
    """Ranges [start, stop) of the flat vector. They are ascending and do not touch each other.

    `gather` copies these ranges, one after another, into a separate vector; `scatter` copies them
    back.
    """

    ranges: tuple[tuple[int, int], ...]
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        edges = [edge for each in self.ranges for edge in each]
        if not edges or edges[0] < 0 or any(low >= high for low, high in pairwise(edges)):
            raise ValueError(f"ranges of a fragment must be ascending and separate: {self.ranges}")
        object.__setattr__(self, "numel", sum(stop - start for start, stop in self.ranges))

    def gather(self, vector: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy this fragment of `vector` to `out`."""
        at = 0
        for start, stop in self.ranges:
            out[at : at + stop - start] = vector[start:stop]
            at += stop - start
        assert at == len(out) == self.numel

    def pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of the flat vector for elements [start, stop) of this fragment."""
        found, at = [], 0
        for low, high in self.ranges:
            first, last = max(start - at, 0), min(stop - at, high - low)
            if first < last:
                found.append((low + first, low + last))
            at += high - low
        return found

    def scatter(self, values: NDArray[Any], vector: NDArray[Any]) -> None:
        """Set this fragment of `vector` to `values`."""
        at = 0
        for start, stop in self.ranges:
            vector[start:stop] = values[at : at + stop - start]
            at += stop - start
        assert at == len(values) == self.numel


def fragments(layout: FlatLayout, count: int) -> tuple[Fragment, ...]:
    """Split the layout into `count` fragments, as `numbers` assigns the parameters to them.

    Raises ValueError if there are too few layers for this many fragments.
    """
    dealt = numbers([entry.name for entry in layout.entries], count)
    runs = list(pairwise([*(entry.offset for entry in layout.entries), layout.numel]))
    return tuple(
        Fragment(_joined([run for run, of in zip(runs, dealt, strict=True) if of == number]))
        for number in range(count)
    )


def numbers(names: Sequence[str], count: int) -> tuple[int, ...]:
    """Return the fragment number of each parameter. If there are several fragments, the last ones
    are those of the embedding and the head.

    Raises ValueError if there are too few layers for this many fragments.
    """
    if count == 1:
        return (0,) * len(names)
    own = [prefix for prefix in (EMBEDDING, _HEAD) if any(n.startswith(prefix) for n in names)]
    layers = {int(found[1]) for name in names if (found := _LAYER.match(name))}
    strides = count - len(own)
    if not 1 <= strides <= len(layers):
        raise ValueError(
            f"cannot split {counted(len(layers), 'layer')} and "
            f"{counted(len(own), 'separate part')} (embedding, head) into {count} fragments"
        )
    return tuple(_number(name, strides, own) for name in names)


def fragment_at(fragments: Sequence[Fragment], offset: int) -> int:
    """Return the number of the fragment that contains this element of the flat vector."""
    return next(
        number
        for number, fragment in enumerate(fragments)
        if any(start <= offset < stop for start, stop in fragment.ranges)
    )


def _number(name: str, strides: int, own: Sequence[str]) -> int:
    if found := _LAYER.match(name):
        return int(found[1]) % strides
    mine = [at for at, prefix in enumerate(own) if name.startswith(prefix)]
    return strides + (mine[0] if mine else len(own) - 1)


def _joined(runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the same elements in as few ranges as possible."""
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return tuple(joined)
