"""Print the lines of a command: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from p2ptrain.standard_error import write_line

SCHEMA = 1

JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print JSON on stdout: one object, or one object in each line."),
]


def result(text: str) -> None:
    print(text)


def result_json(value: Mapping[str, object]) -> None:
    """Print one JSON object, with the schema number unless it has its own.

    It is ASCII: in a terminal or pipe with another encoding, other characters would not be valid
    JSON.
    """
    print(json.dumps({"schema": SCHEMA, **value}))


def progress(text: str) -> None:
    write_line(text)


def examples(*lines: str) -> str:
    """Return the end of a command's help. The mark keeps the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
