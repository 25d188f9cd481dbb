"""`p2ptrain track`: copy the run's history to another program's files while it goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from p2ptrain.cli.history import opened_series
from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result_json
from p2ptrain.errors import counted

EXAMPLES = examples(
    "p2ptrain track --to jsonl ./history",
    "p2ptrain track --to tensorboard ./tb",
    "p2ptrain track --to wandb ./wandb-offline",
    "p2ptrain track --to jsonl ./history --from 400 --once",
)


def track(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write into.")],
    to: Annotated[
        str, typer.Option("--to", metavar="KIND", help="jsonl, tensorboard, wandb or aim.")
    ] = "jsonl",
    first: Annotated[
        int, typer.Option("--from", metavar="STEP", min=0, help="First outer step to copy.")
    ] = 0,
    once: Annotated[bool, typer.Option("--once", help="Copy what is complete, and exit.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the run's history to JSON lines, or to files of TensorBoard, wandb or aim.

    The command continues where it ended before, and never copies an outer step twice. A step is
    copied when its reports are complete, usually two steps later. The command is a process of its
    own, so it cannot disturb the node. It sends nothing to a server: `wandb sync` does that. Press
    Ctrl-C to end it.
    """
    from p2ptrain.cli.tracking.copying import copy_for_ever, copy_new
    from p2ptrain.cli.tracking.targets import open_target

    where = open_home(home, to_write=False)
    run = run_of(where)
    with opened_series(where.root):
        pass  # If there is no series, say so before making a folder.
    target = open_target(to, folder, run.id)
    total = 0

    def count(copied: int) -> None:
        nonlocal total
        total += copied
        if copied:
            progress(f"copied {counted(copied, 'outer step')}, up to step {target.newest}")

    try:
        if once:
            with opened_series(where.root) as reader:
                count(copy_new(reader, target, first, time.time()))
        else:
            progress(f"copying to {folder}; press Ctrl-C to end")
            copy_for_ever(where.root, target, first, now=time.time, rest=time.sleep, copied=count)
    finally:
        target.close()
        if as_json:
            newest = target.newest if target.newest >= 0 else None
            result_json({"run": run.id, "copied": total, "newest_step": newest})
