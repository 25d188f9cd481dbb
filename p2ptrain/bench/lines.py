"""The figures of all benchmarks, each with the reference from the same run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FigureLine:
    """One figure: in a unit, or as a ratio to a reference from the same run.

    `details` are for programs such as plots: the numbers that `measure` contains in words.
    """

    measure: str
    value: float
    unit: str
    against: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    def as_map(self) -> dict[str, object]:
        """Return the figure as a map for `--json`."""
        told = {"measure": self.measure, "value": self.value, "unit": self.unit}
        return {**told, "against": self.against, **self.details}

    def __str__(self) -> str:
        return f"{self.measure}: {self.value:.4g} {self.unit} {self.against}".rstrip()


CORES = "cores of this machine"
LOAD = "runnable processes, one-minute average"


def machine(load_before: float) -> Iterator[FigureLine]:
    """Yield the machine's cores, and its load before and after the benchmark."""
    yield FigureLine(CORES, os.cpu_count() or 0, "cores")
    for when, load in (("before", load_before), ("after", os.getloadavg()[0])):
        yield FigureLine(f"{LOAD}, {when}", load, "processes")
