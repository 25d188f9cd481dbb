"""This rank's share of the parameters, against the node's flat vectors in shared memory.

θ and `local` are fp32 vectors that the node owns, in the run's canonical layout.  FSDP2 gives rank
r of W the rows from r · ⌈rows / W⌉ on, and rows of a row-major matrix are contiguous: so a rank's
share of a parameter is one slice of the flat vector, and the ranks together fill it whatever W is.
All copies are one call over all slices.

The node writes θ only between frames that it sends, and reads `local` only after FragmentReady.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from p2ptrain.errors import ConfigError
from p2ptrain.state.layout import Layout, LayoutEntry

_FLOAT_BYTES = 4


def map_vector(fd: int, numel: int) -> Tensor:
    """The fp32 vector in the shared memory behind `fd`, as a tensor over the same memory.

    Raises:
        ConfigError: the memory is smaller than that.
    """
    size, needed = os.fstat(fd).st_size, numel * _FLOAT_BYTES
    if size < needed:
        raise ConfigError(
            f"the arena holds {size} bytes; the model's layout needs {needed}",
            do="start the trainer with the model that the run's manifest describes",
        )
    # The tensor keeps the mapping alive; the mapping keeps the memory, even with `fd` closed.
    return torch.frombuffer(mmap.mmap(fd, needed), dtype=torch.float32, count=numel)


class Arena:
    """Moves this rank's parameters between the model and the arena.

    `anchor` is θ as it was last loaded: what the local work is measured against, and what a Rebase
    subtracts.
    """

    def __init__(self, model: nn.Module, layout: Layout, theta: Tensor, local: Tensor) -> None:
        parameters = dict(model.named_parameters())
        self._own: list[Tensor] = []
        self._theta: list[Tensor] = []
        self._local: list[Tensor] = []
        for entry in layout.entries:
            shard, offset = own_share(parameters[entry.name], entry)
            if shard.numel():
                self._own.append(shard)
                self._theta.append(theta[offset : offset + shard.numel()].view(shard.shape))
                self._local.append(local[offset : offset + shard.numel()].view(shard.shape))
        self._anchor = [torch.zeros_like(shard) for shard in self._own]

    @torch.no_grad()
    def load(self) -> None:
        """Parameters become θ."""
        torch._foreach_copy_(self._anchor, self._theta)
        torch._foreach_copy_(self._own, self._anchor)

    @torch.no_grad()
    def rebase(self) -> None:
        """Parameters move by as much as θ did since it was last loaded: local work is kept."""
        torch._foreach_sub_(self._own, self._anchor)
        torch._foreach_copy_(self._anchor, self._theta)
        torch._foreach_add_(self._own, self._anchor)

    @torch.no_grad()
    def store(self) -> None:
        """`local` becomes the parameters, in this rank's share."""
        torch._foreach_copy_(self._local, self._own)

    @contextmanager
    def outer_parameters(self) -> Iterator[None]:
        """Inside, the parameters are θ as it lies in the arena; afterwards what they were."""
        with torch.no_grad():
            kept = [shard.clone() for shard in self._own]
            torch._foreach_copy_(self._own, self._theta)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._own, kept)


def own_share(parameter: Tensor, entry: LayoutEntry) -> tuple[Tensor, int]:
    """This rank's rows of `parameter`, and where their first element lies in the flat vector."""
    assert tuple(parameter.shape) == entry.shape, f"{entry.name} has shape {parameter.shape}"
    assert isinstance(parameter, DTensor), f"{entry.name} is not sharded"
    assert parameter.placements == (Shard(0),), f"{entry.name} is placed {parameter.placements}"
    ranks, rank = parameter.device_mesh.size(), parameter.device_mesh.get_local_rank()
    rows_each = -(-entry.shape[0] // ranks)
    first_row = min(rank * rows_each, entry.shape[0])
    shard = parameter.to_local().detach()
    rows = min(rows_each, entry.shape[0] - first_row)
    assert shard.numel() == rows * (entry.numel // entry.shape[0]), f"{entry.name}: uneven shard"
    return shard, entry.offset + first_row * (entry.numel // entry.shape[0])
