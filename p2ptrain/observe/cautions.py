"""What a person should know of although the node goes on: a code, what is the matter, what helps.

Log and status show `words`, which end with where to read more, as errors do. A program reads the
fields. The code's own account is `cli.codes`; a test sees to it that each has one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caution:
    """`do` may be empty, where there is nothing to do but to know.

    Whoever keeps one up to date keeps its words as they are while the matter is the same: a change
    of words is told anew.
    """

    code: str
    what: str
    do: str = ""

    @property
    def words(self) -> str:
        advice = f": {self.do}" if self.do else ""
        return f"{self.what}{advice} (p2ptrain explain {self.code})"
