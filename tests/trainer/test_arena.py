"""Each rank has a share of each fragment. The share can be empty."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.state.layout import LayoutEntry
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.rank.arena import RankArena

RANKS = 32
MODEL = ModelSpec(
    vocab=257, layers=2, width=64, heads=2, kv_heads=2, ffn=64, sequence=4, tied=False
)
LAYOUT = layout_of(MODEL)


class LastRank(DeviceMesh):
    """The last of many ranks. The other ranks have no processes."""

    def __init__(self) -> None:
        super().__init__("cpu", torch.arange(RANKS), _init_backend=False, _rank=RANKS - 1)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        return RANKS - 1


def of_the_last_rank(entry: LayoutEntry, mesh: DeviceMesh) -> DTensor:
    """Return the rank's rows of a parameter, as FSDP2 divides them."""
    rows_each = -(-entry.shape[0] // RANKS)
    rows = max(0, entry.shape[0] - (RANKS - 1) * rows_each)
    whole = torch.empty(entry.shape, device="meta")
    local = torch.zeros((rows, *entry.shape[1:]))
    return DTensor.from_local(
        local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


def test_rank_without_embedding_rows_still_reads_its_other_rows() -> None:
    mesh = LastRank()
    sharded = {entry.name: of_the_last_rank(entry, mesh) for entry in LAYOUT.entries}
    own = {name: each.to_local() for name, each in sharded.items()}
    assert own["embedding.weight"].numel() == 0
    model = SimpleNamespace(named_parameters=sharded.items)
    theta = torch.arange(1, LAYOUT.numel + 1, dtype=torch.float32)
    arena = RankArena(model, LAYOUT, theta, torch.zeros_like(theta), count=4)  # type: ignore[arg-type]
    with arena.outer_parameters():
        for entry in LAYOUT.entries:
            last = theta[entry.offset : entry.end].view(entry.shape)
            rows = len(own[entry.name])
            assert torch.equal(own[entry.name], last[len(last) - rows :])
    assert not any(each.any() for each in own.values())
