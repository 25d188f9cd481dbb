"""Copy this rank's share of the parameters to and from the node's flat vectors in shared memory.

The arena is this shared memory: the fp32 vectors θ and `local` (the trained weights), in the run's
canonical layout. FSDP2 gives each of W ranks ⌈rows / W⌉ consecutive rows of a parameter, in order
of rank, and rows of a row-major matrix are contiguous. So a rank's share of a parameter is one
slice of the flat vector, and the shares of all ranks together are the vector, for any W. Each copy
is one call over all slices.

The node changes θ only between two frames to the trainer, and reads `local` only after
FragmentReady.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from p2ptrain.errors import ConfigError
from p2ptrain.state.layout import Layout, LayoutEntry
from p2ptrain.sync.fragments import fragment_at, fragments
from p2ptrain.trainer.rank.deviation import Deviation, Pull

_FLOAT_BYTES = 4


def map_vector(fd: int, numel: int) -> Tensor:
    """Return the fp32 vector in the shared memory behind `fd`, as a tensor over the same memory.

    Raises ConfigError: the memory holds fewer than `numel` elements.
    """
    size, needed = os.fstat(fd).st_size, numel * _FLOAT_BYTES
    if size < needed:
        raise ConfigError(
            f"the arena holds {size} bytes; the model's layout needs {needed}",
            do="start the trainer with the model that the run's manifest describes",
        )
    # The tensor keeps the mapping alive; the mapping keeps the memory, even after `fd` is closed.
    return torch.frombuffer(mmap.mmap(fd, needed), dtype=torch.float32, count=numel)


class ArenaMirror(Protocol):
    """Copies slices between the node's vectors and this process's copies of them. Used if there is
    no shared memory."""

    def fetch(self, places: Sequence[slice]) -> None: ...

    def push(self, places: Sequence[slice]) -> None: ...


@dataclass(slots=True)
class FragmentShard:
    """This rank's share of one fragment (a part of the model that is averaged separately). `own`
    are the model's tensors, detached from autograd; `theta` and `local` are slices of the arena.
    `anchor` is θ as it was last read; a rebase moves the parameters by the difference between the
    new θ and `anchor`. With `sync.eager`, training starts from `anchor` plus the deviation in
    `beside`, and the trainer offers only its change from there.

    A share can be empty: if an embedding is a fragment of its own, the last of many ranks have none
    of its rows. Then the methods do nothing, since torch raises an error for a copy of no tensors.
    """

    own: list[Tensor] = field(default_factory=list)
    theta: list[Tensor] = field(default_factory=list)
    local: list[Tensor] = field(default_factory=list)
    anchor: list[Tensor] = field(default_factory=list)
    beside: Deviation = field(default_factory=Deviation)
    places: list[slice] = field(default_factory=list)
    mirror: ArenaMirror | None = None

    def fetch(self) -> None:
        """If there is no shared memory, copy the node's current θ to this process."""
        if self.mirror is not None and self.places:
            self.mirror.fetch(self.places)

    def show(self) -> None:
        """Set the parameters to θ, and leave `anchor` as it is."""
        self.fetch()
        _copy(self.own, self.theta)

    def merge(self, mixing: float) -> None:
        self.fetch()
        _copy(self.anchor, self.theta)
        if mixing == 0:
            _copy(self.own, self.anchor)
        elif self.own:
            torch._foreach_lerp_(self.own, self.anchor, 1 - mixing)

    def rebase(self) -> None:
        if self.own:
            self.fetch()
            torch._foreach_sub_(self.own, self.anchor)
            torch._foreach_copy_(self.anchor, self.theta)
            torch._foreach_add_(self.own, self.anchor)

    def store(self) -> None:
        _copy(self.local, self.own)
        if self.beside.deviation:
            torch._foreach_copy_(self.local, torch._foreach_sub(self.own, self.beside.deviation))
        if self.mirror is not None and self.places:
            self.mirror.push(self.places)

    def deviate(self, pull: Pull, steps: int) -> None:
        if self.beside.deviation:
            work = torch._foreach_add(self.anchor, self.beside.deviation)
            torch._foreach_sub_(work, self.own)
            self.beside.step(list(work), pull, steps)

    def set_aside(self) -> None:
        _copy(self.own, self.anchor)
        if self.beside.deviation:
            torch._foreach_add_(self.own, self.beside.deviation)

    def take_back(self) -> None:
        if self.own:
            torch._foreach_sub_(self.own, self.anchor)
        for own, kept in zip(self.own, self.local, strict=True):
            own.add_(kept.to(own.device))  # `to` copies only to another device.


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)


