"""`p2ptrain pause`, `p2ptrain resume` and `p2ptrain finish`: orders to the node in this home."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated

from p2ptrain.cli.commands.control.options import changed
from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.durations import parse_duration
from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.output import JsonOption, examples, result_or_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError

PAUSE_EXAMPLES = examples(
    "p2ptrain pause --for 2h", "p2ptrain pause --until 22:00", "p2ptrain pause; p2ptrain resume"
)
RESUME_EXAMPLES = examples("p2ptrain resume", "p2ptrain resume --home /srv/node --json")
FINISH_EXAMPLES = examples("p2ptrain finish", "p2ptrain finish --home /srv/node --json")

_TIME = re.compile(r"(?:(\d{4}-\d{2}-\d{2})[ T])?(\d{1,2}):(\d{2})", re.ASCII)

ForOption = Annotated[
    str | None, changed("--for", "TIME", "How long, such as 90min, 2h or 3d.", "no end")
]
UntilOption = Annotated[
    str | None,
    changed(
        "--until",
        "TIME",
        'Local time at which to train again, such as 22:00 or "2026-12-24 08:00".',
        "no end",
    ),
]


def pause(
    for_: ForOption = None,
    until: UntilOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop training for a while; the device is free, and the node stays a member.

    The trainer's process ends after its inner step, so all memory of the device is free. The
    unfinished inner steps of this outer step are trained again after the pause. The node still
    votes, serves and relays, and the others do not wait for it. A pause with an end survives a
    restart of the node; a pause without one does not.
    """
    if for_ is not None and until is not None:
        raise ConfigError("--for and --until exclude each other", do="give one of them")
    seconds: float | None = None
    if for_ is not None:
        seconds = parse_duration(for_)
    elif until is not None:
        seconds = seconds_until(until, datetime.now())
    arguments = {} if seconds is None else {"for_s": seconds}
    _order(home, "pause", arguments, as_json=as_json)


def resume(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Train again after a pause.

    This ends a pause of `p2ptrain pause`, and takes back `p2ptrain finish`. A schedule or a limit
    can still keep the node paused; the answer says so.
    """
    _order(home, "resume", {}, as_json=as_json)


def finish(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Leave the run after the next committed contribution, so that no work is lost.

    The node then says goodbye and ends with status 0. `p2ptrain resume` takes the order back.
    """
    _order(home, "finish", {}, as_json=as_json)


def _order(
    home: HomeOption, command: str, arguments: Mapping[str, object], *, as_json: bool
) -> None:
    reply = send_command(home_path(home), command, arguments=arguments)
    result_or_json(printable(str(reply.get("done", ""))), reply, as_json=as_json)


def seconds_until(text: str, now: datetime) -> float:
    """Return the seconds from `now` to the local time in `text`. A time without a date is the next
    one. Raises ConfigError: `text` is not a time, or the time is past."""
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        day = now.date() if match[1] is None else datetime.strptime(match[1], "%Y-%m-%d").date()
        at = datetime(day.year, day.month, day.day, int(match[2]), int(match[3]))
    except ValueError as exc:
        raise ConfigError(
            f"{text[:40]!r} is not a time", do='write 22:00, or "2026-12-24 08:00"'
        ) from exc
    if match[1] is None and at <= now:
        at += timedelta(days=1)
    # Timestamps count the seconds that really pass, also when the clock changes in between.
    seconds = at.timestamp() - now.timestamp()
    if seconds <= 0:
        raise ConfigError(f"{text.strip()} is in the past", do="give a time in the future")
    return seconds
