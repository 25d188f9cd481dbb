"""Which GPU a rank has, and whether torch can compute on it: asked before anything else, since what
torch says of either is a traceback from the midst of the first step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from p2ptrain.errors import MachineUnfit, P2PTrainError, TrainerError
from p2ptrain.trainer.host.micro_batch import is_out_of_memory

Capability = tuple[int, int]
"""Of a GPU, as its maker counts: (8, 0) is an A100."""

BF16_SINCE: Capability = (8, 0)
"""Before, products of bf16 are emulated, and no fused attention takes it: slower than fp32, with
H · T² numbers of a sequence kept in each block."""

OTHERS_SHARE = 0.1
"""Of a GPU's memory. CUDA itself takes some hundred MB in each process, which count as others'."""


def own_gpu() -> torch.device:
    """That of this rank, by LOCAL_RANK. Raises MachineUnfit: GPU-DRIVER, GPU-NONE, GPU-OLD."""
    if not torch.cuda.is_available():
        raise MachineUnfit(
            f"torch {torch.__version__} can use no GPU here",
            code="GPU-DRIVER",
            likely="this build of torch is for CPUs, or for a newer driver; or the GPU is hidden",
            do="--device cpu; or install the torch that fits this machine's driver",
        )
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise MachineUnfit(
            f"rank {number} of this machine has no GPU: torch sees {count}",
            code="GPU-NONE",
            do=f"--ranks {count} at most: two ranks cannot share a GPU, though two nodes can",
        )
    capability, built_for = torch.cuda.get_device_capability(number), torch.cuda.get_arch_list()
    if not runs_on(capability, built_for):
        raise MachineUnfit(
            f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(number)}, "
            f"which is sm_{capability[0]}{capability[1]}: it has those of {', '.join(built_for)}",
            code="GPU-OLD",
            do="--device cpu; or install a build of torch that has them (P2PTRAIN_TORCH)",
        )
    return torch.device("cuda", number)


def require_bf16(device: torch.device) -> None:
    """Raises MachineUnfit: GPU-OLD, it would only make as if it could."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= BF16_SINCE:
        return
    raise MachineUnfit(
        f"{torch.cuda.get_device_name(device)} does not compute in bf16",
        code="GPU-OLD",
        likely="it is of 2019 or before; fp32 is faster on it and takes less memory",
        do="--precision fp32",
    )


def runs_on(capability: Capability, built_for: list[str]) -> bool:
    """Whether a GPU of this capability can run what was built for these: machine code of its own
    generation, no newer than it, or what the driver compiles for any that is newer.
    """
    known = [found for each in built_for if (found := re.match(r"(sm|compute)_(\d+)(\d)", each))]
    built = [(each[1], (int(each[2]), int(each[3]))) for each in known]
    return not built or any(
        made_for <= capability and (kind == "compute" or made_for[0] == capability[0])
        for kind, made_for in built
    )


@contextmanager
def room_for_the_model(device: torch.device) -> Iterator[None]:
    """Where a GPU's memory ends inside, say whether the model or others have filled it.

    Raises:
        MachineUnfit: MEM-GPU, this rank's share of the weights does not fit.
        TrainerError: GPU-BUSY, it may later.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as exc:
        if device.type != "cuda" or not is_out_of_memory(exc):
            raise
        free, total = torch.cuda.mem_get_info(device)
        ours = torch.cuda.memory_reserved(device)
        raise no_room(torch.cuda.get_device_name(device), total, total - free - ours) from exc


def no_room(name: str, total_bytes: int, others_bytes: int) -> P2PTrainError:
    """For a GPU of which others have so much."""
    if others_bytes > OTHERS_SHARE * total_bytes:
        return TrainerError(
            f"other programs use {others_bytes / 1e9:.1f} of {name}'s {total_bytes / 1e9:.1f} GB, "
            "and the rest is too little for the model",
            code="GPU-BUSY",
            do="end them (nvidia-smi lists them); or --device cpu",
        )
    return MachineUnfit(
        f"the model does not fit into the {total_bytes / 1e9:.1f} GB of {name}",
        code="MEM-GPU",
        do="more --ranks, on GPUs of their own, share it out",
    )
