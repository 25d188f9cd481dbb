"""The wishes of a node's owner: a pause, a schedule, reasons to pause, and limits.

The wishes are kept in the node's home, so that a restart does not forget them. A pause without an
end is not kept: a user who starts a node again wants it to train.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from p2ptrain.availability.windows import Schedule, parse_schedule
from p2ptrain.errors import ConfigError

WISHES_BYTES_MAX = 16_384
"""Maximum length of the file; a typical one has 300 bytes."""

PAUSE_MAX_S = 366 * 86_400.0
RATE_MIN_BYTES_PER_S = 1000
"""Minimum of a rate limit: 8 kbit/s. A fetch at a lower rate would exceed its deadlines."""

DAILY_BYTES_MIN = 10**6
GPU_BYTES_MIN = 10**8
THREADS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of this machine the node may use. None stands for no limit, and for `threads` and
    `gpu_bytes` for the options with which the node was started.

    Raises ConfigError: a limit is out of range.
    """

    up_bytes_per_s: int | None = None
    down_bytes_per_s: int | None = None
    daily_bytes: int | None = None
    """Maximum bytes of bulk data, up and down together, in a day of local time."""
    threads: int | None = None
    gpu_bytes: int | None = None

    def __post_init__(self) -> None:
        _check("--up", self.up_bytes_per_s, RATE_MIN_BYTES_PER_S, "8kbit")
        _check("--down", self.down_bytes_per_s, RATE_MIN_BYTES_PER_S, "8kbit")
        _check("--daily", self.daily_bytes, DAILY_BYTES_MIN, "1MB")
        _check("--threads", self.threads, 1, "1", THREADS_MAX)
        _check("--gpu-mem", self.gpu_bytes, GPU_BYTES_MIN, "100MB")


def _check(name: str, value: object, least: int, words: str, most: int = 2**53) -> None:
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ConfigError(f"{name} is {str(value)[:40]}", do=f"choose at least {words}, or off")


@dataclass(frozen=True, slots=True)
class Wishes:
    """`paused` and `paused_until` (Unix seconds; None: until `resume`) are the pause that the owner
    asked for. `on_battery`, `when_gpu_busy` and `when_in_use` tell whether these facts pause the
    node.

    Raises ConfigError: a value is out of range.
    """

    paused: bool = False
    paused_until: float | None = None
    schedule: Schedule | None = None
    on_battery: bool = False
    when_gpu_busy: bool = False
    when_in_use: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        until = self.paused_until
        if until is not None and not (math.isfinite(until) and until > 0):
            raise ConfigError("the end of the pause is not a time", do="give --for or --until")

    @property
    def needs_the_machine(self) -> bool:
        """Whether the decision depends on facts that only this machine can tell."""
        return self.on_battery or self.when_gpu_busy or self.when_in_use

    def kept(self) -> Wishes:
        """Return what outlives this process: all except a pause without an end."""
        if self.paused and self.paused_until is None:
            return replace(self, paused=False)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        schedule = self.schedule.text if self.schedule else None
        return {
            "schema": 1,
            "paused": self.paused,
            "paused_until": self.paused_until,
            "schedule": schedule,
            "on_battery": self.on_battery,
            "when_gpu_busy": self.when_gpu_busy,
            "when_in_use": self.when_in_use,
            "limits": asdict(self.limits),
        }

    def to_bytes(self) -> bytes:
        return json.dumps(self.kept().to_json(), indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Wishes:
        """Return the wishes in a file. Unknown items are ignored.

        Raises ConfigError: the file is damaged.
        """
        try:
            tree = json.loads(data)
            limits = tree.get("limits") or {}
            return cls(
                paused=bool(tree.get("paused")),
                paused_until=_seconds(tree.get("paused_until")),
                schedule=parse_schedule(tree["schedule"]) if tree.get("schedule") else None,
                on_battery=bool(tree.get("on_battery")),
                when_gpu_busy=bool(tree.get("when_gpu_busy")),
                when_in_use=bool(tree.get("when_in_use")),
                limits=Limits(**_known(limits)),
            )
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as exc:
            raise ConfigError(f"the file is damaged: {exc}", do="remove it") from exc


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a time is not a number")
    return float(value)


def _known(limits: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(Limits)}
    return {name: value for name, value in limits.items() if name in names}
