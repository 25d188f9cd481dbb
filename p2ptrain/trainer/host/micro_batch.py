"""Find how many sequences a rank can compute at once, by halving when memory runs out.

A rank that runs out of memory exits with `OUT_OF_MEMORY_EXIT_CODE`, and the supervisor starts all
ranks again with half as many sequences. Continuing in the same process was rejected: the other
ranks wait in a collective that this rank will not join, FSDP is in an intermediate state, and the
free memory is fragmented. A new process has none of these problems, and all ranks agree because
they get the same number. A restart takes a few seconds, and happens a few times in the life of a
node.

The first try is at most the number that an estimate says will fit. Without an estimate, a block of
two thousand sequences would take half a dozen starts. On a GPU, the ranks estimate from the free
memory; a number that is too large is halved. On a CPU, the node makes a cautious estimate, because
Linux grants more memory than it has, and later kills a process.

The result is reported to the owner of the trainer (`OnHalving`), so that a restarted node does not
run out of memory again. The node stores the result and passes it to the next ranks. The ranks use
it if they have the same device and no more memory.

The gradient does not depend on this number (see `batch`). This module does not import torch.
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
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "status_alloc_failed",
    "status_not_initialized",
)
"""Parts of torch's messages when memory runs out. torch's own exception class is for devices only,
and the CPU's allocator raises a RuntimeError. The last two come from cuBLAS and cuDNN, which take
memory outside torch's allocator. They report status_not_initialized if no memory is left at their
first use."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that the memory of a device or of this machine ran out."""
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in _TEXTS)


GPU_SHARE = 0.9
"""Share of a GPU's free memory to plan with: kernels need memory that is not counted, and some is
fragmented."""


def at_once(config: TrainerConfig, ranks: int) -> int:
    """Return how many sequences a forward pass of one of `ranks` ranks takes."""
    share = math.ceil(config.inner.batch_sequences / ranks)
    return min(config.micro_batch or share, share)


def within(config: TrainerConfig, ranks: int, room_bytes: int) -> TrainerConfig:
    """Reduce the sequences at once to the number whose activations fit into `room_bytes`, but at
    least one. Return the new `config`. All ranks share `room_bytes`.
    """
    fit = max(1, room_bytes // (ranks * _of_one_sequence(config)))
    return config if fit >= at_once(config, ranks) else replace(config, micro_batch=fit)


def on_gpu(config: TrainerConfig, ranks: int, free_bytes: int) -> int:
    """Return the number of sequences with which to begin on a GPU, at least one.

    There is one GPU per rank. `free_bytes` is its free memory after weights and arena are loaded.
    """
    memory = trainer_memory(config.model, config.inner, config.precision, eager=config.eager)
    to_come = (memory.gathered + memory.gradients + memory.optimizer) / ranks
    fit = int((GPU_SHARE * free_bytes - to_come) // _of_one_sequence(config))
    return max(1, min(fit, at_once(config, ranks)))


def _of_one_sequence(config: TrainerConfig) -> int:
    memory = trainer_memory(config.model, config.inner, config.precision, eager=config.eager)
    return memory.activations_recomputed if config.recompute else memory.activations


def as_found(config: TrainerConfig, ranks: int, device: str, free_bytes: int) -> TrainerConfig:
    """Return `config` with no more sequences at once than an earlier halving found to fit, if that
    halving applies to this device and this much free memory.
    """
    found = config.halving
    if found is None or not found.holds(device, free_bytes):
        return config
    return replace(config, micro_batch=min(found.micro_batch, at_once(config, ranks)))


OnHalving = Callable[[Halving], None]
"""Called with each halving, in the thread that starts the trainer."""


def ignore_halving(halving: Halving) -> None:
    """Ignore the halving: an `OnHalving` for callers that do not store it."""


def report_halving(on_halving: OnHalving, hello: Hello | None, smaller: TrainerConfig) -> None:
    """Report that the ranks that sent `hello` ran out of memory, and that `smaller` is next."""
    if hello is not None:
        on_halving(Halving(hello.device, hello.memory_bytes, smaller.micro_batch))


def halved(config: TrainerConfig, ranks: int) -> TrainerConfig | None:
    """Return `config` with half as many sequences at once, rounded up; None if it had only one."""
    sequences = at_once(config, ranks)
    return replace(config, micro_batch=(sequences + 1) // 2) if sequences > 1 else None
