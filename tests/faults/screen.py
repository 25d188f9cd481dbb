"""The output that a user sees after a command has ended, and checks on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from p2ptrain.cli.error_codes import CODES

LINE_CHARACTERS_MAX = 500
_HEAD = re.compile(r"^error\[(?P<code>[A-Z0-9-]+)\] (?P<what>.+)$", re.MULTILINE)
_DETAIL = re.compile(r"^  (?P<label>tried|seen|likely|do|more)\s+(?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Screen:
    """A finished command: its exit status, stdout and stderr."""

    status: int
    out: str
    err: str

    @property
    def code(self) -> str:
        """The code of the error on the screen. There must be exactly one error."""
        heads = list(_HEAD.finditer(self.err))
        assert len(heads) == 1, self.err
        return heads[0]["code"]

    @property
    def what(self) -> str:
        head = _HEAD.search(self.err)
        assert head is not None, self.err
        return head["what"]

    def lines(self, *labels: str) -> list[str]:
        """Return the texts after these labels, in the order in which they appear."""
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
        """Check that stderr shows one explained error, with advice and without a traceback."""
        assert (self.code, self.status) == (code, status), self.err
        assert self.do, self.err
        assert self.lines("more") == [f"p2ptrain explain {code}"]
        assert code in CODES
        assert "Traceback" not in self.err
        assert self.out == ""
        assert all(len(line) <= LINE_CHARACTERS_MAX for line in self.err.splitlines())
