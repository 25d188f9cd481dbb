"""The screen of a user after a command has ended, and the checks that it must pass."""

from __future__ import annotations

import re
from dataclasses import dataclass

from p2ptrain.cli.error_codes import CODES

LINE_CHARACTERS_MAX = 500
_HEAD = re.compile(r"^error\[(?P<code>[A-Z0-9-]+)\] (?P<what>.+)$", re.MULTILINE)
_DETAIL = re.compile(r"^  (?P<label>tried|seen|likely|do|more)\s+(?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Screen:
    """An ended command: its exit status, its stdout and its stderr."""

    status: int
    out: str
    err: str

    @property
    def code(self) -> str:
        """The code of the one error that is shown."""
        heads = list(_HEAD.finditer(self.err))
        assert len(heads) == 1, self.err
        return heads[0]["code"]

    @property
    def what(self) -> str:
        head = _HEAD.search(self.err)
        assert head is not None, self.err
        return head["what"]

    def lines(self, *labels: str) -> list[str]:
        """Return the texts behind these labels, in their order."""
        details = _DETAIL.finditer(self.err)
        return [found["text"] for found in details if found["label"] in labels]

    @property
    def evidence(self) -> str:
        return "\n".join(self.lines("tried", "seen"))

    @property
    def likely(self) -> str:
        return "\n".join(self.lines("likely"))

    @property
    def do(self) -> str:
        return "\n".join(self.lines("do"))

    def is_error(self, code: str, status: int) -> None:
        """Check that there is one explained error on stderr, with advice and nothing
        frightening.
        """
        assert (self.code, self.status) == (code, status), self.err
        assert self.do, self.err
        assert self.lines("more") == [f"p2ptrain explain {code}"]
        assert code in CODES
        assert "Traceback" not in self.err
        assert self.out == ""
        assert all(len(line) <= LINE_CHARACTERS_MAX for line in self.err.splitlines())
