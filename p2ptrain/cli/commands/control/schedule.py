"""`p2ptrain schedule`: choose when the running node trains."""

from __future__ import annotations

from typing import Annotated

import typer

from p2ptrain.cli.commands.control.options import changed
from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.output import JsonOption, examples, result_or_json
from p2ptrain.cli.rendering import printable

EXAMPLES = examples(
    'p2ptrain schedule "22:00-07:00"',
    'p2ptrain schedule "mon-fri 18:00-08:00, sat-sun 00:00-24:00"',
    "p2ptrain schedule --no-battery --no-busy-gpu --not-in-use",
    "p2ptrain schedule off",
)


def schedule(
    windows: Annotated[
        str | None,
        typer.Argument(
            metavar="WINDOWS",
            help='Hours of local time in which to train, such as "22:00-07:00", or off.',
            show_default=False,
        ),
    ] = None,
    battery: Annotated[
        bool | None,
        changed(
            "--battery/--no-battery", None, "Whether to train while this machine runs on battery."
        ),
    ] = None,
    busy_gpu: Annotated[
        bool | None,
        changed(
            "--busy-gpu/--no-busy-gpu",
            None,
            "Whether to train while other programs use the GPU (asks nvidia-smi).",
        ),
    ] = None,
    in_use: Annotated[
        bool | None,
        changed(
            "--in-use/--not-in-use",
            None,
            "Whether to train while somebody uses this machine (asks logind and terminals).",
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the hours in which to train.

    Outside of them the node is paused: the device is free, and the node stays a member. The choice
    is kept in the home, and survives a restart. Without arguments, show it.
    """
    from p2ptrain.availability.windows import parse_schedule

    arguments: dict[str, object] = {}
    if windows is not None:
        arguments["windows"] = None if windows == "off" else parse_schedule(windows).text
    if battery is not None:
        arguments["on_battery"] = not battery
    if busy_gpu is not None:
        arguments["when_gpu_busy"] = not busy_gpu
    if in_use is not None:
        arguments["when_in_use"] = not in_use
    reply = send_command(home_path(home), "schedule", arguments=arguments)
    said = str(reply.get("done", ""))
    paused = str(reply.get("paused", ""))
    shown = f"{said}; paused now: {paused}" if paused else said
    result_or_json(printable(shown), reply, as_json=as_json)
