"""Find the GPU of a rank (a process of a trainer), and check that torch can compute on it. Without
this check, torch would fail only in the first inner step, with a traceback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from p2ptrain.errors import MachineUnfit, P2PTrainError, TrainerError, counted
from p2ptrain.trainer.host.micro_batch import is_out_of_memory

Capability = tuple[int, int]
"""CUDA compute capability of a GPU: (8, 0) is an A100."""

Device = torch.device | int


class Cuda(Protocol):
    """The functions of `torch.cuda` that describe this machine's GPUs."""

    def is_available(self) -> bool: ...

    def device_count(self) -> int: ...

    def get_device_capability(self, device: Device, /) -> Capability: ...

    def get_arch_list(self) -> list[str]: ...

    def get_device_name(self, device: Device, /) -> str: ...

    def mem_get_info(self, device: Device, /) -> tuple[int, int]: ...

    def memory_reserved(self, device: Device, /) -> int: ...


BF16_SINCE: Capability = (8, 0)
"""The first capability with bf16 hardware. Older GPUs emulate bf16 products and have no fused
attention for bf16. So on them bf16 is slower than fp32, and takes more memory: each transformer
block keeps heads × positions² attention weights for a sequence."""

OTHERS_SHARE = 0.1
"""If other programs use more than this share of a GPU's memory, the error for a full GPU names them
as the cause. The few hundred MB that CUDA takes in each process also count as used by others."""


def own_gpu(cuda: Cuda = torch.cuda) -> torch.device:
    """Return the GPU with this rank's LOCAL_RANK. Raises MachineUnfit: GPU-DRIVER, GPU-NONE,
    GPU-OLD."""
    if not cuda.is_available():
        raise MachineUnfit(
            f"torch {torch.__version__} cannot use a GPU here",
            code="GPU-DRIVER",
            likely="torch is for CPUs or a newer driver, or CUDA_VISIBLE_DEVICES hides the GPU",
            do="use --device cpu, or install a build of torch for this machine's driver",
        )
    number, count = int(os.environ.get("LOCAL_RANK", "0")), cuda.device_count()
    if number >= count:
        gpus = counted(count, "GPU")
        raise MachineUnfit(
            f"there is no GPU for rank {number} of this machine: torch sees {gpus}",
            code="GPU-NONE",
            do=f"use at most --ranks {count}: two ranks cannot share a GPU, but two nodes can",
        )
    capability, built_for = cuda.get_device_capability(number), cuda.get_arch_list()
    if not runs_on(capability, built_for):
        raise MachineUnfit(
            f"torch {torch.__version__} has no kernels for "
            f"{cuda.get_device_name(number)} (sm_{capability[0]}{capability[1]}), only "
            f"for {', '.join(built_for)}",
            code="GPU-OLD",
            do="use --device cpu, or install a build of torch that has kernels for this GPU "
            "(P2PTRAIN_TORCH)",
        )
    return torch.device("cuda", number)


def require_bf16(device: torch.device, cuda: Cuda = torch.cuda) -> None:
    """Raise MachineUnfit (GPU-OLD) if `device` is a GPU without bf16 hardware."""
    if device.type != "cuda" or cuda.get_device_capability(device) >= BF16_SINCE:
        return
    raise MachineUnfit(
        f"{cuda.get_device_name(device)} has no bf16 hardware",
        code="GPU-OLD",
        likely="the GPU is from 2019 or earlier; fp32 is faster on it and takes less memory",
        do="use --precision fp32",
    )


def limit_memory(device: torch.device, most_bytes: int) -> None:
    """Let torch allocate at most `most_bytes` on `device`; 0 means no limit. CUDA itself and NCCL
    take a few hundred MB in addition."""
    if device.type == "cuda" and most_bytes:
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, most_bytes / total), device)


def runs_on(capability: Capability, built_for: list[str]) -> bool:
    """Return whether a GPU of this capability can run code that was built for `built_for`.

    Machine code ("sm") runs on GPUs of the same generation (the first number of the capability)
    that are not older than the GPU for which the code was built. Intermediate code ("compute") runs
    on all GPUs that are not older, because the driver compiles it.
    """
    known = [found for each in built_for if (found := re.match(r"(sm|compute)_(\d+)(\d)", each))]
    built = [(each[1], (int(each[2]), int(each[3]))) for each in known]
    return not built or any(
        made_for <= capability and (kind == "compute" or made_for[0] == capability[0])
        for kind, made_for in built
    )


@contextmanager
def room_for_the_model(
    device: torch.device, cuda: Cuda = torch.cuda, *, most_bytes: int = 0
) -> Iterator[None]:
    """If the GPU's memory runs out inside the `with` block, raise an error that says whether the
    model is too large or other programs use the memory. `most_bytes` is the owner's limit; 0 means
    that there is none.

    Raises:
        MachineUnfit: (MEM-GPU) this rank's share of the weights does not fit.
        TrainerError: (GPU-BUSY) other programs use the memory, so a later start may succeed.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as exc:
        if device.type != "cuda" or not is_out_of_memory(exc):
            raise
        free, total = cuda.mem_get_info(device)
        ours = cuda.memory_reserved(device)
        if 0 < most_bytes < total:
            raise too_little(cuda.get_device_name(device), most_bytes) from exc
        raise no_room(cuda.get_device_name(device), total, total - free - ours) from exc


def no_room(name: str, total_bytes: int, others_bytes: int) -> P2PTrainError:
    """Return the error for a full GPU of which other programs use `others_bytes`."""
    if others_bytes > OTHERS_SHARE * total_bytes:
        return TrainerError(
            f"other programs use {others_bytes / 1e9:.1f} of {name}'s "
            f"{total_bytes / 1e9:.1f} GB, and the rest is too little for the model",
            code="GPU-BUSY",
            do="stop those programs (nvidia-smi lists them), or use --device cpu",
        )
    return MachineUnfit(
        f"the model does not fit into the {total_bytes / 1e9:.1f} GB of {name}",
        code="MEM-GPU",
        do="use more --ranks, each on a separate GPU",
    )


def too_little(name: str, allowed_bytes: int) -> MachineUnfit:
    """Return the error for a model that does not fit into the memory that the owner allows."""
    return MachineUnfit(
        f"the model does not fit into the {allowed_bytes / 1e9:.1f} GB of {name} that you allow",
        code="MEM-GPU",
        do="allow more with p2ptrain limit --gpu-mem, or remove the limit with --gpu-mem off",
    )
