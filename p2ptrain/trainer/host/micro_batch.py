"""How many sequences a rank computes at once: found by trying, and halved where memory runs out.

A rank whose memory is spent ends with `OUT_OF_MEMORY_EXIT_CODE`, and the supervisor starts all
ranks again with half as many sequences.  Going on inside the process was rejected: the other ranks
wait in a collective that this one will not join, FSDP is between two of its states, and what is
left of the memory lies in pieces.  A new process has none of that, and all ranks agree since they
are told the same.  It costs some seconds, a few times in the life of a node.

The first try is no larger than an estimate says will fit: a block of two thousand sequences would
take half a dozen starts otherwise.  On a GPU the ranks make it, of what is free there; it may be
too large, and then it is halved.  On a CPU the node does, with care: there memory does not run out
like that, since Linux hands out what it has not got, and then kills somebody.

What was found so is told to whoever started the trainer (`Found`), since the node that is started
again would run out of memory again: it keeps that, and says it to the next ranks, which believe it
where they have the same device and no more memory.

The gradient is the same whatever comes out of this (see `batch`).  No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import Halving, TrainerConfig
from p2ptrain.trainer.host.cost import trainer_memory

OUT_OF_MEMORY_EXIT_CODE = 71
"""EX_OSERR of sysexits.h: nothing else in a trainer ends so."""

UNFIT_EXIT_CODE = 78
"""EX_CONFIG: with these settings no rank can compute on this machine, however often it is tried."""

_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "status_alloc_failed",
    "status_not_initialized",
)
"""What torch says: its own class is for devices, and the CPU's allocator raises a RuntimeError. The
last two are cuBLAS's and cuDNN's, which take memory beside torch's own allocator: the second is all
that they say where there is none left to begin with."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on a device or here."""
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in _TEXTS)


GPU_SHARE = 0.9
"""Of a GPU's free memory: kernels need some beside what is counted, and some lies in pieces."""


def at_once(config: TrainerConfig, ranks: int) -> int:
    """How many sequences a forward pass of one of `ranks` ranks takes."""
    share = math.ceil(config.inner.batch_sequences / ranks)
    return min(config.micro_batch or share, share)


def within(config: TrainerConfig, ranks: int, room_bytes: int) -> TrainerConfig:
    """The same, with no more sequences at once than have their activations in `room_bytes`, which
    all ranks share; one at least.
    """
    fit = max(1, room_bytes // (ranks * _of_one_sequence(config)))
    return config if fit >= at_once(config, ranks) else replace(config, micro_batch=fit)


def on_gpu(config: TrainerConfig, ranks: int, free_bytes: int) -> int:
    """With how many sequences at once to begin on a GPU, one of as many as there are `ranks`, that
    has `free_bytes` left beside the weights and what the arena keeps; one at least.
    """
    memory = trainer_memory(config.model, config.inner, config.precision, eager=config.eager)
    to_come = (memory.gathered + memory.gradients + memory.optimizer) / ranks
    fit = int((GPU_SHARE * free_bytes - to_come) // _of_one_sequence(config))
    return max(1, min(fit, at_once(config, ranks)))


def _of_one_sequence(config: TrainerConfig) -> int:
    memory = trainer_memory(config.model, config.inner, config.precision, eager=config.eager)
    return memory.activations_recomputed if config.recompute else memory.activations


def as_found(config: TrainerConfig, ranks: int, device: str, free_bytes: int) -> TrainerConfig:
    """The same with no more sequences at once than an earlier halving has left, if that was of so
    much memory of this device.
    """
    found = config.halving
    if found is None or not found.holds(device, free_bytes):
        return config
    return replace(config, micro_batch=min(found.micro_batch, at_once(config, ranks)))


Found = Callable[[Halving], None]
"""Is told of each halving, in whatever thread starts the trainer."""


def unheard(halving: Halving) -> None:
    """Where nobody wants to know."""


def tell(found: Found, hello: Hello | None, smaller: TrainerConfig) -> None:
    """That ranks which said `hello` ran out of memory, so that the next ones are `smaller`."""
    if hello is not None:
        found(Halving(hello.device, hello.memory_bytes, smaller.micro_batch))


def halved(config: TrainerConfig, ranks: int) -> TrainerConfig | None:
    """The same with half as many sequences at once; None if it was one sequence already."""
    sequences = at_once(config, ranks)
    return replace(config, micro_batch=(sequences + 1) // 2) if sequences > 1 else None
