"""What every bench says: figures, each beside what it was measured against in the same run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Line:
    """One figure: in its unit, or as a ratio against something measured in the same run.

    `details` are for programs, such as plots: numbers that `measure` says in words.
    """

    measure: str
    value: float
    unit: str
    against: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    def told(self) -> dict[str, object]:
        """For a program."""
        told = {"measure": self.measure, "value": self.value, "unit": self.unit}
        return {**told, "against": self.against, **self.details}

    def __str__(self) -> str:
        return f"{self.measure}: {self.value:.4g} {self.unit} {self.against}".rstrip()


CORES = "cores of this machine"
LOAD = "processes that wanted a core, the mean of a minute"


def machine(load_before: float) -> Iterator[Line]:
    """What the machine was like while all else was measured."""
    yield Line(CORES, os.cpu_count() or 0, "cores")
    for when, load in (("before", load_before), ("after", os.getloadavg()[0])):
        yield Line(f"{LOAD}, {when}", load, "processes")
