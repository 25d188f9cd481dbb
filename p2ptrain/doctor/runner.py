"""Run checks, each in a thread with a deadline.

The checks of a *lane* run one after another, and the lanes run at the same time. A check that is
late or crashes becomes a finding, and the other checks go on. The thread of a late check is left
behind, because Python cannot end it: a disk that does not answer would hold this command for ever.
So the threads are daemons, which do not keep the process alive.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from p2ptrain.doctor.finding import Finding, Tell, fault, fault_of
from p2ptrain.errors import P2PTrainError

QUIET_S = 2.0
"""Seconds that the caller waits for a check before it hears which check it is waiting for."""


@dataclass(frozen=True, slots=True)
class Check:
    """`find(tell)` tells what it finds. `about` is a phrase for the user, such as "the disk";
    `name` is the name of the line if the check does not end well."""

    name: str
    about: str
    find: Callable[[Tell], None]
    deadline_s: float


Lane = Sequence[Check]


@dataclass(slots=True)
class _Running:
    """A check in its own thread. Only that thread appends to `found`."""

    check: Check
    found: list[Finding] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    is_late: bool = False

    def run(self) -> None:
        try:
            self.check.find(self.found.append)
        except P2PTrainError as exc:
            self.found.append(fault_of(self.check.name, exc))
        except ImportError as exc:
            self.found.append(_not_loaded(self.check, exc))
        except OSError as exc:
            self.found.append(_refused(self.check, exc))
        except Exception as exc:
            self.found.append(_crashed(self.check, exc))
        finally:
            self.ended.set()

    def results(self) -> list[Finding]:
        """Return what the check has found so far, and that it is late if it is."""
        found = list(self.found)
        return [*found, _late(self.check)] if self.is_late else found


def run_checks(
    lanes: Sequence[Lane], *, deadline_s: float, waiting: Callable[[Check], None]
) -> Iterator[Finding]:
    """Run all lanes, and yield the findings in the order of the lanes, as soon as they are known.

    `deadline_s` limits all lanes together. `waiting(check)` is called when the next findings are
    those of `check`, and it takes longer than QUIET_S.
    """
    ends = time.monotonic() + deadline_s
    running = [[_Running(check) for check in lane] for lane in lanes]
    for lane in running:
        _start(_run_lane, lane, ends)
    for lane in running:
        for each in lane:
            if not each.ended.wait(QUIET_S):
                waiting(each.check)
            # The lane notices a late check by itself. The extra seconds are for a busy machine.
            each.ended.wait(max(ends - time.monotonic(), 0.0) + QUIET_S)
            each.is_late = each.is_late or not each.ended.is_set()
            yield from each.results()


def _run_lane(lane: Sequence[_Running], ends: float) -> None:
    for each in lane:
        done = _start(each.run)
        done.join(max(min(each.check.deadline_s, ends - time.monotonic()), 0.0))
        if done.is_alive():
            each.is_late = True
            each.ended.set()


def _start(function: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, name="doctor", daemon=True)
    thread.start()
    return thread


def _late(check: Check) -> Finding:
    return fault(
        check.name,
        f"the check of {check.about} did not end in time",
        fix="see whether the machine is overloaded or a device hangs (top, dmesg), and try again",
        code="CHECK-LATE",
    )


def _not_loaded(check: Check, exc: ImportError) -> Finding:
    return fault(
        check.name,
        f"{check.about} cannot be checked, because a package cannot be loaded: {exc}",
        fix="repair the installation first: run scripts/setup",
        code="INSTALLATION",
    )


def _refused(check: Check, exc: OSError) -> Finding:
    about = f"{exc.filename}: " if exc.filename else ""
    return fault(
        check.name,
        f"the system refused an operation: {about}{exc.strerror or exc}",
        fix="check that file or device, and who owns it",
        code="OS",
    )


def _crashed(check: Check, exc: BaseException) -> Finding:
    frames = traceback.extract_tb(exc.__traceback__)[-1:]
    where = "".join(f" ({each.filename}:{each.lineno})" for each in frames)
    return fault(
        check.name,
        f"the check of {check.about} failed: {type(exc).__name__}: {exc}{where}",
        fix="this is a bug in p2ptrain, and no fault of yours: please report this line",
        code="BUG",
        status=P2PTrainError.exit_code,
    )
