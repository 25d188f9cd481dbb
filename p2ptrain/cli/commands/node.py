"""`p2ptrain node`: turn options into a NodeConfig, and run the node."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from p2ptrain.cli.commands.admission.ways_in import ways_in
from p2ptrain.cli.commands.node_options import (
    JoinOptions,
    LimitOptions,
    OutputOptions,
    ReachOptions,
    TrainingOptions,
    ports_of,
)
from p2ptrain.cli.homes import HomeOption, home_path, open_home
from p2ptrain.cli.option_groups import grouped
from p2ptrain.cli.output import examples
from p2ptrain.cli.outside import outside
from p2ptrain.config.node import (
    NodeConfig,
    parse_host_port,
    parse_rate,
    parse_size,
    parse_snapshots,
)
from p2ptrain.open_files import allow_open_files

EXAMPLES = examples(
    "p2ptrain node --bootstrap /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…",
    "p2ptrain node --seed",
    "p2ptrain node --bootstrap ADDRESS --ranks 2 --device cuda --limit-up 20Mbit",
)


@grouped
def node(
    home: HomeOption = None,
    *,
    reach: ReachOptions,
    training: TrainingOptions,
    limits: LimitOptions,
    joining: JoinOptions,
    telling: OutputOptions,
) -> None:
    """Take part in a run, or serve one.

    The node finds the run, asks once whether you agree to take part, fetches the run's state,
    trains, and exchanges updates with the other peers. Press Ctrl-C once to leave in an orderly
    way, twice to stop at once.
    """
    config = config_of(home_path(home), reach, training, limits, joining, telling)
    raise typer.Exit(start(config))


def config_of(
    home: Path,
    reach: ReachOptions,
    training: TrainingOptions,
    limits: LimitOptions,
    joining: JoinOptions,
    telling: OutputOptions,
) -> NodeConfig:
    """Return the node's configuration.

    Raises ConfigError, VersionMismatch, RunMismatch: an option or an invitation is invalid.
    """
    port, data_host, data_port = ports_of(reach.listen, reach.data_listen, seed=training.seed)
    ways = ways_in(reach.bootstrap or (), joining.run)
    settings = asdict(training)  # NodeConfig has fields of the same names, and checks their values.
    ranks_listen = settings.pop("ranks_listen")
    ranks_host, ranks_port = parse_host_port(ranks_listen) if ranks_listen else ("", 0)
    return NodeConfig(
        **settings,
        **asdict(ways),
        home=home,
        listen=tuple(reach.listen) if reach.listen else None,
        port=port,
        announce=tuple(reach.announce or ()),
        port_mapping=reach.port_mapping,
        data_host=data_host,
        data_port=data_port,
        data_announce=parse_host_port(reach.data_announce) if reach.data_announce else None,
        ranks_host=ranks_host,
        ranks_port=ranks_port,
        limit_up_bytes_per_s=None if limits.limit_up is None else parse_rate(limits.limit_up),
        relay_edges=limits.relay_edges if limits.relay else 0,
        relay_bytes_per_day=parse_size(limits.relay_per_day),
        keep_snapshots=parse_snapshots(limits.keep_snapshots),
        data_cache_bytes=parse_size(limits.data_cache),
        scrub_bytes_per_s=None if limits.scrub == "off" else parse_rate(limits.scrub),
        wait_for_approval=not joining.no_wait,
        keep_entries=limits.keep_entries,
        trust_checkpoint=joining.trust_checkpoint,
        note=joining.note,
        assume_yes=joining.yes,
        mdns=joining.mdns is True,
        # Only an invitation names the organiser.
        searches_lan=joining.mdns is None and ways.organiser is not None,
        page_port=telling.page_port if telling.page else None,
        quiet=telling.quiet,
        verbose=telling.verbose,
    )


def start(config: NodeConfig) -> int:
    """Check the home and the process limits, and only then run the node, which loads slowly."""
    open_home(config.home, to_make=True)
    allow_open_files()
    return outside().run_node(config)
