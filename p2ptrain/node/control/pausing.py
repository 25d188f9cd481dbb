"""Decide, again and again, whether this node may train, and apply its owner's limits.

A paused node has no trainer process, so its device and its memory are free (`training/` ends the
process). The node itself goes on: it follows the ledger, votes, serves chunks and relays. In its
heartbeats it says that it does not train, so that the others do not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path

import trio

from p2ptrain.availability.decision import Facts, GpuWatch, Pause, changes_at, decide, is_paused
from p2ptrain.availability.usage import USAGE_BYTES_MAX, Usage
from p2ptrain.availability.wishes import WISHES_BYTES_MAX, Wishes
from p2ptrain.errors import ConfigError
from p2ptrain.node.control.machine_facts import MachineFacts, machine_facts
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

LOOK_S = 5.0
SAVE_S = 60.0
"""Seconds between two writes of the usage: a crash forgets the bytes of at most a minute."""

UNAVAILABLE = "availability"
"""Key of the warning that this machine does not report a fact on which its owner wants to pause."""

AskMachine = Callable[..., MachineFacts]


def load_wishes(path: Path) -> Wishes:
    """Return the owner's wishes in the file `path`; the defaults if there is none.

    Raises ConfigError: the file cannot be read. A node that ignored it might exceed its limits.
    """
    try:
        with path.open("rb") as file:
            return Wishes.from_bytes(file.read(WISHES_BYTES_MAX))
    except FileNotFoundError:
        return Wishes()
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}", do="make the file readable") from exc
    except ConfigError as exc:
        raise ConfigError(
            f"{path} cannot be used: {exc.what}",
            likely="the file was changed by hand, or by another version of p2ptrain",
            do="correct or remove the file; p2ptrain limit and p2ptrain schedule write it again",
        ) from exc


def save_wishes(path: Path, wishes: Wishes) -> None:
    """Replace the file `path`. Raises OSError."""
    _replace(path, wishes.to_bytes())


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


def set_pause(context: Context, pause: Pause | None) -> None:
    """Begin or end a pause. A node without a trainer cannot be paused."""
    before, state = context.state.pause, context.state
    state.pause = pause if context.trains else None
    if state.pause == before:
        return
    if state.pause is not None:
        kind, reason, until = state.pause.kind, state.pause.reason, state.pause.until
        context.journal.write("paused", kind=kind, reason=reason, until=until)
    elif before is not None:
        context.journal.write("resumed", kind=before.kind)
    context.own_heartbeat.send_now()
    context.changes.notify_all()


class Pausing:
    """Keeps `state.pause`, the limits and the usage of one node up to date."""

    def __init__(
        self,
        context: Context,
        *,
        wall: Callable[[], float] = time.time,
        tz: tzinfo | None = None,
        ask_machine: AskMachine = machine_facts,
        gpu: GpuWatch | None = None,
    ) -> None:
        self._context = context
        self._wall = wall
        self._tz = tz
        self._ask_machine = ask_machine
        self._gpu = gpu or GpuWatch()
        self._machine = MachineFacts()
        self._counted = (0, 0)
        self._saved_at = context.now()
        self._saved = context.state.usage

    async def run(self, *, look_s: float = LOOK_S) -> None:
        """Decide after each change and every `look_s` seconds, until cancelled."""
        context, look_at = self._context, -float("inf")
        while True:
            if context.now() >= look_at:
                await self._look()
                look_at = context.now() + look_s
            self.decide()
            now = self._wall()
            at = changes_at(context.state.wishes, context.state.pause, now, self._tz)
            soon_s = look_s if at is None else min(look_s, max(0.0, at - now) + 0.01)
            await context.changes.wait_calmly(at_most_s=soon_s)

    def decide(self) -> None:
        """Set `state.pause` from the wishes and the facts, and apply the limits."""
        context, state, now = self._context, self._context.state, self._wall()
        self._count(now)
        if state.wishes.paused and not is_paused(state.wishes, now):
            state.wishes = resumed(state.wishes)
        machine, bytes_today = self._machine, state.usage.total
        facts = Facts(now, machine.on_battery, self._gpu.used_by, bytes_today, machine.used_at)
        pause = decide(state.wishes, facts, self._tz)
        context.plane.serving.is_open = pause is None or pause.kind != "daily"
        set_pause(context, pause)

    async def _look(self) -> None:
        """Ask the machine for the facts that the wishes need, and save the usage if it is due."""
        context, wishes = self._context, self._context.state.wishes
        if wishes.needs_the_machine:
            ask = self._ask_machine
            wanted = {
                "battery": wishes.on_battery,
                "gpu": wishes.when_gpu_busy,
                "user": wishes.when_in_use,
            }
            self._machine = await trio.to_thread.run_sync(lambda: ask(**wanted))
        else:
            self._machine = MachineFacts()
        self._gpu.note(self._machine.gpu_used_by, context.now())
        self._tell_missing(self._machine.missing)
        if context.now() >= self._saved_at + SAVE_S and context.state.usage != self._saved:
            self._saved_at, self._saved = context.now(), context.state.usage
            await trio.to_thread.run_sync(save_usage, context, self._saved)

    def _tell_missing(self, missing: tuple[str, ...]) -> None:
        context = self._context
        context.state.unavailable = missing
        if not missing:
            context.alerts.clear(UNAVAILABLE)
        elif UNAVAILABLE not in context.alerts:
            what = f"{'; '.join(missing)}, so this node does not pause for it"
            context.alerts.show(UNAVAILABLE, Caution("PAUSE-UNAVAILABLE", what))
            context.changes.notify_all()

    def _count(self, now: float) -> None:
        """Add the bytes that have been moved since the last call to the day's usage."""
        context = self._context
        moved = (
            context.plane.uplink.asked_bytes,
            context.blobs.fetched_bytes + context.reduce.received_bytes,
        )
        up, down = (new - old for new, old in zip(moved, self._counted, strict=True))
        self._counted = moved
        day = datetime.fromtimestamp(now, self._tz).date().isoformat()
        if up or down or day != context.state.usage.day:
            context.state.usage = context.state.usage.after(up, down, day)


def resumed(wishes: Wishes) -> Wishes:
    """Return the wishes without the owner's own pause."""
    return replace(wishes, paused=False, paused_until=None)


def load_usage(path: Path) -> Usage:
    """Return the usage in the file `path`; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return Usage.from_bytes(file.read(USAGE_BYTES_MAX))
    except OSError:
        return Usage()


def save_usage(context: Context, usage: Usage) -> None:
    try:
        _replace(context.home.usage, usage.to_bytes())
    except OSError as exc:
        context.journal.write("usage-not-kept", path=context.home.usage, reason=str(exc))
