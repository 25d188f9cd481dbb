"""One rank of a trainer: `python -m p2ptrain.trainer`, started by `supervisor` or by torchrun."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from pathlib import Path

import torch

from p2ptrain.errors import ConfigError, P2PTrainError
from p2ptrain.ipc.channel import Channel
from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.state.layout import Layout
from p2ptrain.trainer.arena import Arena, map_vector
from p2ptrain.trainer.fitting import OUT_OF_MEMORY_EXIT_CODE, at_once, is_out_of_memory
from p2ptrain.trainer.inner_state import InnerState
from p2ptrain.trainer.loop import Loop
from p2ptrain.trainer.optimizer import make_optimizer
from p2ptrain.trainer.parallelize import build
from p2ptrain.trainer.ranks import Ranks, open_ranks

NODE_GONE_EXIT_CODE = 75


def main() -> None:
    arguments = _arguments()
    if arguments.lifeline_fd is not None:
        _die_with_the_node(arguments.lifeline_fd)
    try:
        config = TrainerConfig.from_json(arguments.config)
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        with open_ranks(config.device, arguments.store_fd) as ranks:
            _serve(config, ranks, arguments)
        # Unloading torch takes a second and frees only what the kernel frees anyway.
        os._exit(0)
    except P2PTrainError as exc:
        sys.stderr.write("\n".join((str(exc), *exc.evidence, exc.do, "")))
        sys.exit(exc.exit_code)


def _serve(config: TrainerConfig, ranks: Ranks, arguments: argparse.Namespace) -> None:
    if ranks.count > config.inner.batch_sequences:
        raise ConfigError(
            f"{ranks.count} ranks for inner batches of {config.inner.batch_sequences} sequences",
            do="start at most one rank per sequence",
        )
    model = build(config, ranks)
    layout = Layout.of((name, tuple(p.shape)) for name, p in model.named_parameters())
    theta, local = (map_vector(fd, layout.numel) for fd in (arguments.theta_fd, arguments.local_fd))
    arena = Arena(model, layout, theta, local, count=config.fragments, eager=config.eager)
    channel = Channel(socket.socket(fileno=arguments.socket_fd)) if ranks.first else None
    ranks.meet()
    if channel is not None:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        channel.send(
            Hello(
                ranks.rank,
                ranks.count,
                layout.digest,
                parameters,
                ranks.device_name,
                at_once(config, ranks.count),
            )
        )
    optimizer = make_optimizer(model, config.inner)
    state = None
    if config.state_folder:
        state = InnerState(Path(config.state_folder), model, optimizer, layout, ranks)
    loop = Loop(config, model, optimizer, arena, ranks, channel, state)
    try:
        loop.run()
    except (RuntimeError, MemoryError) as exc:
        if not is_out_of_memory(exc):
            raise
        # At once: taking leave of the other ranks would wait for those that wait for this one.
        sys.stderr.write(f"{str(exc).splitlines()[0]}\n")
        sys.stderr.flush()
        os._exit(OUT_OF_MEMORY_EXIT_CODE)


def _die_with_the_node(lifeline_fd: int) -> None:
    """End this process, whatever it is doing, when the node's end of the pipe closes.

    A rank that hangs in a collective or in a GPU call sees no other sign that its node is gone.
    (Linux's parent-death signal will not do: it fires when the *thread* that started us ends.)
    """

    def wait() -> None:
        os.read(lifeline_fd, 1)
        os._exit(NODE_GONE_EXIT_CODE)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m p2ptrain.trainer")
    parser.add_argument("--config", required=True, help="TrainerConfig as JSON")
    parser.add_argument("--theta-fd", type=int, required=True, help="shared memory of θ")
    parser.add_argument("--local-fd", type=int, required=True, help="shared memory of local")
    parser.add_argument("--socket-fd", type=int, help="to the node; rank 0 only")
    parser.add_argument("--store-fd", type=int, help="listening socket of the rendezvous; rank 0")
    parser.add_argument("--lifeline-fd", type=int, help="pipe that closes when the node ends")
    return parser.parse_args()


if __name__ == "__main__":
    main()
