"""The option `--as` of commands that admit peers: the role that the peers get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.run import Role

# The same as in `run.roles`, which would load the whole package `run` for each command's help.
TRAINER: Role = "trainer"
READER: Role = "reader"

RoleOption = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="ROLE",
        help="trainer, or reader: a reader fetches and reads the run, but never trains or votes.",
    ),
]


def role_from(text: str) -> Role:
    """Return the role that the user gave. Raises ConfigError: there is no such role."""
    if text == TRAINER:
        return TRAINER
    if text == READER:
        return READER
    raise ConfigError(
        f"{text[:40]!r} is not a role", do=f"give --as with one of: {TRAINER}, {READER}"
    )
