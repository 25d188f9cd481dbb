"""Find how many sequences a rank can compute at once, by halving when memory runs out.

A rank that runs out of memory exits with `OUT_OF_MEMORY_EXIT_CODE`, and the supervisor starts all
ranks again with half as many sequences. Continuing in the same process was rejected: the other
ranks wait in a collective that this rank will not join, FSDP is in an intermediate state, and the
free memory is fragmented. New processes have none of these problems. A restart takes a few seconds,
and happens a few times in the life of a node.

The first try uses at most the number that an estimate says will fit. Without an estimate, a block
of two thousand sequences could take half a dozen starts. On a GPU, the ranks estimate from the free
memory, and halve the number if the estimate was wrong. On a CPU, the node makes a cautious
estimate: Linux does not refuse memory that it lacks, but later kills a process.

The node is told about each halving (`OnHalving`), and passes the limit to later ranks, so that
memory does not run out again. Ranks with a different device, or with more memory, ignore the limit.

The gradient does not depend on this number (see `rank.batch`). This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import Halving, TrainerConfig
from p2ptrain.trainer.host.cost import trainer_memory

OUT_OF_MEMORY_EXIT_CODE = 71
"""Exit code of a rank that ran out of memory (EX_OSERR of sysexits.h). A trainer does not exit with
this code for any other reason."""

UNFIT_EXIT_CODE = 78
"""Exit code of a rank that can never compute on this machine with these settings (EX_CONFIG of
sysexits.h)."""

_TEXTS = (
    *("out of memory", "can't allocate memory", "not enough memory"),
    *("status_alloc_failed", "status_not_initialized"),
)
"""Parts of torch's messages when memory runs out. torch's own exception class is for devices only,
and the CPU's allocator raises a RuntimeError. The last two come from cuBLAS and cuDNN, which take
memory outside torch's allocator. They report status_not_initialized if they are first used when no
memory is left."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that the memory of a device or of this machine ran out."""
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in _TEXTS)


GPU_SHARE = 0.9
"""Share of a GPU's free memory that the estimate uses. The rest is for the kernels' own memory and
for fragmentation."""


def at_once(config: TrainerConfig, ranks: int) -> int:
    """Return how many sequences each of `ranks` ranks computes at once."""
    share = math.ceil(config.inner.batch_sequences / ranks)
    return min(config.micro_batch or share, share)


def within(config: TrainerConfig, ranks: int, room_bytes: int) -> TrainerConfig:
    """Return `config`, with fewer sequences at once if their activations do not fit into
    `room_bytes`, but with at least one. All ranks share `room_bytes`."""
    fit = max(1, room_bytes // (ranks * _of_one_sequence(config)))
    return config if fit >= at_once(config, ranks) else replace(config, micro_batch=fit)


def on_gpu(config: TrainerConfig, ranks: int, free_bytes: int) -> int:
    """Return how many sequences a rank should try to compute at once on its GPU, at least one.

    There is one GPU per rank. `free_bytes` is its free memory once the weights are allocated.
    """
    memory = trainer_memory(config.model, config.inner, config.precision, eager=config.eager)
    to_come = (memory.gathered + memory.gradients + memory.optimizer) / ranks
    fit = int((GPU_SHARE * free_bytes - to_come) // _of_one_sequence(config))
    return max(1, min(fit, at_once(config, ranks)))


def _of_one_sequence(config: TrainerConfig) -> int:
    memory = trainer_memory(config.model, config.inner, config.precision, eager=config.eager)
    return memory.activations_recomputed if config.recompute else memory.activations


def as_found(config: TrainerConfig, ranks: int, device: str, free_bytes: int) -> TrainerConfig:
    """Return `config` with the limit of an earlier halving, if that halving applies to this device
    and this much free memory."""
    found = config.halving
    if found is None or not found.holds(device, free_bytes):
        return config
    return replace(config, micro_batch=min(found.micro_batch, at_once(config, ranks)))


OnHalving = Callable[[Halving], None]
"""Called with each halving, in the thread that starts the trainer."""


def ignore_halving(halving: Halving) -> None:
    """Do nothing. This is the `OnHalving` of callers that do not store halvings."""


def report_halving(on_halving: OnHalving, hello: Hello | None, smaller: TrainerConfig) -> None:
    """Report that the ranks that sent `hello` ran out of memory. `smaller` are the settings of the
    next start. Nothing is reported if the ranks ended before their Hello, because their device is
    unknown."""
    if hello is not None:
        on_halving(Halving(hello.device, hello.memory_bytes, smaller.micro_batch))


def halved(config: TrainerConfig, ranks: int) -> TrainerConfig | None:
    """Return `config` with half as many sequences at once, rounded up; None if it had only one."""
    sequences = at_once(config, ranks)
    return replace(config, micro_batch=(sequences + 1) // 2) if sequences > 1 else None
