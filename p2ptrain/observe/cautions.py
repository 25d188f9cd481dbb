"""Warnings about problems that do not stop the node: a code, what is wrong, and what to do.

The log and the status show `words`, which end with the command that explains the code. Programs
read the fields. `cli.error_codes` explains each code; a test verifies this.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning. `do` is empty if the user does not have to do anything.

    The words must stay the same while the problem stays the same, because changed words are
    reported to the user again.
    """

    code: str
    what: str
    do: str = ""

    @property
    def words(self) -> str:
        advice = f": {self.do}" if self.do else ""
        return f"{self.what}{advice} (p2ptrain explain {self.code})"
