"""`p2ptrain join`: take part in the run of an invitation. It is `p2ptrain node` with one string."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from p2ptrain.cli.commands.admission.ways_in import only_invitation
from p2ptrain.cli.commands.node import config_of, start
from p2ptrain.cli.commands.node_options import (
    JoinOptions,
    LimitOptions,
    OutputOptions,
    ReachOptions,
    TrainingOptions,
)
from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.option_groups import grouped
from p2ptrain.cli.output import examples

EXAMPLES = examples(
    "p2ptrain join p2ptrain:1…",
    'p2ptrain join p2ptrain:1… --note "Ada, two H100s in Oslo" --limit-up 20Mbit',
)


@grouped
def join(
    invite: Annotated[
        str,
        typer.Argument(metavar="INVITE", help="The invitation that the run's organiser gave you."),
    ],
    home: HomeOption = None,
    *,
    reach: ReachOptions,
    training: TrainingOptions,
    limits: LimitOptions,
    joining: JoinOptions,
    telling: OutputOptions,
) -> None:
    """Take part in the run that an invitation names.

    This is the command `node` with the addresses and the run of the invitation. To continue later,
    repeat the command, or use `p2ptrain node`.
    """
    where = home_path(home)
    reach = replace(reach, bootstrap=[only_invitation(invite, where), *(reach.bootstrap or ())])
    raise typer.Exit(start(config_of(where, reach, training, limits, joining, telling)))
