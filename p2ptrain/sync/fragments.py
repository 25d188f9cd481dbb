"""Which elements of the flat vectors are synchronised together.

Streaming DiLoCo's choice (arXiv 2501.18512): whole layers, strided, so that each fragment has
layers of every depth; the embedding and the head are fragments of their own, since they change
unlike the layers. What stands in no layer and is neither (the last norm) goes with the head, or
with the embedding where that is the head.

A fragment is a list of ranges of the canonical layout, each from the start of a parameter to that
of the next: padding belongs to what stands before it. So fragments together are the whole vector,
and θ, m, local weights and residuals are cut alike on all peers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from numpy.typing import NDArray

_LAYER = re.compile(r"blocks\.(\d+)\.")
EMBEDDING = "embedding."
_HEAD = "head."


class Place(Protocol):
    """A parameter's name, and where it starts in the flat vector."""

    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...


class Laid(Protocol):
    """What is needed of a layout: its parameters in order, and the length of all vectors."""

    @property
    def entries(self) -> Sequence[Place]: ...
    @property
    def numel(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fragment:
    """Ranges [start, stop) of the flat vector, ascending, not touching each other.

    As a vector of its own it is these ranges, one after the other: `gather` and `scatter`.
    """

    ranges: tuple[tuple[int, int], ...]
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        edges = [edge for each in self.ranges for edge in each]
        if not edges or edges[0] < 0 or any(low >= high for low, high in pairwise(edges)):
            raise ValueError(f"a fragment of the ranges {self.ranges}")
        object.__setattr__(self, "numel", sum(stop - start for start, stop in self.ranges))

    def gather(self, vector: NDArray[Any], out: NDArray[Any]) -> None:
        """out = this fragment of `vector`."""
        at = 0
        for start, stop in self.ranges:
            out[at : at + stop - start] = vector[start:stop]
            at += stop - start
        assert at == len(out) == self.numel

    def pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Where elements [start, stop) of this fragment lie in the flat vector, in their order."""
        found, at = [], 0
        for low, high in self.ranges:
            first, last = max(start - at, 0), min(stop - at, high - low)
            if first < last:
                found.append((low + first, low + last))
            at += high - low
        return found

    def scatter(self, values: NDArray[Any], vector: NDArray[Any]) -> None:
        """This fragment of `vector` = values."""
        at = 0
        for start, stop in self.ranges:
            vector[start:stop] = values[at : at + stop - start]
            at += stop - start
        assert at == len(values) == self.numel


def fragments(layout: Laid, count: int) -> tuple[Fragment, ...]:
    """The layout in `count` fragments, as `numbers` deals its parameters out.

    Raises ValueError if there are too few layers for so many.
    """
    dealt = numbers([entry.name for entry in layout.entries], count)
    runs = _runs([entry.offset for entry in layout.entries], layout.numel)
    return tuple(
        Fragment(_joined([run for run, of in zip(runs, dealt, strict=True) if of == number]))
        for number in range(count)
    )


def numbers(names: Sequence[str], count: int) -> tuple[int, ...]:
    """The fragment of each parameter; of several, the last are embedding and head.

    Raises ValueError if there are too few layers for so many.
    """
    if count == 1:
        return (0,) * len(names)
    own = [prefix for prefix in (EMBEDDING, _HEAD) if any(n.startswith(prefix) for n in names)]
    layers = {int(found[1]) for name in names if (found := _LAYER.match(name))}
    strides = count - len(own)
    if not 1 <= strides <= len(layers):
        raise ValueError(f"{len(layers)} layers and {len(own)} others make no {count} fragments")
    return tuple(_number(name, strides, own) for name in names)


def fragment_at(fragments: Sequence[Fragment], offset: int) -> int:
    """The number of the fragment that this element of the flat vector belongs to."""
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


def _runs(starts: Sequence[int], numel: int) -> list[tuple[int, int]]:
    return list(pairwise([*starts, numel]))


def _joined(runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same elements in as few ranges as can be."""
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return tuple(joined)
