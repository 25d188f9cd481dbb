"""The ranks (processes) of one peer's trainer: how they find each other, and the small values that
they exchange.

A single rank uses this module, too, so that other code needs no special case. On GPUs, NCCL
transfers parameters, but gloo transfers frames and sums of losses. So a rank that waits for the
next frame does not occupy its GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# torch.distributed exports these classes, but torch has their types only in this private module.
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from p2ptrain.ipc.frames import Frame
from p2ptrain.ipc.wire import decode_body, encode_body
from p2ptrain.trainer.rank.own_gpu import Cuda, own_gpu

TIMEOUT = timedelta(minutes=20)
"""Time limit of a collective, for ranks that no node watches. A node ends a rank that hangs in a
collective long before this limit (`stall_watch`)."""

WORDS_BYTES_MAX = 1024
"""Maximum length in bytes of an error message that ranks send each other; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process, which is one of the `count` ranks of its peer. Rank 0 talks to the node."""

    rank: int
    count: int
    mesh: DeviceMesh
    device: torch.device
    control: dist.ProcessGroup

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """The vendor's name of the device; "cpu" for a CPU."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def free_bytes(self, most_bytes: int = 0) -> int:
        """Return the free memory of this rank's GPU, of which torch may use `most_bytes` in all (0
        means no limit); for a CPU, all memory of the machine."""
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            left = max(0, most_bytes - torch.cuda.memory_reserved(self.device))
            return min(free, left) if most_bytes else free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def share(self, frame: Frame | None) -> Frame | None:
        """Return rank 0's frame on every rank.

        The frame is sent in its own encoding and not as a pickle. Ranks accept connections, and a
        pickle from a malicious connection could run code.
        """
        if self.count == 1:
            return frame
        body = encode_body(frame) if self.first and frame is not None else b""
        length = torch.tensor([len(body)])
        dist.broadcast(length, 0, group=self.control)
        if not length:
            return None
        data = torch.frombuffer(bytearray(body or bytes(int(length))), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self.control)
        return decode_body(data.numpy().tobytes())

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all ranks, on the CPU in double precision."""
        total = values.detach().to("cpu", torch.float64)
        dist.all_reduce(total, group=self.control)
        return total

    def broadcast(self, numbers: list[int]) -> list[int]:
        """Return rank 0's `numbers` on every rank."""
        told = torch.tensor(numbers, dtype=torch.int64)
        dist.broadcast(told, 0, group=self.control)
        return [int(each) for each in told]

    def least(self, number: int) -> int:
        """Return the smallest `number` of all ranks."""
        told = torch.tensor(number)
        dist.all_reduce(told, dist.ReduceOp.MIN, group=self.control)
        return int(told)

    def any_rank(self, yes: bool) -> bool:
        """Return on every rank whether any rank says yes."""
        return float(self.sum(torch.tensor(float(yes)))) > 0

    def any_words(self, words: str) -> str:
        """Return on every rank the first `words` that are not empty, in the order of the ranks."""
        mine = words.encode()[:WORDS_BYTES_MAX].ljust(WORDS_BYTES_MAX, b"\0")
        said = [torch.empty(WORDS_BYTES_MAX, dtype=torch.uint8) for _ in range(self.count)]
        told = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        dist.all_gather(said, told, group=self.control)
        texts = (each.numpy().tobytes().rstrip(b"\0") for each in said)
        return next((text.decode(errors="replace") for text in texts if text), "")

    def meet(self) -> None:
        """Wait until every rank has called this."""
        dist.barrier(group=self.control)


@contextmanager
def open_ranks(
    device: str, store_fd: int | None, generation: int | None = None, cuda: Cuda = torch.cuda
) -> Iterator[Ranks]:
    """Connect this process with the other ranks. The environment variables RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT say where they are.

    `store_fd` is the listening socket on which rank 0 serves torch's store for the rendezvous. The
    node binds it, so that no other program can take its port. Ranks that torchrun started use
    a part of torchrun's store named after their `generation`, because the store may still contain
    entries of earlier ranks. `cuda` describes the GPUs among which this rank looks for its own.

    After an exception inside the `with` block, the ranks are not disconnected, and the caller
    should end the process: NCCL ends a communicator only together with all ranks, and the other
    ranks are waiting for this rank in other calls.

    Raises MachineUnfit: this rank needs a GPU, but there is none that it can use.
    """
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    chosen = torch.device("cpu")
    if device == "cuda":
        chosen = own_gpu(cuda)
        torch.cuda.set_device(chosen)
        # cuDNN's attention, which torch prefers on H100 and H200, gives NaN in its bf16 backward
        # pass for some shapes (pytorch #196678; torch 2.11 to 2.13). So disable it; torch then
        # uses FlashAttention, which is nearly as fast.
        torch.backends.cuda.enable_cudnn_sdp(False)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=_store(rank, count, store_fd, generation),
        rank=rank,
        world_size=count,
        timeout=TIMEOUT,
    )
    mesh = init_device_mesh(device, (count,))
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    yield Ranks(rank, count, mesh, chosen, control)
    dist.destroy_process_group()


def _store(rank: int, count: int, store_fd: int | None, generation: int | None) -> Store:
    if count == 1:
        return HashStore()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0 and store_fd is not None:
        return TCPStore(address, port, count, True, TIMEOUT, master_listen_fd=store_fd)
    # torchrun may serve the store itself, and then sets this variable.
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(address, port, count, serves, TIMEOUT)
    return store if generation is None else PrefixStore(f"p2ptrain/{generation}", store)
