"""One rank of a trainer: `python -m p2ptrain.trainer`, started by `supervisor` or by torchrun.

A rank is one of the processes that train the model together. A supervisor passes settings, shared
memory and a socket to the rank. Under torchrun, the rank connects to the node, which sends the
settings and serves the vectors in place of shared memory (`node_client`). The option for the node's
address is called `--call`, since torchrun would read `--node` as its own `--node-rank`.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from p2ptrain.config.node import parse_host_port
from p2ptrain.errors import ConfigError, MachineUnfit, P2PTrainError, counted
from p2ptrain.ipc.admission import load
from p2ptrain.ipc.channel import Channel
from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.state.layout import Layout
from p2ptrain.trainer.host.micro_batch import (
    OUT_OF_MEMORY_EXIT_CODE,
    UNFIT_EXIT_CODE,
    as_found,
    at_once,
    is_out_of_memory,
    on_gpu,
)
from p2ptrain.trainer.rank.arena import RankArena, map_vector
from p2ptrain.trainer.rank.inner_state import InnerState
from p2ptrain.trainer.rank.loop import Means, TrainerLoop, read_file
from p2ptrain.trainer.rank.node_client import NODE_GONE_EXIT_CODE, NodeCredentials, NodeLink, join
from p2ptrain.trainer.rank.optimizer import make_optimizer
from p2ptrain.trainer.rank.own_gpu import limit_memory, require_bf16, room_for_the_model
from p2ptrain.trainer.rank.parallelize import build
from p2ptrain.trainer.rank.ranks import Ranks, open_ranks


def main() -> None:
    arguments = _arguments()
    if arguments.lifeline_fd is not None:
        _die_with_the_node(arguments.lifeline_fd)
    sys.excepthook = _end_at_once
    try:
        link = _join(arguments) if arguments.call else None
        config = link.config if link else TrainerConfig.from_json(arguments.config)
        if arguments.inner_state:
            config = replace(config, state_folder=arguments.inner_state)
        torch.set_num_threads(config.threads)
        generation = link.generation if link else None
        with open_ranks(config.device, arguments.store_fd, generation) as ranks:
            _serve(config, ranks, arguments, link)
        status = 0
    except P2PTrainError as exc:
        sys.stderr.write("\n".join((str(exc), *exc.evidence, exc.do, "")))
        sys.stderr.flush()
        unfit = isinstance(exc, ConfigError | MachineUnfit)
        status = UNFIT_EXIT_CODE if unfit else exc.exit_code
    # Unloading torch takes a second and frees only memory that the kernel frees anyway. Our socket
    # is already closed, so the node would soon kill this process and never learn its exit status.
    os._exit(status)


def _end_at_once(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an unexpected exception and exit immediately. A normal exit runs torch's clean-up,
    which may wait for the other ranks while they wait for this one."""
    # Do not use sys.stderr: during this call, torch replaces it in order to print the text later.
    traceback.print_exception(kind, error, trace, file=sys.__stderr__)
    if sys.__stderr__ is not None:
        sys.__stderr__.flush()
    os._exit(1)


def _join(arguments: argparse.Namespace) -> NodeLink:
    """Connect to the node as one of the ranks that torchrun has started for it."""
    host, port = parse_host_port(arguments.call)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    link = join(NodeCredentials(host, port, load(Path(arguments.secret)), rank, count))
    link.die_with_the_node()
    if (interface := link.interface) is not None:
        # By default, gloo listens on the address that the host's name resolves to, which may be
        # loopback. NCCL uses the first interface, which may not reach the other hosts.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    return link


