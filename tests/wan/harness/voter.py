"""The program of one node in `votes`, `exchanges`, `verdicts` and `addresses`: the real node, with
a fake trainer or as a seed. Without --host, it listens at its default addresses.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from p2ptrain.config.node import RELAY_EDGES, NodeConfig
from p2ptrain.node.main import run_node
from p2ptrain.node.state.context import Context
from p2ptrain.node.training.trainer_processes import Trainers
from p2ptrain.testing.fake_trainer import FakeTrainers, TrainerRemote

INNER_STEP_S = 0.1
CONTROL_PORT, DATA_PORT = 4201, 4202


def main() -> int:
    parser = argparse.ArgumentParser(description="One node.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", default="")
    parser.add_argument("--seed", action="store_true")
    parser.add_argument("--mdns", action="store_true")
    parser.add_argument("--bootstrap", nargs="*", default=[])
    parser.add_argument("--relay-edges", type=int, default=RELAY_EDGES)
    parser.add_argument("--inner-step", type=float, default=INNER_STEP_S, help="in seconds")
    parser.add_argument("--map-ports", action="store_true", help="ask the router to open the ports")
    parser.add_argument("--limit-up", type=int, help="bytes per second")
    given = parser.parse_args()
    remote = TrainerRemote(inner_step_s=given.inner_step)

    def trainers(context: Context) -> Trainers:
        return FakeTrainers(context, remote)

    config = NodeConfig(
        given.home,
        bootstrap=tuple(given.bootstrap),
        listen=(f"/ip4/{given.host}/tcp/{CONTROL_PORT}",) if given.host else None,
        data_host=given.host,
        data_port=DATA_PORT,
        limit_up_bytes_per_s=given.limit_up,
        seed=given.seed,
        mdns=given.mdns,
        device="cpu",
        assume_yes=True,
        port_mapping=given.map_ports,
        relay_edges=given.relay_edges,
    )
    return run_node(config, trainers=trainers)


if __name__ == "__main__":
    sys.exit(main())
