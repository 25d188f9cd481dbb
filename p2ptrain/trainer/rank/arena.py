"""Copy this rank's share of the parameters to and from the node's flat vectors in shared memory.

θ and `local` are fp32 vectors that the node owns, in the run's canonical layout. FSDP2 gives each
of W ranks ⌈rows / W⌉ consecutive rows, in order of rank, and rows of a row-major matrix are
contiguous. So a rank's share of a parameter is one slice of the flat vector, and the ranks together
fill the vector for any W. Each copy is one call over all slices.

The node writes θ only between frames that it sends, and reads `local` only after FragmentReady.
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

    Raises:
        ConfigError: the memory holds fewer than `numel` elements.
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
    """Copies slices of the vectors from and to the node, if there is no shared memory."""

    def fetch(self, places: Sequence[slice]) -> None: ...

    def push(self, places: Sequence[slice]) -> None: ...


@dataclass(slots=True)
class FragmentShard:
    """This rank's share of one fragment. `own` are the tensors in the model, `theta` and `local`
    are slices of the arena. `anchor` is θ as it was last read; a Rebase moves the parameters by the
    difference between the new θ and `anchor`. An eager trainer starts from `anchor` plus the
    deviation in `beside`, and offers the change that it made from there.

    A share can be empty: if an embedding is a fragment of its own, the last of many ranks have none
    of its rows. torch raises an error for a copy of zero tensors.
    """

    own: list[Tensor] = field(default_factory=list)
    theta: list[Tensor] = field(default_factory=list)
    local: list[Tensor] = field(default_factory=list)
    anchor: list[Tensor] = field(default_factory=list)
    beside: Deviation = field(default_factory=Deviation)
    places: list[slice] = field(default_factory=list)
    mirror: ArenaMirror | None = None

    def fetch(self) -> None:
        """Copy the node's current θ to this process, if there is no shared memory."""
        if self.mirror is not None and self.places:
            self.mirror.fetch(self.places)

    @torch.no_grad()
    def show(self) -> None:
        """Set the parameters to θ, and leave `anchor` as it is."""
        if not self.own:
            return
        self.fetch()
        torch._foreach_copy_(self.own, self.theta)

    @torch.no_grad()
    def merge(self, mixing: float) -> None:
        if not self.own:
            return
        self.fetch()
        torch._foreach_copy_(self.anchor, self.theta)
        if mixing == 0:
            torch._foreach_copy_(self.own, self.anchor)
        else:
            torch._foreach_lerp_(self.own, self.anchor, 1 - mixing)

    @torch.no_grad()
    def rebase(self) -> None:
        if not self.own:
            return
        self.fetch()
        torch._foreach_sub_(self.own, self.anchor)
        torch._foreach_copy_(self.anchor, self.theta)
        torch._foreach_add_(self.own, self.anchor)

    @torch.no_grad()
    def store(self) -> None:
        if self.own:
            torch._foreach_copy_(self.local, self.own)
        if self.beside.deviation:
            torch._foreach_copy_(self.local, torch._foreach_sub(self.own, self.beside.deviation))
        if self.mirror is not None and self.places:
            self.mirror.push(self.places)

    @torch.no_grad()
    def deviate(self, pull: Pull, steps: int) -> None:
        if self.beside.deviation:
            work = torch._foreach_add(self.anchor, self.beside.deviation)
            torch._foreach_sub_(work, self.own)
            self.beside.step(list(work), pull, steps)

    @torch.no_grad()
    def set_aside(self) -> None:
        if self.own:
            torch._foreach_copy_(self.own, self.anchor)
        if self.beside.deviation:
            torch._foreach_add_(self.own, self.beside.deviation)

    @torch.no_grad()
    def take_back(self) -> None:
        if self.own:
            torch._foreach_sub_(self.own, self.anchor)
        for own, kept in zip(self.own, self.local, strict=True):
            own.add_(kept.to(own.device))  # `to` copies only to another device.


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

        The parameters of that fragment become θ, except for a share `mixing` of their old values.
        The parameters of fragments that outer steps have changed since then are rebased.
        """
        self._of(ready_step).merge(mixing)
        self.rebase(ready_step + 1, step)

    def rebase(self, since_step: int, step: int) -> None:
        """Move the parameters by as much as θ moved from `since_step` to `step`, so that local work
        is kept."""
        count = len(self._fragments)
        for moved in range(max(since_step, step - count), step):
            self._of(moved).rebase()

    def store(self, step: int) -> None:
        """Write this rank's share of the parameters of the fragment of `step` to `local`."""
        self._of(step).store()

    def deviate(self, step: int, pull: Pull) -> None:
        """Update the deviation of an eager trainer with the work just stored at `step`."""
        before = step - 1 if self._deviated_step is None else self._deviated_step
        for share in self._fragments:
            share.deviate(pull, step - before)
        self._deviated_step = step

    def set_aside(self) -> None:
        """Reset the parameters to θ, or for an eager trainer to θ plus its deviation. The stored
        work then exists only in `local`.
        """
        for share in self._fragments:
            share.set_aside()

    def take_back(self) -> None:
        """Add the work that was set aside to the work done since then."""
        for share in self._fragments:
            share.take_back()

    def _of(self, step: int) -> FragmentShard:
        return self._fragments[step % len(self._fragments)]

    @contextmanager
    def outer_parameters(self) -> Iterator[None]:
        """Set the parameters to the arena's θ inside the `with` block; restore them afterwards."""
        own = [shard for share in self._fragments for shard in share.own]
        with torch.no_grad():
            kept = [shard.clone() for shard in own]
            for share in self._fragments:
                share.show()
        try:
            yield
        finally:
            with torch.no_grad():
                if own:
                    torch._foreach_copy_(own, kept)


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
