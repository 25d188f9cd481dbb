"""`p2ptrain limit`: change how much of this machine the running node uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from p2ptrain.cli.commands.control.options import changed
from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.output import JsonOption, examples, result, result_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError

EXAMPLES = examples(
    "p2ptrain limit --up 20Mbit --down 100Mbit",
    "p2ptrain limit --daily 50GB",
    "p2ptrain limit --threads 4 --gpu-mem 10GB",
    "p2ptrain limit --up off",
)

OFF = "off"

UpOption = Annotated[str | None, changed("--up", "RATE", "Maximum rate of the upload.")]
DownOption = Annotated[
    str | None,
    changed("--down", "RATE", "Maximum rate at which snapshots, updates and data are fetched."),
]
DailyOption = Annotated[
    str | None,
    changed(
        "--daily",
        "SIZE",
        "Maximum bulk data of a day, up and down. Then the node pauses until midnight.",
    ),
]
ThreadsOption = Annotated[str | None, changed("--threads", "N", "CPU threads of each rank.")]
GpuOption = Annotated[str | None, changed("--gpu-mem", "SIZE", "Maximum GPU memory of each rank.")]


def limit(
    up: UpOption = None,
    down: DownOption = None,
    daily: DailyOption = None,
    threads: ThreadsOption = None,
    gpu_mem: GpuOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Limit how much of this machine the node uses.

    `off` removes a limit. Limits on rates and on the day's bytes take effect at once. Limits on
    threads and GPU memory take effect when the trainer next starts, for instance after a pause. All
    limits are kept in the home, and survive a restart. Without options, show them.
    """
    from p2ptrain.availability.wishes import Limits
    from p2ptrain.config.node import parse_rate, parse_size

    arguments: dict[str, object] = {}
    _read(arguments, "up", up, parse_rate)
    _read(arguments, "down", down, parse_rate)
    _read(arguments, "daily", daily, parse_size)
    _read(arguments, "threads", threads, _count)
    _read(arguments, "gpu_mem", gpu_mem, parse_size)
    names = ("up_bytes_per_s", "down_bytes_per_s", "daily_bytes", "threads", "gpu_bytes")
    keys = ("up", "down", "daily", "threads", "gpu_mem")
    Limits(**{name: arguments.get(key) for name, key in zip(names, keys, strict=True)})  # type: ignore[arg-type]
    reply = send_command(home_path(home), "limit", arguments=arguments)
    if as_json:
        result_json(reply)
        return
    if arguments:
        result(printable(str(reply.get("done", ""))))
    result(f"limits: {printable(str(reply.get('shown', ''))) or 'none'}")


def _read(
    arguments: dict[str, object], key: str, text: str | None, parse: Callable[[str], int]
) -> None:
    if text is not None:
        arguments[key] = None if text == OFF else parse(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"--threads is {text[:40]!r}", do="write a number, or off")
    return int(text)