class RankArena:
    """Moves this rank's parameters between the model and the arena.

    The model is cut into `count` fragments, and successive outer steps synchronise them in turn. A
    fragment consists of whole parameters, so each rank has a share of every fragment.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        theta: Tensor,
        local: Tensor,
        *,
        count: int = 1,
        eager: bool = False,
        mirror: ArenaMirror | None = None,
    ) -> None:
        parameters = dict(model.named_parameters())
        cut = fragments(layout, count)
        self._fragments = [FragmentShard(mirror=mirror) for _ in cut]
        self._deviated_step: int | None = None
        for entry in layout.entries:
            shard, offset = own_share(parameters[entry.name], entry)
            if shard.numel():
                share = self._fragments[fragment_at(cut, entry.offset)]
                place = slice(offset, offset + shard.numel())
                share.places.append(place)
                share.own.append(shard)
                share.theta.append(theta[place].view(shard.shape))
                share.local.append(local[place].view(shard.shape))
                share.anchor.append(torch.zeros_like(shard))
                if eager:
                    share.beside.follow(shard)

    def load(self) -> None:
        """Set all parameters to θ."""
        for share in self._fragments:
            share.merge(0.0)
            share.beside.forget()

    def merge(self, ready_step: int, step: int, mixing: float) -> None:
        """Adopt θ of `step`, which contains the work that was stored at `ready_step`.

        The parameters in the fragment of `ready_step` become `mixing` times their old values plus
        (1 − `mixing`) times θ. The fragments of the outer steps between `ready_step` and `step` are
        rebased.
        """
        self._of(ready_step).merge(mixing)
        self.rebase(ready_step + 1, step)

    def rebase(self, since_step: int, step: int) -> None:
        """Add to the parameters the change of θ from `since_step` to `step`, so that local work is
        kept."""
        count = len(self._fragments)
        for moved in range(max(since_step, step - count), step):
            self._of(moved).rebase()

    def store(self, step: int) -> None:
        """Write this rank's share of the parameters of the fragment of `step` to `local`."""
        self._of(step).store()

    def deviate(self, step: int, pull: Pull) -> None:
        """Update the deviation (only with `sync.eager`) with the work just stored at `step`."""
        before = step - 1 if self._deviated_step is None else self._deviated_step
        for share in self._fragments:
            share.deviate(pull, step - before)
        self._deviated_step = step

    def set_aside(self) -> None:
        """Reset the parameters to θ, plus the deviation with `sync.eager`. Afterwards the work that
        was stored exists only in `local`."""
        for share in self._fragments:
            share.set_aside()

    def take_back(self) -> None:
        """Undo `set_aside`: add the work in `local` to the parameters, which keep newer work."""
        for share in self._fragments:
            share.take_back()

    def _of(self, step: int) -> FragmentShard:
        return self._fragments[step % len(self._fragments)]

    @contextmanager
    def outer_parameters(self) -> Iterator[None]:
        """Set the parameters to the arena's θ inside the `with` block; restore them afterwards."""
        own = [shard for share in self._fragments for shard in share.own]
        kept = [shard.clone() for shard in own]
        for share in self._fragments:
            share.show()
        try:
            yield
        finally:
            _copy(own, kept)


def own_share(parameter: Tensor, entry: LayoutEntry) -> tuple[Tensor, int]:
    """Return this rank's rows of `parameter`, and the offset of their first element in the flat
    vector."""
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
