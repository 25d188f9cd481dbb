"""`p2ptrain doctor`: examine this machine and its way to a run, and say how to fix each fault."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from p2ptrain.cli import doctor_output
from p2ptrain.cli.commands.admission.ways_in import ways_in
from p2ptrain.cli.commands.node_options import (
    BootstrapOption,
    DataListenOption,
    ListenOption,
    PortMappingOption,
    ports_of,
)
from p2ptrain.cli.error_codes import CODES
from p2ptrain.cli.homes import HomeOption, home_path
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.config.node import NodeConfig

EXAMPLES = examples(
    "p2ptrain doctor",
    "p2ptrain doctor p2ptrain:1…",
    "p2ptrain doctor --bootstrap /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…",
    "p2ptrain doctor --home /srv/node --json",
)


def doctor(
    invite: Annotated[
        str | None,
        typer.Argument(
            metavar="[INVITE]",
            help="Invitation to the run to check, or an address; the same as --bootstrap.",
        ),
    ] = None,
    home: HomeOption = None,
    bootstrap: BootstrapOption = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUNID", help="Expect this run there.")
    ] = None,
    listen: ListenOption = None,
    data_listen: DataListenOption = None,
    seed: Annotated[
        bool, typer.Option("--seed", help="Check for a node that serves the run without training.")
    ] = False,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="Device to check: auto, cpu or cuda.")
    ] = "auto",
    ranks: Annotated[
        int, typer.Option("--ranks", metavar="N", help="Number of trainer processes to check for.")
    ] = 1,
    port_mapping: PortMappingOption = True,
    as_json: JsonOption = False,
) -> None:
    """Check whether this machine can take part, and say how to repair each fault.

    The command takes at most a minute. It does not join a run, and changes nothing in the home.
    Each line begins with ✓ (good), ! (a node can run, but read this) or ✗ (a node cannot run).
    With an invitation or --bootstrap, the command also checks the way to the run.

    The exit status is 0 if there is no ✗. Otherwise it is the status with which a node would end
    because of the first ✗; for instance 4 for this machine, and 5 for the network.
    """
    port, data_host, data_port = ports_of(listen, data_listen, seed=seed)
    config = NodeConfig(
        home=home_path(home),
        **asdict(ways_in([*([invite] if invite else []), *(bootstrap or ())], run)),
        listen=tuple(listen) if listen else None,
        port=port,
        data_host=data_host,
        data_port=data_port,
        seed=seed,
        device=device,  # type: ignore[arg-type]  # NodeConfig checks the value
        ranks=ranks,
        port_mapping=port_mapping,
    )
    raise typer.Exit(_examine(config, as_json=as_json))


def _examine(config: NodeConfig, *, as_json: bool) -> int:
    """Run the checks and show their findings. Return the exit status."""
    from p2ptrain.doctor.checks import examine
    from p2ptrain.doctor.finding import Finding, exit_status
    from p2ptrain.doctor.runner import Check
    from p2ptrain.doctor.subject import Subject

    def waiting(check: Check) -> None:
        progress(f"checking {check.about}: at most {check.deadline_s:.0f} s …")

    began, found = time.monotonic(), list[Finding]()
    look = doctor_output.Look.of_terminal()
    for finding in examine(Subject(config, CODES), waiting):
        found.append(finding)
        if not as_json:
            for line in doctor_output.lines(finding, look):
                result(line)
    seconds = time.monotonic() - began
    if as_json:
        result_json(doctor_output.facts(found, seconds))
    else:
        result("")
        result(doctor_output.verdict(found, seconds, asked=bool(config.bootstrap)))
    return exit_status(found)
