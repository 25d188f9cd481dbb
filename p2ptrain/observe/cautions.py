"""Warnings about problems that do not stop the node: a code, what is wrong, and what helps.

Log and status show `words`, which end with a reference for further reading, as errors do. Programs
read the fields. `cli.error_codes` explains each code, as a test verifies.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning. `do` is empty if the user needs no advice, only the information.

    Code that keeps a caution up to date keeps its words the same while the problem is the same,
    because changed words are reported again.
    """

    code: str
    what: str
    do: str = ""

    @property
    def words(self) -> str:
        advice = f": {self.do}" if self.do else ""
        return f"{self.what}{advice} (p2ptrain explain {self.code})"
