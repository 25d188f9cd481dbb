"""The owner's orders to a running node: pause, resume, finish, limit and schedule, and the question
whether an average is right.

Each order is a JSON object with the order's arguments, which come from any program of the owner and
are checked here. The answer's `done` is one sentence for the owner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import trio

from p2ptrain.availability.decision import Facts, clock, decide
from p2ptrain.availability.windows import parse_schedule
from p2ptrain.availability.wishes import PAUSE_MAX_S, Limits, Wishes
from p2ptrain.config.node import parse_rate, parse_size
from p2ptrain.errors import ConfigError, counted
from p2ptrain.node.control.finishing import is_done
from p2ptrain.node.control.pausing import resumed, save_wishes, set_pause
from p2ptrain.node.state.context import Context
from p2ptrain.observe.states import rate, size

Answer = dict[str, object]
Order = Callable[..., Awaitable[Answer]]


def _count(text: str) -> int:
    """Return the number in `text`. Raises ConfigError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(f"{text[:40]!r} is not a number", do="write a number, or off")
    return int(text)


LIMITS: dict[str, tuple[str, Callable[[str], int]]] = {
    "up": ("up_bytes_per_s", parse_rate),
    "down": ("down_bytes_per_s", parse_rate),
    "daily": ("daily_bytes", parse_size),
    "threads": ("threads", _count),
    "gpu_mem": ("gpu_bytes", parse_size),
}
"""For each limit in an order: the field of `Limits`, and the function that reads a text."""

REASONS = {
    "on_battery": "on battery",
    "when_gpu_busy": "while other programs use the GPU",
    "when_in_use": "while somebody uses this machine",
}
"""For each fact about the machine that can pause the node: the field of `Wishes`, in words."""

UP_NOTE = "a running exchange uses the new rate from its next segment on"
DOWN_NOTE = "it limits fetched snapshots, updates and data, not the bytes of an exchange"
NEXT_TRAINER = "takes effect when the trainer next starts, for instance after a pause"


async def pause(context: Context, *, request: Mapping[str, Any]) -> Answer:
    """Stop training, for `for_s` seconds or until `resume`. Raises ConfigError."""
    _require_trainer(context)
    for_s, lost = request.get("for_s"), lost_steps(context)
    until = None if for_s is None else time.time() + _seconds(for_s)
    await _wish(context, replace(context.state.wishes, paused=True, paused_until=until))
    now = time.time()
    ends = "until you resume it" if until is None else f"until {clock(until, now)}"
    return _told(context, f"paused {ends}; the device is free after this inner step{lost}")


async def resume(context: Context, *, request: Mapping[str, Any]) -> Answer:
    """End the owner's own pause, and take back `finish`. Raises ConfigError."""
    _require_trainer(context)
    state = context.state
    idle, state.finishing = state.pause is None and state.finishing is None, None
    await _wish(context, resumed(state.wishes))
    if state.pause is not None:
        reason = state.pause.reason
        return _told(context, f"your pause has ended, but this node stays paused: {reason}")
    if idle:
        return _told(context, "this node was not paused")
    return _told(context, "resumed: the trainer starts, and contributes in the next outer step")


async def finish(context: Context, *, request: Mapping[str, Any]) -> Answer:
    """Leave the run after the next committed contribution."""
    state = context.state
    own = context.ledger.snapshot.tokens_by_peer.get(context.me, 0)
    state.finishing = own if state.finishing is None else state.finishing
    context.journal.write("finishing", tokens=state.finishing)
    now = is_done(context)
    context.changes.notify_all()
    if now:
        return _told(context, "this node has nothing to contribute now, so it leaves")
    return _told(context, "this node leaves when its next contribution is committed")


async def limit(context: Context, *, request: Mapping[str, Any]) -> Answer:
    """Change the limits that are given: `up`, `down` (bytes/s), `daily`, `gpu_mem` (bytes) and
    `threads`. A value may be a number, or a text such as "20Mbit" and "50GB". None and "off" remove
    a limit; a limit that is not given stays. Raises ConfigError."""
    changes = {LIMITS[key][0]: _limit(key, request[key]) for key in LIMITS if key in request}
    wishes = context.state.wishes
    limits: Limits = replace(wishes.limits, **changes)
    await _wish(context, replace(wishes, limits=limits))
    notes = []
    if "up" in request:
        notes.append(f"--up applies now: {UP_NOTE}")
    if "down" in request:
        notes.append(f"--down applies now: {DOWN_NOTE}")
    if "daily" in request:
        used = size(context.state.usage.total)
        notes.append(f"--daily applies now: {used} are used today, and the day ends at midnight")
    notes += [
        f"--{each.replace('_', '-')} {NEXT_TRAINER}"
        for each in ("threads", "gpu_mem")
        if each in request
    ]
    said = "; ".join(notes) or "nothing was changed"
    return _told(context, said) | {"limits": asdict(limits), "shown": limits_in_words(context)}


