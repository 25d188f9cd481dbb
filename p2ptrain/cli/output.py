"""Print the lines of a command: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from p2ptrain.standard_error import write_line

SCHEMA = 1

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout: one object, or one object per line.")
]


def result(text: str) -> None:
    print(text)


def result_json(value: Mapping[str, object]) -> None:
    """Print one JSON object. Add the schema number unless the object has its own.

    The output is ASCII: in a terminal or pipe that does not use UTF-8, other characters would not
    be valid JSON.
    """
    print(json.dumps({"schema": SCHEMA, **value}))


def result_or_json(text: str, value: Mapping[str, object], *, as_json: bool) -> None:
    """Print `value` as JSON if the user asked for JSON; otherwise print `text`."""
    if as_json:
        result_json(value)
    else:
        result(text)


def progress(text: str) -> None:
    write_line(text)


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help. The backspace at its start tells click to
    keep the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
