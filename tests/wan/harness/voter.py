"""The program of one node in `votes` and `exchanges`: the real node, with a fake trainer or as a
seed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from p2ptrain.config.node import NodeConfig
from p2ptrain.node.main import run_node
from p2ptrain.node.state.context import Context
from p2ptrain.node.training.trainer_processes import Trainers
from p2ptrain.testing.fake_trainer import FakeTrainers, TrainerRemote

INNER_STEP_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description="One voter.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--seed", action="store_true")
    parser.add_argument("--bootstrap", nargs="*", default=[])
    given = parser.parse_args()
    remote = TrainerRemote(inner_step_s=INNER_STEP_S)

    def trainers(context: Context) -> Trainers:
        return FakeTrainers(context, remote)

    config = NodeConfig(
        given.home,
        bootstrap=tuple(given.bootstrap),
        listen=(f"/ip4/{given.host}/tcp/4201",),
        data_host=given.host,
        data_port=4202,
        seed=given.seed,
        device="cpu",
        assume_yes=True,
    )
    return run_node(config, trainers=trainers)


if __name__ == "__main__":
    sys.exit(main())
