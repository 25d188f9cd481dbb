"""Warnings about problems that do not stop the node: a code, what is wrong, and what to do.

The log and the status show `words`. Like an error, they end with a reference for further reading.
Programs read the fields. `cli.error_codes` explains each code; a test verifies this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning. `do` is empty if the user does not have to do anything.

    Code that updates a caution must not change its words while the problem is the same, because
    changed words are reported again.
    """

    code: str
    what: str
    do: str = ""

    @property
    def words(self) -> str:
        advice = f": {self.do}" if self.do else ""
        return f"{self.what}{advice} (p2ptrain explain {self.code})"
