"""Checks of the home: whether a node can use it, which run it contains, and why the last node in it
stopped.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.archive.home import is_in_use
from p2ptrain.archive.home_safety import refuse_unsafe_home
from p2ptrain.doctor.finding import Finding, Tell, fault, fault_of, good, warning
from p2ptrain.doctor.subject import Learned, Subject
from p2ptrain.errors import ConfigError

CLEAN = ""
"""The code in the journal of a node that its user stopped."""

REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class HomeFacts:
    path: Path
    exists: bool
    is_folder: bool
    is_writable: bool
    """Whether this user can write to the home or, if it does not exist, create it."""
    owner_id: int
    """The owner of the home, or of the folder in which it will be created."""
    in_use_by: int | None
    """The process that uses the home: 0 if its id is unknown, None if there is none."""


@dataclass(frozen=True, slots=True)
class LastStop:
    """The end of a node's last life, according to its journal. Without `is_recorded`, the journal
    ends without a reason."""

    at_unix: float
    code: str = CLEAN
    reason: str = ""
    is_recorded: bool = True


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_home(facts: HomeFacts) -> Finding:
    path = facts.path
    if facts.exists and not facts.is_folder:
        return fault(
            "home",
            f"{path} is a file, not a folder",
            fix="choose another folder with --home DIR",
            code="HOME",
            status=ConfigError.exit_code,
        )
    if not facts.is_writable:
        what, advice = f"you may not write to {path}: it", "choose a folder of your own: --home DIR"
        if facts.exists:
            advice += f"; or become its owner: sudo chown -R $USER {shlex.quote(str(path))}"
        else:
            what = f"you may not create {path}: the folder above it"
        return fault(
            "home",
            f"{what} belongs to user {facts.owner_id}, or its disk is read-only",
            fix=advice,
            code="HOME",
            status=ConfigError.exit_code,
        )
    if facts.in_use_by is not None:
        process = f" (process {facts.in_use_by})" if facts.in_use_by else ""
        return good(
            "home",
            f"a node is running in {path}{process}; a second node needs a --home of its own",
        )
    if not facts.exists:
        return good("home", f"{path} does not exist yet; a node creates it")
    return good("home", f"{path} is yours, and no other user can write to it")


def judge_last_stop(
    stop: LastStop | None, home: Path, explanations: Mapping[str, str], now_unix: float
) -> Finding | None:
    """Judge how the last node in `home` ended. Return None if there was none."""
    if stop is None:
        return None
    ago = _ago(now_unix - stop.at_unix)
    if not stop.is_recorded:
        return warning(
            "last stop",
            f"the last node here wrote its last line {ago} and did not say why it ended: it was "
            "killed, or the machine lost power",
            fix="see whether memory ran out (dmesg | grep -i 'out of memory'); then start the node "
            "again, which continues where it was",
            code="NODE-KILLED",
        )
    if stop.code == CLEAN:
        return good("last stop", f"the last node here was stopped {ago}, in an orderly way")
    explained = explanations.get(stop.code, f"p2ptrain explain {stop.code} says what to do")
    return warning(
        "last stop",
        f"the last node here stopped {ago}: {stop.reason[:REASON_CHARACTERS_MAX]}",
        fix=explained,
        code=stop.code,
    )


def _ago(seconds: float) -> str:
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count != 1)} ago"
    return "less than a minute ago"


def last_stop(records: Iterable[Mapping[str, object]]) -> LastStop | None:
    """Return how the last node ended whose journal has these records, oldest first. Return None if
    no node has run, which is also so after `p2ptrain id` alone."""
    ended: LastStop | None = None
    started = False
    at_unix = 0.0
    for record in records:
        when = record.get("time")
        at_unix = when if isinstance(when, int | float) else at_unix
        if record["event"] == "started":
            started, ended = True, None
        elif record["event"] == "stopped":
            code, reason = str(record.get("code", CLEAN)), str(record.get("reason", ""))
            ended = LastStop(at_unix, code, reason)
    return ended or (LastStop(at_unix, is_recorded=False) if started else None)


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def home(subject: Subject, learned: Learned, tell: Tell) -> None:
    """Check the home, and learn the run that it contains."""
    from p2ptrain.run import load_run

    facts = home_facts(subject)
    tell(_unsafe(subject) or judge_home(facts))
    if not (facts.is_folder and os.access(facts.path, os.R_OK | os.X_OK)):
        return
    _tell_last_stop(subject, facts, tell)
    learned.run_here = load_run(subject.home.manifest)


def _tell_last_stop(subject: Subject, facts: HomeFacts, tell: Tell) -> None:
    from p2ptrain.observe.journal import read_journal

    if facts.in_use_by is not None:
        return
    stop = last_stop(read_journal(subject.home.journal))
    found = judge_last_stop(stop, facts.path, subject.explanations, time.time())
    if found is not None:
        tell(found)


def home_facts(subject: Subject) -> HomeFacts:
    path, folder = subject.config.home, subject.folder
    return HomeFacts(
        path=path,
        exists=os.path.exists(path),
        is_folder=os.path.isdir(path),
        is_writable=os.access(folder, os.W_OK | os.X_OK),
        owner_id=folder.stat().st_uid,
        in_use_by=_user_of(subject.home.lock),
    )


def _user_of(lock: Path) -> int | None:
    if not is_in_use(lock):
        return None
    try:
        return int(lock.read_text(errors="replace").strip() or "0")
    except (OSError, ValueError):
        return 0


def _unsafe(subject: Subject) -> Finding | None:
    """Return the fault of a home to which other users can write."""
    path, home = subject.config.home, subject.home
    if not os.path.isdir(path):
        return None
    try:
        refuse_unsafe_home(path, (home.run, home.store, home.inner))
    except ConfigError as exc:
        return fault_of("home", exc)
    except PermissionError:
        return None  # `judge_home` says so.
    return None
