"""Write files in the safetensors format from their first byte to their last, a piece at a time.

    8 bytes    length of the header, little-endian
    header     JSON: for each name its dtype, shape and [begin, end) in the data; then spaces
    data       the tensors, row-major, without gaps

The safetensors library needs all tensors of a file in memory, and an exported model may be larger
than the memory. The header depends only on the model's sizes, so it can be written before the data.
Tests read the files with the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

import numpy as np

from p2ptrain.state import Float32Vector

Dtype = Literal["fp32", "bf16"]
BYTES: Mapping[Dtype, int] = {"fp32": 4, "bf16": 2}
TORCH_NAMES: Mapping[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16"}
_CODES: Mapping[Dtype, str] = {"fp32": "F32", "bf16": "BF16"}
_HEADER_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file: its name in the file, and the name of the parameter in our layout."""

    name: str
    parameter: str
    shape: tuple[int, ...]
    numel: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One file, with its tensors in order."""

    file: str
    tensors: tuple[Tensor, ...]

    def data_bytes(self, dtype: Dtype) -> int:
        return sum(tensor.numel for tensor in self.tensors) * BYTES[dtype]


def sharded(tensors: Sequence[Tensor], dtype: Dtype, bytes_max: int) -> tuple[Shard, ...]:
    """Distribute `tensors`, in their order, over files of at most `bytes_max` bytes of data.

    A tensor is never split: a tensor larger than `bytes_max` gets a file of its own.
    """
    groups: list[list[Tensor]] = [[]]
    held_bytes = 0
    for tensor in tensors:
        size = tensor.numel * BYTES[dtype]
        if groups[-1] and held_bytes + size > bytes_max:
            groups.append([])
            held_bytes = 0
        groups[-1].append(tensor)
        held_bytes += size
    if len(groups) == 1:
        return (Shard("model.safetensors", tuple(groups[0])),)
    return tuple(
        Shard(f"model-{number:05}-of-{len(groups):05}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    )


def index_of(shards: Sequence[Shard], dtype: Dtype) -> dict[str, object]:
    """Return model.safetensors.index.json, which maps each tensor to its file."""
    return {
        "metadata": {"total_size": sum(shard.data_bytes(dtype) for shard in shards)},
        "weight_map": {tensor.name: each.file for each in shards for tensor in each.tensors},
    }


def header(shard: Shard, dtype: Dtype, metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of the file before the data. transformers needs the "format" entry."""
    table: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    begin = 0
    for tensor in shard.tensors:
        end = begin + tensor.numel * BYTES[dtype]
        shape = list(tensor.shape)
        table[tensor.name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGN)
    return len(text).to_bytes(8, "little") + text


def write_pieces(file: BinaryIO, pieces: Iterable[Float32Vector], dtype: Dtype) -> None:
    """Convert the pieces to `dtype` and append them to `file`, little-endian."""
    for piece in pieces:
        values = piece if dtype == "fp32" else bf16(piece)
        file.write(values.astype(values.dtype.newbyteorder("<"), copy=False).data)


def bf16(values: Float32Vector) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Round each value to the nearest bf16, ties to even, and return its 16 bits. NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> 16
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
