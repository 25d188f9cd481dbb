"""The interface between the node and a trainer, and its default implementation.

The node sends frames (`ipc.frames`) to a trainer, and reads the trainer's frames from a socket. At
the other end of the socket are torch processes, or a thread of a test.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from p2ptrain.ipc.admission import load_or_create
from p2ptrain.ipc.frames import Frame, ToTrainer
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import micro_batch_memory
from p2ptrain.prepare import machine_check
from p2ptrain.trainer.host import gpus
from p2ptrain.trainer.host.micro_batch import within
from p2ptrain.trainer.host.supervisor import Supervisor
from p2ptrain.trainer.host.torchrun_trainer import ExternalTrainers


class RunningTrainer(Protocol):
    """One trainer, from its start to its end. See `p2ptrain.trainer.host.supervisor`."""

    useful: bool
    """Whether this trainer's work was offered for a reduce. Set by the task that offers it."""

    @property
    def socket(self) -> socket.socket: ...

    @property
    def pids(self) -> tuple[int, ...]: ...

    @property
    def waits_for(self) -> str:
        """A description of what people still have to do before the trainer can start, or ""."""

    def send(self, frame: ToTrainer, meanwhile: Callable[[], None] | None = None) -> None:
        """Send a frame. This blocks while the socket of a busy trainer is full. In the meantime,
        `meanwhile` is called every second; to give up, it raises an exception.
        Raises TrainerExited."""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data`, read from the socket, completes. Raises TrainerExited if
        `data` is empty (the end of the stream), and TrainerError if a frame is invalid."""

    def check(self) -> None:
        """Raise TrainerExited or TrainerStalled if the trainer has ended or stalled. If it has
        ended, block until its processes are gone."""

    def stop(self, deadline_s: float, *, again: bool = False) -> int:
        """Stop the trainer, by force after the deadline, and return its exit status. This blocks.
        `again`: torchrun on other hosts should start the ranks there again."""


class Trainers(Protocol):
    """Starts the trainers of one node, one at a time."""

    def use_limits(self, threads: int, gpu_bytes: int) -> None:
        """Start later trainers with this number of CPU threads for each rank, and at most this
        memory of its GPU; 0 means no limit."""

    def start(self) -> RunningTrainer:
        """Start a trainer. This blocks. Raises TrainerError: there were too many restarts."""


MakeTrainers = Callable[[Context], Trainers]


def subprocesses(context: Context) -> Trainers:
    """Return the configured trainers: torch processes on this machine, or those that torchrun
    starts on one or several hosts."""
    arena, config, settings = context.trainer.arena, context.config, _settings(context)
    assert arena is not None, "a seed does not have a trainer"
    trainer = micro_batch_memory.load_halving(context, settings)
    on_halving = partial(micro_batch_memory.save_halving, context, settings)
    if not config.ranks_host:
        return Supervisor(trainer, *arena.fds, ranks=config.ranks, on_halving=on_halving)
    return ExternalTrainers(
        # The optimizer state is kept on the hosts of the ranks, in a folder that is set there.
        replace(trainer, state_folder=""),
        arena.theta.view(np.uint8).data,
        arena.local.view(np.uint8).data,
        load_or_create(context.home.ranks_secret),
        config.ranks_host,
        config.ranks_port,
        config.ranks,
        context.journal.write,
        on_halving=on_halving,
    )


def _settings(context: Context) -> TrainerConfig:
    """Return the trainer's settings: those of the run's manifest, and those of this node."""
    config = context.config
    device = config.device
    if device == "auto":
        device = "cuda" if gpus.has_nvidia_gpu(gpus.DEVICES, os.environ) else "cpu"
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if device == "cuda" else "fp32"
    context.journal.write("trainer-config", device=device, precision=precision, ranks=config.ranks)
    settings = TrainerConfig(
        model=context.manifest.model,
        inner=context.manifest.inner,
        device=device,
        precision=precision,
        compile=config.compile,
        recompute=config.recompute,
        threads=context.state.wishes.limits.threads or config.threads,
        gpu_bytes=context.state.wishes.limits.gpu_bytes or 0,
        micro_batch=config.micro_batch,
        state_folder=str(context.home.inner) if config.keep_inner else "",
        document_token=context.manifest.data.document_token,
        fragments=context.manifest.sync.fragments,
        mixing=context.manifest.sync.mixing,
        delayed=context.manifest.delayed,
        eager=context.manifest.sync.eager,
    )
    if device == "cuda" or config.micro_batch or config.ranks_host:
        return settings
    # When a GPU's memory is full, the trainer gets an error and halves its micro-batch. When the
    # machine's memory is full, Linux kills the trainer, so choose a micro-batch that fits.
    room = machine_check.room_for_activations(
        context.run, context.manifest, machine_check.memory_bytes()
    )
    return within(settings, config.ranks, room)
