"""The result of a check: one line, which is good, a warning or a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.errors import MachineUnfit, P2PTrainError


class Level(StrEnum):
    """With a warning, a node can run; with a fault, it cannot."""

    GOOD = "good"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line about `name`. `said` says what was found; `fix` says what to do about it.

    `code` is an error code for `p2ptrain explain`. A warning that is only a hint may have none.
    """

    name: str
    level: Level
    said: str
    fix: str = ""
    code: str = ""
    status: int = 0
    """The exit status of a command that ends because of this fault; 0 unless it is a fault."""

    def __post_init__(self) -> None:
        assert self.name, "a finding needs a name"
        assert self.said, "a finding needs words"
        assert (self.level is Level.GOOD) == (not self.fix), "only a problem needs a fix"
        assert (self.level is Level.FAULT) == (self.status != 0), "only a fault has a status"
        assert self.level is not Level.FAULT or self.code, "a fault needs a code"
        assert self.level is not Level.GOOD or not self.code, "only a problem has a code"


Tell = Callable[[Finding], None]
"""A check calls this function once for each line that it finds."""


def good(name: str, said: str) -> Finding:
    return Finding(name, Level.GOOD, said)


def warning(name: str, said: str, *, fix: str, code: str = "") -> Finding:
    return Finding(name, Level.WARNING, said, fix, code)


def fault(
    name: str, said: str, *, fix: str, code: str, status: int = MachineUnfit.exit_code
) -> Finding:
    return Finding(name, Level.FAULT, said, fix, code, status)


def fault_of(name: str, error: P2PTrainError, *, fix: str = "") -> Finding:
    """Return the fault that `error` describes. `fix` replaces the error's own advice."""
    likely = f"; most likely, {error.likely}" if error.likely else ""
    advice = fix or error.do or f"p2ptrain explain {error.code}"
    said = f"{error.what}{likely}"
    return fault(name, said, fix=advice, code=error.code, status=error.exit_code)


def softened(found: Finding, why: str) -> Finding:
    """Return a fault as a warning, because of `why`: for instance, another address answers."""
    return Finding(found.name, Level.WARNING, found.said, f"{found.fix}; {why}", found.code)


def exit_status(findings: Iterable[Finding]) -> int:
    """Return the exit status of the first fault; 0 if there is none.

    The checks begin with the installation and the machine. A run that cannot be reached is of no
    use to a machine that cannot train, so the first fault is the one to repair first.
    """
    return next((each.status for each in findings if each.level is Level.FAULT), 0)
