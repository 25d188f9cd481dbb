"""The inner optimizer's state on disk, which lets a restarted trainer continue as before.

At each Load except the first, and each time all fragments have been merged, all ranks write their
rows' state into one file (see `inner_format`). So the next start can have a different number of
ranks. With θ of the same outer step, the same blocks then give bit-identical losses. There are two
exceptions: the local weights differ from θ (with fragments or delayed averages), or a GPU's fused
attention sums gradients in a varying order.

The state belongs to one peer. For a peer that has just joined, the node may put a state there that
it computed from other members' states. One file is kept, and two exist while the next one is
written. The file is not fsynced, because the checksum detects a file that a crash cut short. Such a
file is not used; then the optimizer warms up again, as after a join. The same happens if a full
disk prevents the writing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from p2ptrain.state.layout import Layout
from p2ptrain.trainer.formats import inner_format
from p2ptrain.trainer.formats.inner_format import FLOAT_BYTES, HEADER_BYTES, PIECE_BYTES, WARM
from p2ptrain.trainer.rank.arena import own_share
from p2ptrain.trainer.rank.model import Llama
from p2ptrain.trainer.rank.optimizer import InnerOptimizer
from p2ptrain.trainer.rank.ranks import Ranks

_VECTORS = {"exp_avg": 0, "momentum_buffer": 0, "exp_avg_sq": 1}
"""Number of the vector in the file that stores each tensor of the optimizer's state."""


@dataclass(frozen=True, slots=True)
class InnerState:
    """The state file of one trainer's optimizer. All ranks make the same calls in the same
    order."""

    folder: Path
    model: Llama
    optimizer: InnerOptimizer
    layout: Layout
    ranks: Ranks

    def save(self, step: int, warmed: int = WARM) -> str:
        """Write the state of outer step `step`. `warmed` is the number of inner steps since the
        optimizer last began with an empty state. Return "", or why the state could not be written.
        """
        count = self._count()
        if count == 0:
            return ""
        new, trouble = self.folder / "new", ""
        try:
            if self.ranks.first:
                inner_format.reserve(new, self.layout)
        except OSError as exc:
            trouble = f"the inner optimizer's state cannot be written: {exc.strerror}"
        if self.ranks.any_rank(bool(trouble)):
            return trouble
        with new.open("r+b", buffering=0) as file:
            for share, offset in self._shares():
                array: NDArray[np.uint8] = share.cpu().contiguous().numpy().view(np.uint8)
                inner_format.write_all(file.fileno(), array.reshape(-1).data, offset)
        self.ranks.meet()
        if self.ranks.first:
            with new.open("r+b", buffering=0) as file:
                inner_format.write_header(file.fileno(), self.layout, step, count, warmed)
            inner_format.publish(new, self.folder, step)
        return ""

    def restore(self, step: int) -> tuple[int, int] | None:
        """Load the state of `step`, or the newest of an earlier step. Return the outer step and the
        `warmed` (see `save`) of that state, or None if there is no usable state."""
        header = None
        if self.ranks.first:
            header = inner_format.newest(self.folder, self.layout, step)
        known = [-1, 0, 0] if header is None else [header.step, header.count, header.warmed]
        found, count, warmed = self.ranks.broadcast(known)
        if found < 0:
            return None
        for parameter in self.model.parameters():
            self._prepare(parameter, count)
        with inner_format.path_of(self.folder, found).open("rb", buffering=0) as file:
            for share, offset in self._shares():
                _read(file.fileno(), share, offset)
        return found, warmed

    def _count(self) -> int:
        """Return the number of steps that AdamW has made, which is the same for all parameters."""
        return int(self.optimizer.state_of(self.model.embedding.weight).get("step", 0))

    def _prepare(self, parameter: Tensor, count: int) -> None:
        """Create the tensors that the optimizer's first step would have created."""
        state = self.optimizer.state_of(parameter)
        if self.optimizer.has_muon(parameter):
            state["momentum_buffer"] = torch.zeros_like(parameter)
            return
        state["step"] = torch.tensor(float(count), device=_local(parameter).device)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)

    def _shares(self) -> Iterator[tuple[Tensor, int]]:
        """Yield this rank's part of every stored tensor, with its offset in the file in bytes."""
        parameters = dict(self.model.named_parameters())
        for entry in self.layout.entries:
            state = self.optimizer.state_of(parameters[entry.name])
            for name, tensor in state.items():
                if name in _VECTORS:
                    share, offset = own_share(tensor, entry)
                    start = HEADER_BYTES + _VECTORS[name] * inner_format.vector_bytes(self.layout)
                    yield share, start + offset * FLOAT_BYTES


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _read(fd: int, share: Tensor, offset: int) -> None:
    """Fill `share` from the file. Raises OSError: the file was cut short after its checksum was
    verified."""
    data = np.empty(share.numel(), dtype="<f4")
    view = data.view(np.uint8).data
    while view:
        got = os.preadv(fd, [view[:PIECE_BYTES]], offset)
        if got == 0:
            raise OSError("the inner optimizer's state was cut short while it was read")
        view, offset = view[got:], offset + got
    share.copy_(torch.from_numpy(data).view(share.shape))
