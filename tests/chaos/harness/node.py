"""The program of one node in a chaos test: the real node with a gate at each protocol point.

    python -m tests.chaos.harness.node --home HOME --line FD --listen … --data-listen …

By default the trainer is a stand-in: a thread that sends real frames and waits as long as a trainer
would take. `--trainers torch` starts real trainers. If an error ends the node, its traceback is
printed, and the harness looks for it.
"""

from __future__ import annotations

import argparse
import socket
import sys
from functools import partial
from pathlib import Path

from p2ptrain.config.node import NodeConfig, parse_host_port
from p2ptrain.node.main import run_node
from p2ptrain.node.state.context import Context
from p2ptrain.node.training.trainer_processes import Trainers, subprocesses
from p2ptrain.testing.fake_trainer import FakeTrainers, TrainerRemote
from tests.chaos.harness.gate import Gate
from tests.chaos.harness.modes import KINDS, STAND_IN, TORCH
from tests.chaos.harness.stand_ins import dress


def main() -> int:
    parser = argparse.ArgumentParser(description="One node of the chaos harness.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument(
        "--line", type=int, required=True, help="file descriptor of the harness's socket"
    )
    parser.add_argument("--listen", required=True)
    parser.add_argument("--data-listen", required=True)
    parser.add_argument("--bootstrap", nargs="*", default=[])
    parser.add_argument("--inner-step-s", type=float, default=0.2)
    parser.add_argument("--trainers", choices=KINDS, default=STAND_IN)
    given = parser.parse_args()
    host, port = parse_host_port(given.data_listen)
    config = NodeConfig(
        given.home,
        bootstrap=tuple(given.bootstrap),
        listen=(given.listen,),
        data_host=host,
        data_port=port,
        device="cpu",
        assume_yes=True,
        threads=1,  # Five nodes share the machine's cores.
        keep_snapshots=None,  # All updates are checked at the end.
    )
    remote = TrainerRemote(inner_step_s=given.inner_step_s)
    gate = Gate(socket.socket(fileno=given.line))

    def stand_ins(context: Context) -> Trainers:
        return FakeTrainers(context, remote)

    trainers = subprocesses if given.trainers == TORCH else stand_ins
    return run_node(config, trainers=trainers, dress=partial(dress, gate))


if __name__ == "__main__":
    sys.exit(main())
