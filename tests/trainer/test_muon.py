"""Muon on shards equals torch's Muon, and applies only to matrices inside blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from p2ptrain.ipc.frames import FragmentReady, Load, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.bf16_emulation import multiplies_bf16
from p2ptrain.trainer.rank.muon import ShardedMuon, orthogonal
from p2ptrain.trainer.rank.ranks import Ranks
from tests.rounding import MARGIN, UNIT_BF16, distance
from tests.trainer.reference import full

if TYPE_CHECKING:
    from tests.trainer.conftest import MakeDriver


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (9, 9), (1, 5)])
def test_three_steps_match_torch_bit_for_bit_where_bf16_exists(
    shape: tuple[int, int], ranks: Ranks
) -> None:
    random = torch.manual_seed(1)
    start = torch.randn(shape, generator=random).to(ranks.device)
    sharded = nn.Parameter(distribute_tensor(start.clone(), ranks.mesh, (Shard(0),)))
    plain = nn.Parameter(start.clone())
    ours = ShardedMuon([sharded], lr=0.01, adjust_lr_fn="match_rms_adamw")
    torchs = torch.optim.Muon([plain], lr=0.01, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        plain.grad = torch.randn(shape, generator=random).to(ranks.device)
        sharded.grad = distribute_tensor(plain.grad, ranks.mesh, (Shard(0),))
        ours.step()
        torchs.step()
    if multiplies_bf16(ranks.device.type):
        assert torch.equal(full(sharded), plain)
    else:
        # Emulated bf16 products add in a different order, so a few in a hundred are rounded
        # differently.
        moved = distance(plain.detach(), start)
        apart = distance(full(sharded.detach()), plain.detach())
        assert apart < MARGIN * UNIT_BF16 * moved
    assert not torch.equal(plain, start)


@pytest.mark.parametrize("shape", [(20, 50), (50, 20)])
def test_direction_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    group = ShardedMuon([nn.Parameter(torch.zeros(shape))]).param_groups[0]
    found = orthogonal(torch.randn(shape, generator=torch.manual_seed(2)), group)
    values = torch.linalg.svdvals(found.float())
    assert values.shape == (20,)
    assert values.min() > 0.3
    assert values.max() < 1.6


def test_muon_applies_to_matrices_in_blocks_and_adamw_to_the_rest(
    make_driver: MakeDriver, config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    config = replace(config, inner=replace(config.inner, optimizer="muon"))
    driver = make_driver(config)
    ready = driver.send(Load(0), Train(0, block_paths, 0))[-1]
    assert isinstance(ready, FragmentReady)
    kept = {
        name: set(driver.optimizer.state_of(parameter))
        for name, parameter in driver.model.named_parameters()
    }
    assert kept.pop("embedding.weight") == {"step", "exp_avg", "exp_avg_sq"}
    assert kept.pop("blocks.0.attention.query.weight") == {"momentum_buffer"}
    inside = {name for name, keys in kept.items() if keys == {"momentum_buffer"}}
    assert {name for name in kept if "norm" not in name} == inside
    assert len(driver.send(Train(1, block_paths, 12))) == 13
