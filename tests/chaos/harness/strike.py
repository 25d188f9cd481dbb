"""Inject one fault at one point, wait for the next commit, undo the fault, and wait for recovery.

    calm ─► arm ─► a node stops at the point ─► fault ─► next commit ─► undone ─► calm again

For a point of a later round, the proposer of the first round is stopped before its proposal until
the fault happens. The other nodes then continue with the next round, although no node is lost.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from tests.chaos.harness.crew import ChaosNode, Crew, NotSeen
from tests.chaos.harness.points import DEED, Point, Role, Side

HELD_AT = Point(Side.BEFORE, "send-propose-roster")

STOPPED_S = 20.0
CUT_S = 12.0
"""Duration of a cut in seconds: one and a half times as long as the other nodes need to detect it.
"""

REACH_S = 90.0
COMMIT_S = 60.0
BACK_S = 120.0


class Fault(StrEnum):
    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Case:
    point: Point
    fault: Fault
    role: Role

    def __str__(self) -> str:
        return f"{self.fault} of {self.role} {self.point}"


@dataclass(slots=True)
class Account:
    """The result of a case. A time, in seconds, is None if its event never happened.

    `to_commit_s`: from the fault to the next commit in a survivor's ledger. `red_s`: from the fault
    until a survivor declares the struck node lost. `back_s`: from the end of the fault until all
    five nodes have committed together again. `worst_gap_s`: the longest time without a commit
    between the fault and the joint commit. `reduce_s`: the median time of the survivors' latest
    reduces.
    """

    case: Case
    struck: str = ""
    to_commit_s: float | None = None
    red_s: float | None = None
    back_s: float | None = None
    worst_gap_s: float | None = None
    reduce_s: float | None = None
    troubles: list[str] = field(default_factory=list)


def play(crew: Crew, case: Case) -> Account:
    """Run one case. If an expected event does not happen, record it as a trouble.

    After a trouble the crew may be in any state.
    """
    account = Account(case)
    try:
        crew.wait_for("calm", lambda: crew.calm_since(crew.step - 2), deadline_s=BACK_S)
        Strike(crew, case, account).play()
    except NotSeen as exc:
        account.troubles.append(str(exc))
    return account


class Strike:
    """One running case."""

    def __init__(self, crew: Crew, case: Case, account: Account) -> None:
        self._crew = crew
        self._case = case
        self._account = account

    def play(self) -> None:
        """Run the case. Raises NotSeen if an expected event does not happen."""
        crew, account = self._crew, self._account
        held = None
        if DEED[self._case.point.deed].later_round:
            held = self._stop_one(HELD_AT, Role.PROPOSER, crew.nodes)
        among = [node for node in crew.nodes if node is not held]
        struck = self._stop_one(self._case.point, self._case.role, among)
        account.struck = struck.name
        fault_s = time.monotonic()
        self._hurt(struck)
        for node in (struck, held):
            if node is not None:
                node.go()
        rest = [node for node in crew.nodes if node is not struck]
        self._see_commit(rest, fault_s)
        self._undo(struck, fault_s)
        self._see_return(rest, struck, fault_s)

    def _stop_one(self, point: Point, role: Role, among: Sequence[ChaosNode]) -> ChaosNode:
        """Return the first node that stops at the point in this role. Let all other nodes
        continue.
        """
        for node in among:
            node.arm(point, role)

        def there() -> ChaosNode | None:
            return next((node for node in among if node.at == point), None)

        found = None
        try:
            found = self._crew.wait_for(f"{role} at {point}", there, deadline_s=REACH_S)
        finally:
            for node in among:
                if node is not found:
                    node.go()
        return found

    def _hurt(self, struck: ChaosNode) -> None:
        match self._case.fault:
            case Fault.KILL:
                struck.kill()
            case Fault.STOP:
                struck.signal(signal.SIGSTOP)
            case Fault.CUT:
                self._crew.place.cut(struck.number)

    def _see_commit(self, rest: Sequence[ChaosNode], fault_s: float) -> None:
        at_s = self._crew.wait_for(
            f"the next commit after {self._case}",
            lambda: self._crew.first_commit_after(fault_s, rest),
            deadline_s=COMMIT_S,
        )
        reduces = [each for node in rest for each in node.seen.reduces_s[-5:]]
        self._account.to_commit_s = at_s - fault_s
        self._account.reduce_s = statistics.median(reduces)

    def _undo(self, struck: ChaosNode, fault_s: float) -> None:
        crew = self._crew
        if self._case.fault is Fault.KILL:
            crew.start(struck)
            return
        ends_s = fault_s + (STOPPED_S if self._case.fault is Fault.STOP else CUT_S)
        left_s = ends_s - time.monotonic()
        crew.wait_for(
            "the end of the fault", lambda: time.monotonic() >= ends_s, deadline_s=left_s + 5
        )
        if self._case.fault is Fault.STOP:
            struck.signal(signal.SIGCONT)
        else:
            crew.place.heal(struck.number)

    def _see_return(self, rest: Sequence[ChaosNode], struck: ChaosNode, fault_s: float) -> None:
        crew, account = self._crew, self._account
        undone_s, step = time.monotonic(), crew.step
        crew.wait_for(
            f"a joint commit after {self._case}",
            lambda: crew.calm_since(step),
            deadline_s=BACK_S,
        )
        back_s = time.monotonic()
        account.back_s = back_s - undone_s
        commits = [each for each in crew.commit_times(fault_s, rest) if each < back_s]
        account.worst_gap_s = max(b - a for a, b in pairwise([fault_s, *commits]))
        reds = [at_s for node in rest for at_s, peer in node.seen.reds if peer == struck.peer]
        account.red_s = min((at_s - fault_s for at_s in reds if at_s > fault_s), default=None)
        crew.wait_for(
            f"equal snapshots after {self._case}",
            lambda: crew.same_state_since(step) is not None,
            deadline_s=BACK_S,
        )