def _serve(
    config: TrainerConfig, ranks: Ranks, arguments: argparse.Namespace, link: NodeLink | None
) -> None:
    if ranks.count > config.inner.batch_sequences:
        raise ConfigError(
            f"{ranks.count} ranks cannot share inner batches of "
            f"{counted(config.inner.batch_sequences, 'sequence')}",
            do="start at most one rank per sequence",
        )
    if config.precision == "bf16":
        require_bf16(ranks.device)
    limit_memory(ranks.device, config.gpu_bytes)
    with room_for_the_model(ranks.device, most_bytes=config.gpu_bytes):
        model = build(config, ranks)
        layout = Layout.of((name, tuple(p.shape)) for name, p in model.named_parameters())
        if link is None:
            fds = (arguments.theta_fd, arguments.local_fd)
            theta, local = (map_vector(fd, layout.numel) for fd in fds)
        else:
            theta, local = link.vectors(layout)
        count, eager = config.fragments, config.eager
        arena = RankArena(model, layout, theta, local, count=count, mirror=link, eager=eager)
    free_bytes = ranks.least(ranks.free_bytes(config.gpu_bytes))
    config = _fitted(config, ranks, free_bytes)
    channel = None
    if ranks.first:
        channel = link.channel() if link else Channel(socket.socket(fileno=arguments.socket_fd))
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
                free_bytes,
            )
        )
    optimizer = make_optimizer(model, config.inner)
    state = None
    if config.state_folder:
        state = InnerState(Path(config.state_folder), model, optimizer, layout, ranks)
    read = link.read_block if link else read_file
    loop = TrainerLoop(config, model, optimizer, arena, ranks, channel, state, Means(read))
    try:
        loop.run()
    except (RuntimeError, MemoryError) as exc:
        if not is_out_of_memory(exc):
            raise
        # Exit now: a clean shutdown would wait for the other ranks, which wait for this one.
        sys.stderr.write(f"{str(exc).splitlines()[0]}\n")
        sys.stderr.flush()
        if link is not None:
            link.report_end(OUT_OF_MEMORY_EXIT_CODE)
        os._exit(OUT_OF_MEMORY_EXIT_CODE)


def _fitted(config: TrainerConfig, ranks: Ranks, free_bytes: int) -> TrainerConfig:
    """Return `config` with the number of sequences that a rank computes at once.

    On a GPU, this is the number that is likely to fit, unless the settings give a number. If an
    earlier start ran out of memory on such a device, it is at most the limit found then.
    """
    if ranks.device.type != "cpu" and not config.micro_batch:
        config = replace(config, micro_batch=on_gpu(config, ranks.count, free_bytes))
    if config.halving is None:
        return config
    fits = as_found(config, ranks.count, ranks.device_name, free_bytes)
    # The ranks' devices may have different names, but the number must be the same for all ranks.
    return replace(config, micro_batch=ranks.least(at_once(fits, ranks.count)))


def _die_with_the_node(lifeline_fd: int) -> None:
    """End this process, whatever it is doing, when the node's end of the pipe closes.

    Otherwise a rank that hangs in a collective or in a GPU call would not notice that its node is
    gone. (Linux's parent-death signal does not help: it is sent when the *thread* that started this
    process ends.)
    """

    def wait() -> None:
        os.read(lifeline_fd, 1)
        os._exit(NODE_GONE_EXIT_CODE)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m p2ptrain.trainer")
    parser.add_argument(
        "--call", metavar="HOST:PORT", help="where the node listens for ranks that torchrun starts"
    )
    parser.add_argument("--secret", default="ranks.secret", help="copy of the node's ranks.secret")
    parser.add_argument(
        "--inner-state",
        metavar="DIR",
        help="folder for the optimizer's state; all ranks need access to it",
    )
    parser.add_argument("--config", help="TrainerConfig as JSON")
    parser.add_argument("--theta-fd", type=int, help="shared memory with θ")
    parser.add_argument("--local-fd", type=int, help="shared memory with the local weights")
    parser.add_argument("--socket-fd", type=int, help="socket to the node; rank 0 only")
    parser.add_argument("--store-fd", type=int, help="socket for torch's TCPStore; rank 0 only")
    parser.add_argument("--lifeline-fd", type=int, help="pipe that closes when the node ends")
    return parser.parse_args()


if __name__ == "__main__":
    main()
