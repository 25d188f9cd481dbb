"""The inner optimizer's state on disk: a restarted trainer goes on as if it had never ended.

At each Load, and once all fragments have been merged, all ranks write what they keep for their rows
into one file (see `inner_format`), so the next start may have another number of ranks.  With θ of
the same outer step from the ledger, the same blocks then give the same losses to the bit.  They do
not where local weights are more than θ: with fragments, and where means come late; nor on a GPU
whose fused attention adds up gradients in another order each time.

It is a peer's own; the node may have put another's there that it has checked.  One file is kept,
and two exist while the next one is written.  It is not fsynced: a file that a crash cut short is
known by its checksum and not used, which costs the optimizer a warm-up, as for everybody who joins.
So does a full disk.
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
"""Which of a parameter's tensors is in which vector."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Of which outer step the state is, and how many inner steps after it began knowing nothing."""

    step: int
    warmed: int


class InnerState:
    """The file in `folder` of one trainer's optimizer.  All ranks call the same, in step."""

    def __init__(
        self, folder: Path, model: Llama, optimizer: InnerOptimizer, layout: Layout, ranks: Ranks
    ) -> None:
        self._folder = folder
        self._model = model
        self._optimizer = optimizer
        self._layout = layout
        self._ranks = ranks

    def save(self, step: int, warmed: int = WARM) -> str:
        """Write the state as it is at the Load of `step`, `warmed` inner steps after it began
        knowing nothing.  Returns why not, if it could not be.
        """
        count = self._count()
        if count == 0:
            return ""
        new, trouble = self._folder / "new", ""
        try:
            if self._ranks.first:
                inner_format.reserve(new, self._layout)
        except OSError as exc:
            trouble = f"the inner optimizer's state is not kept: {exc.strerror}"
        if self._ranks.agree(bool(trouble)):
            return trouble
        with new.open("r+b", buffering=0) as file:
            for share, offset in self._shares():
                _write(file.fileno(), share, offset)
        self._ranks.meet()
        if self._ranks.first:
            with new.open("r+b", buffering=0) as file:
                inner_format.write_header(file.fileno(), self._layout, step, count, warmed)
            inner_format.publish(new, self._folder, step)
        return ""

    def restore(self, step: int) -> Restored | None:
        """Take up the state of `step`, or of an earlier one if that is all there is; None if there
        is nothing that can be used.
        """
        header = None
        if self._ranks.first:
            header = inner_format.newest(self._folder, self._layout, step)
        known = [-1, 0, 0] if header is None else [header.step, header.count, header.warmed]
        found, count, warmed = self._ranks.tell(known)
        if found < 0:
            return None
        for parameter in self._model.parameters():
            self._prepare(parameter, count)
        with inner_format.path_of(self._folder, found).open("rb", buffering=0) as file:
            for share, offset in self._shares():
                _read(file.fileno(), share, offset)
        return Restored(found, warmed)

    def _count(self) -> int:
        """How many steps AdamW has made; every parameter takes part in every step."""
        return int(self._optimizer.state_of(self._model.embedding.weight).get("step", 0))

    def _prepare(self, parameter: Tensor, count: int) -> None:
        """Make the tensors that the first step would have made."""
        state = self._optimizer.state_of(parameter)
        if self._optimizer.has_muon(parameter):
            state["momentum_buffer"] = torch.zeros_like(parameter)
            return
        state["step"] = torch.tensor(float(count), device=_local(parameter).device)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)

    def _shares(self) -> Iterator[tuple[Tensor, int]]:
        """This rank's part of every tensor that is kept, and where in the file it lies."""
        parameters = dict(self._model.named_parameters())
        for entry in self._layout.entries:
            state = self._optimizer.state_of(parameters[entry.name])
            for name, tensor in state.items():
                if name in _VECTORS:
                    share, offset = own_share(tensor, entry)
                    start = HEADER_BYTES + _VECTORS[name] * inner_format.vector_bytes(self._layout)
                    yield share, start + offset * FLOAT_BYTES


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _write(fd: int, share: Tensor, offset: int) -> None:
    array: NDArray[np.uint8] = share.cpu().contiguous().numpy().reshape(-1).view(np.uint8)
    inner_format.write_all(fd, array.data, offset)


def _read(fd: int, share: Tensor, offset: int) -> None:
    """Raises OSError: the file ends too soon, though it was whole a moment ago."""
    data = np.empty(share.numel(), dtype="<f4")
    view = data.view(np.uint8).data
    while view:
        got = os.preadv(fd, [view[:PIECE_BYTES]], offset)
        if got == 0:
            raise OSError("the inner optimizer's state was cut short while it was read")
        view, offset = view[got:], offset + got
    share.copy_(torch.from_numpy(data).view(share.shape))
