"""A command that takes its options as dataclasses can be called like any other command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from p2ptrain.cli.option_groups import grouped


@dataclass(frozen=True, slots=True)
class Limits:
    up: Annotated[int | None, typer.Option("--limit-up", help="Send so fast.")] = None
    down: Annotated[int, typer.Option("--limit-down")] = 7


@dataclass(frozen=True, slots=True)
class Talk:
    loud: Annotated[bool, typer.Option("--loud", "-l")] = False


def test_each_dataclass_gets_its_options_and_help_lists_them_in_order() -> None:
    called: list[tuple[str, Limits, Talk]] = []
    app = typer.Typer()

    @app.command()
    @grouped
    def command(
        name: Annotated[str, typer.Argument()] = "x", *, limits: Limits, talk: Talk
    ) -> None:
        """The help text."""
        called.append((name, limits, talk))

    for words in ([], ["y", "-l", "--limit-up", "3"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    assert called == [("x", Limits(), Talk()), ("y", Limits(up=3), Talk(loud=True))]
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(word) for word in ("The help", "--limit-up", "--limit-down", "--loud")]
    assert places == sorted(places)
