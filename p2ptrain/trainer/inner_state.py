"""The inner optimizer's state on disk: a restarted trainer goes on as if it had never ended.

At each Load all ranks write what they keep for their rows into one file, in the run's canonical
layout like θ: 8 bytes a parameter, whatever the number of ranks, so the next start may have others.
With θ of the same outer step from the ledger, the same blocks then give the same losses to the bit.

    bytes    field
    4096     magic, length and canonical msgpack of the header: outer step, AdamW's count of steps,
             elements, digest of the layout, CRC-32 of the vectors; zeros
    4 · n    first vector: AdamW's mean of the gradients, or Muon's momentum
    4 · n    second vector: AdamW's mean of their squares; zeros for Muon

It is a peer's own and never trusted from others.  One file is kept, and two exist while the next
one is written.  It is not fsynced: a file that a crash cut short is known by its checksum and not
used, which costs the optimizer a warm-up, as for everybody who joins.  So does a full disk.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.state.layout import Layout
from p2ptrain.trainer.arena import own_share
from p2ptrain.trainer.model import Llama
from p2ptrain.trainer.optimizer import InnerOptimizer
from p2ptrain.trainer.ranks import Ranks

MAGIC = b"p2pinner"
HEADER_BYTES = 4096
_LENGTH = struct.Struct("<8sI")
_FLOAT_BYTES = 4
_PIECE_BYTES = 2**26
_VECTORS = {"exp_avg": 0, "momentum_buffer": 0, "exp_avg_sq": 1}
"""Which of a parameter's tensors is in which vector."""


@dataclass(frozen=True, slots=True)
class Header:
    step: int
    count: int
    numel: int
    layout: str
    crc: int


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

    def save(self, step: int) -> str:
        """Write the state as it is at the Load of `step`.  Returns why not, if it could not be."""
        count = self._count()
        if count == 0:
            return ""
        new, trouble = self._folder / "new", ""
        try:
            if self._ranks.first:
                self._reserve(new)
        except OSError as exc:
            trouble = f"the inner optimizer's state is not kept: {exc.strerror}"
        if self._ranks.agree(bool(trouble)):
            return trouble
        with new.open("r+b", buffering=0) as file:
            for share, offset in self._shares():
                _write(file.fileno(), share, offset)
        self._ranks.meet()
        if self._ranks.first:
            self._publish(new, step, count)
        return ""

    def restore(self, step: int) -> int | None:
        """Take up the state of `step`, or of an earlier one if that is all there is.

        Returns its step; None if there is nothing that can be used.
        """
        header = self._readable(step) if self._ranks.first else None
        told = self._ranks.tell([-1, 0] if header is None else [header.step, header.count])
        if told[0] < 0:
            return None
        for parameter in self._model.parameters():
            self._prepare(parameter, told[1])
        with self._path(told[0]).open("rb", buffering=0) as file:
            for share, offset in self._shares():
                _read(file.fileno(), share, offset)
        return told[0]

    def _path(self, step: int) -> Path:
        return self._folder / f"{step:012d}"

    def _count(self) -> int:
        """How many steps AdamW has made; every parameter takes part in every step."""
        return int(self._optimizer.state_of(self._model.embedding.weight).get("step", 0))

    def _reserve(self, path: Path) -> None:
        """Make the file with all its room, so that writing to it cannot fail for want of it."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + 2 * self._vector_bytes)

    @property
    def _vector_bytes(self) -> int:
        return self._layout.numel * _FLOAT_BYTES

    def _publish(self, new: Path, step: int, count: int) -> None:
        """Say in its header what the file holds, put it in its place, remove what was there."""
        with new.open("r+b", buffering=0) as file:
            numel, layout = self._layout.numel, str(self._layout.digest)
            header = Header(step, count, numel, layout, _crc(file.fileno()))
            body = pack(asdict(header))
            os.pwrite(file.fileno(), _LENGTH.pack(MAGIC, len(body)) + body, 0)
        older = list(self._steps())
        new.replace(self._path(step))
        for each in older:
            if each != step:
                self._path(each).unlink(missing_ok=True)

    def _steps(self) -> Iterator[int]:
        if self._folder.is_dir():
            yield from (int(each.name) for each in self._folder.iterdir() if each.name.isdecimal())

    def _readable(self, step: int) -> Header | None:
        for each in sorted((each for each in self._steps() if each <= step), reverse=True):
            try:
                header = self._header(self._path(each))
            except (OSError, RemoteProtocolError, struct.error):
                continue
            if (header.step, header.layout) == (each, self._layout.digest):
                return header
        return None

    def _header(self, path: Path) -> Header:
        """Raises OSError, RemoteProtocolError, struct.error: this is no whole file of a state."""
        with path.open("rb", buffering=0) as file:
            head = file.read(HEADER_BYTES)
            magic, length = _LENGTH.unpack_from(head)
            body = unpack(head[_LENGTH.size : _LENGTH.size + length], bytes_max=HEADER_BYTES)
            told = fields(body, step=int, count=int, numel=int, layout=str, crc=int)
            header = Header(**told)  # type: ignore[arg-type]
            size = HEADER_BYTES + 2 * self._vector_bytes
            whole = magic == MAGIC and header.count > 0 and path.stat().st_size == size
            if not whole or _crc(file.fileno()) != header.crc:
                raise RemoteProtocolError("it was cut short or altered")
        return header

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
                    start = HEADER_BYTES + _VECTORS[name] * self._vector_bytes
                    yield share, start + offset * _FLOAT_BYTES


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _write(fd: int, share: Tensor, offset: int) -> None:
    array: NDArray[np.uint8] = share.cpu().contiguous().numpy().reshape(-1).view(np.uint8)
    data = array.data
    while data:
        written = os.pwrite(fd, data[:_PIECE_BYTES], offset)
        data, offset = data[written:], offset + written


def _read(fd: int, share: Tensor, offset: int) -> None:
    """Raises OSError: the file ends too soon, though it was whole a moment ago."""
    data = np.empty(share.numel(), dtype="<f4")
    view = data.view(np.uint8).data
    while view:
        got = os.preadv(fd, [view[:_PIECE_BYTES]], offset)
        if got == 0:
            raise OSError("the inner optimizer's state was cut short while it was read")
        view, offset = view[got:], offset + got
    share.copy_(torch.from_numpy(data).view(share.shape))


def _crc(fd: int) -> int:
    """Of all that follows the header."""
    crc, offset = 0, HEADER_BYTES
    while piece := os.pread(fd, _PIECE_BYTES, offset):
        crc, offset = zlib.crc32(piece, crc), offset + len(piece)
    return crc
