"""`p2ptrain verify --average STEP`: have the node in a home compute parts of an average again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.output import progress, result, result_json
from p2ptrain.cli.rendering import show_error
from p2ptrain.errors import P2PTrainError, StoreError, TryLater, counted
from p2ptrain.suggested_command import to_paste

CHUNK_S = 120.0
"""Deadline in seconds for one chunk. The node's own deadlines are shorter, also if it asks for
signed sums because the chunk is wrong."""


def verify_average(home: Path, step: int, chunks: int, *, as_json: bool) -> None:
    """Check `chunks` chunks of the average of outer step `step`, drawn at random, and print the
    result. Exit with an error if the average is wrong, or cannot be checked completely.

    Raises TryLater, RemoteProtocolError: no node runs in `home`, or it refuses.
    """
    found = list(_checked(home, step, chunks))
    if as_json:
        good = all(each["good"] for each in found)
        result_json({"step": step, "good": good, "checked": found})
    error = _error_of(home, step, found)
    if error is not None:
        show_error(error)
        raise typer.Exit(error.exit_code)
    if not as_json:
        total, given = found[0]["chunks"], counted(found[0]["participants"], "contribution")
        result(
            f"{len(found)} of {counted(total, 'chunk')} of the average of outer step {step} "
            f"{'follows' if len(found) == 1 else 'follow'} from {given}"
        )


def _checked(home: Path, step: int, chunks: int) -> Iterator[dict[str, Any]]:
    """Yield the node's findings about different chunks. The first one says how many there are."""
    draw = random.SystemRandom()
    first = _ask(home, step, draw.randrange(2**48))
    yield first
    others = range(1, first["chunks"])
    for offset in draw.sample(others, min(chunks - 1, len(others))):
        yield _ask(home, step, first["chunk"] + offset)


def _ask(home: Path, step: int, number: int) -> dict[str, Any]:
    arguments = {"step": step, "number": number}
    found = send_command(home, "check-average", deadline_s=CHUNK_S, arguments=arguments)
    progress(found["words"])
    return found


def _error_of(home: Path, step: int, found: list[dict[str, Any]]) -> P2PTrainError | None:
    if wrong := [each["words"] for each in found if each["wrong"]]:
        return StoreError(
            f"the average of outer step {step} is wrong",
            code="AVERAGE-WRONG",
            evidence=wrong,
            likely="a participant replaced a sum, or averaged something else than it claimed",
            do="show this to the run's organiser",
        )
    if missing := [each["words"] for each in found if each["missing"]]:
        return TryLater(
            f"the average of outer step {step} cannot be checked completely",
            code="AVERAGE-PARTIAL",
            evidence=missing,
            likely="the outer step is too old, or a participant is offline or withholds its work",
            do=f"check a newer outer step; {to_paste(home, 'status')} shows the current one",
        )
    return None
