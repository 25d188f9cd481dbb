"""When somebody last used this machine, from what logind and the terminals tell.

A desktop tells logind that it is idle after some minutes without input, and logind notes since when
(`IdleHint`, `IdleSinceHint`). A terminal's access time is that of its last input, which is also how
`w` computes idle times: the kernel sets it when a program reads what somebody has typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

QUIET_S = 600.0
"""Seconds without input after which the machine counts as not used: reading a long page is use."""

DESKTOPS = frozenset({"x11", "wayland", "mir"})


@dataclass(frozen=True, slots=True)
class Desktop:
    """A user's desktop session. `idle_since` is in Unix seconds; None while the desktop is not
    idle."""

    idle_since: float | None


def desktops_in(told: str) -> Iterator[Desktop]:
    """Yield the desktops of users in `told`, the output of `loginctl show-session`. A screen that
    is locked or belongs to another virtual terminal is not in use."""
    for block in told.split("\n\n"):
        facts = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        is_users = facts.get("Class", "").startswith("user") and facts.get("State") == "active"
        if facts.get("Type") not in DESKTOPS or not is_users:
            continue
        idle = facts.get("IdleHint") == "yes" or facts.get("LockedHint") == "yes"
        since = facts.get("IdleSinceHint", "")
        yield Desktop((int(since) / 1e6 if _is_number(since) else 0.0) if idle else None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def used_at(desktops: Iterable[Desktop], terminals: Iterable[float], now: float) -> float | None:
    """Return when somebody last used this machine, in Unix seconds; None if nothing tells that.
    `terminals` are the times of the last input of each terminal."""
    seen = (now if each.idle_since is None else each.idle_since for each in desktops)
    return max((min(each, now) for each in (*seen, *terminals)), default=None)


def is_in_use(used: float | None, now: float) -> bool:
    """Return whether somebody used the machine a short time ago. None counts as not used."""
    return used is not None and now - used < QUIET_S