async def schedule(context: Context, *, request: Mapping[str, Any]) -> Answer:
    """Change what is given: `windows` (None removes the schedule), `on_battery`, `when_gpu_busy`,
    `when_in_use`. Raises ConfigError."""
    wishes = context.state.wishes
    if "windows" in request:
        text = request["windows"]
        wishes = replace(wishes, schedule=None if text is None else parse_schedule(str(text)))
    asked: dict[str, Any] = {name: bool(request[name]) for name in REASONS if name in request}
    wishes = replace(wishes, **asked)
    await _wish(context, wishes)
    kept = wishes.to_json()
    told = {name: kept[name] for name in ("schedule", *REASONS)}
    return _told(context, schedule_in_words(wishes)) | told


ORDERS: dict[str, Order] = {
    "pause": pause,
    "resume": resume,
    "finish": finish,
    "limit": limit,
    "schedule": schedule,
}


def _limit(key: str, value: object) -> int | None:
    if value is None or value == "off":
        return None
    return LIMITS[key][1](value) if isinstance(value, str) else value  # type: ignore[return-value]


async def _wish(context: Context, wishes: Wishes) -> None:
    """Keep the wishes, and apply them now. Raises OSError if they cannot be written."""
    await trio.to_thread.run_sync(save_wishes, context.home.availability, wishes)
    state = context.state
    state.wishes = wishes
    context.plane.uplink.set_rate(context.limit_up_bytes_per_s)
    context.plane.downlink.set_rate(wishes.limits.down_bytes_per_s)
    relay = context.peers.relaying.server
    if relay is not None:
        relay.set_limit(context.limit_up_bytes_per_s)
    # Only the facts that need no measurement decide here. `Pausing` looks at the others soon.
    pause = decide(wishes, Facts(time.time(), bytes_today=state.usage.total))
    if pause is not None or state.pause is None or state.pause.kind in ("owner", "schedule"):
        set_pause(context, pause)
    context.journal.write("wishes", **wishes.to_json())
    context.own_heartbeat.send_now()
    context.changes.notify_all()


def _told(context: Context, sentence: str) -> Answer:
    pause = context.state.pause
    return {
        "done": sentence,
        "paused": "" if pause is None else pause.reason,
        "until": None if pause is None else pause.until,
        "finishing": context.state.finishing is not None,
    }


def _require_trainer(context: Context) -> None:
    if not context.trains:
        raise ConfigError("this node does not train, so there is nothing to pause")


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError("for_s is not a number of seconds")
    if not 0 < value <= PAUSE_MAX_S:
        raise ConfigError("a pause lasts at most a year", do="leave the end out, and resume later")
    return float(value)


def lost_steps(context: Context) -> str:
    """Say how many inner steps a pause loses now; "" if it loses none."""
    trainer = context.trainer
    if trainer.work is not None or not trainer.inner_step or not trainer.up:
        return ""
    steps = counted(trainer.inner_steps, "inner step")
    return f"; {trainer.inner_step} of {steps} are lost, and trained again after the pause"


def limits_in_words(context: Context) -> str:
    """Describe the owner's limits, with where they come from; "" if there are none."""
    limits, config = context.state.wishes.limits, context.config
    told = []
    if limits.up_bytes_per_s is not None:
        told.append(f"up {rate(limits.up_bytes_per_s)}")
    elif config.limit_up_bytes_per_s is not None:
        told.append(f"up {rate(config.limit_up_bytes_per_s)} (by --limit-up)")
    if limits.down_bytes_per_s is not None:
        told.append(f"down {rate(limits.down_bytes_per_s)}")
    if limits.daily_bytes is not None:
        used = size(context.state.usage.total)
        told.append(f"{size(limits.daily_bytes)} a day, {used} of them used today")
    if limits.threads is not None:
        told.append(counted(limits.threads, "thread"))
    if limits.gpu_bytes is not None:
        told.append(f"{size(limits.gpu_bytes)} of GPU memory")
    return ", ".join(told)


def schedule_in_words(wishes: Wishes) -> str:
    """Describe when the owner wants the node to train."""
    times = "at any time" if wishes.schedule is None else f"{wishes.schedule.text} (local time)"
    but = [words for name, words in REASONS.items() if getattr(wishes, name)]
    return f"trains {times}" + (f", but not {' or '.join(but)}" if but else "")
