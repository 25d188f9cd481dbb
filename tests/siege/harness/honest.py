"""The program of one honest node in a siege: the real node, usually with a fake trainer.

    python -m tests.siege.harness.honest --home HOME --listen … --data-listen … --bootstrap …

The fake trainer is a thread that sends real frames and waits as long as a trainer would take. With
`--trainers torch` the trainer is the usual process with torch. If an error ends the node, its
traceback is printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from p2ptrain.config.node import NodeConfig, parse_host_port
from p2ptrain.node.main import run_node
from p2ptrain.node.state.context import Context
from p2ptrain.node.training.trainer_processes import Trainers, subprocesses
from p2ptrain.testing.fake_trainer import FakeTrainers, TrainerRemote
from tests.chaos.harness.modes import KINDS, STAND_IN, TORCH


def config_of(given: argparse.Namespace) -> NodeConfig:
    host, port = parse_host_port(given.data_listen)
    return NodeConfig(
        given.home,
        bootstrap=tuple(given.bootstrap),
        listen=(given.listen,),
        data_host=host,
        data_port=port,
        device="cpu",
        threads=1,  # Five nodes share the machine's cores.
        assume_yes=True,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One honest node of a siege.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--data-listen", required=True)
    parser.add_argument("--bootstrap", nargs="*", default=[])
    parser.add_argument("--trainers", choices=KINDS, default=STAND_IN)
    parser.add_argument("--inner-step-s", type=float, default=0.5)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    remote = TrainerRemote(inner_step_s=given.inner_step_s)

    def trainers(context: Context) -> Trainers:
        return FakeTrainers(context, remote)

    return run_node(
        config_of(given), trainers=subprocesses if given.trainers == TORCH else trainers
    )


if __name__ == "__main__":
    sys.exit(main())
