"""The estimate of a trainer's memory, compared with what torch really keeps."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
import torch
from torch.distributed.tensor import DTensor

from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, Precision, TrainerConfig
from p2ptrain.trainer.formats.shapes import parameter_count
from p2ptrain.trainer.host.cost import (
    EAGER_VECTORS,
    block_activations,
    end_activations,
    trainer_memory,
)
from p2ptrain.trainer.rank.deviation import Deviation
from p2ptrain.trainer.rank.model import Llama, token_losses
from p2ptrain.trainer.rank.parallelize import build
from p2ptrain.trainer.rank.ranks import Ranks

SPEC = ModelSpec(vocab=512, layers=2, width=128, heads=4, kv_heads=4, ffn=344, sequence=256)
INNER = InnerSpec(steps=2, batch_sequences=2, lr=1e-3, warmup_steps=0, total_steps=4)


def kept_bytes(spec: ModelSpec) -> int:
    """Return the bytes that autograd keeps from one forward pass of one sequence, without weights
    and tables."""
    model = Llama(spec)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.zeros((1, spec.sequence + 1), dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _, objective = token_losses(model(tokens[:, :-1]), tokens[:, 1:], 0.0)
    objective.backward()
    return sum(seen.values())


@pytest.mark.parametrize(
    "spec", [SPEC, replace(SPEC, layers=6), replace(SPEC, kv_heads=2), replace(SPEC, ffn=1024)]
)
def test_estimate_of_activations_is_close_to_what_torch_keeps(spec: ModelSpec) -> None:
    """One block is measured as the difference between two models, one of which has one block more.
    So the layers before and after the blocks do not count."""
    deeper = replace(spec, layers=spec.layers + 1)
    block = (kept_bytes(deeper) - kept_bytes(spec)) / spec.sequence
    assert block == pytest.approx(block_activations(spec, 4), rel=0.15)
    ends = kept_bytes(spec) / spec.sequence - spec.layers * block
    assert 0.2 * end_activations(spec, 4) < ends < end_activations(spec, 4)


def test_exactly_counted_parts_add_up() -> None:
    count = parameter_count(SPEC)
    memory = trainer_memory(SPEC, INNER, "bf16", eager=False)
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * count, 4 * count, 8 * count)
    assert memory.activations_recomputed < memory.activations
    assert (memory.anchor, memory.eager) == (4 * count, 0)
    assert memory.gathered == 2 * count
    assert memory.least == 22 * count + memory.activations_recomputed
    inside = 2 * (4 * 128 * 128 + 3 * 128 * 344)
    muon = trainer_memory(SPEC, replace(INNER, optimizer="muon"), "bf16", eager=False)
    assert memory.optimizer - muon.optimizer == 4 * inside


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_single_rank_holds_a_copy_of_all_weights_until_backward(
    precision: Precision, config: TrainerConfig, ranks: Ranks
) -> None:
    model = build(replace(config, precision=precision), ranks)
    tokens = torch.zeros((1, config.model.sequence), dtype=torch.int64, device=ranks.device)
    logits = model(tokens)
    gathered = [each for each in model.parameters() if not isinstance(each, DTensor)]
    memory = trainer_memory(config.model, config.inner, precision, eager=False)
    assert sum(each.nbytes for each in gathered) == memory.gathered
    logits.sum().backward()
    assert all(isinstance(each, DTensor) for each in model.parameters())


def test_eager_trainer_has_as_many_vectors_as_are_counted() -> None:
    beside, shard = Deviation(), torch.zeros(7)
    beside.follow(shard)
    lists = [each for each in astuple(beside) if isinstance(each, list)]
    kept = sum(each.nbytes for vectors in lists for each in vectors)
    assert kept == EAGER_VECTORS * shard.nbytes
    count = parameter_count(SPEC)
    plain, eager = (trainer_memory(SPEC, INNER, "fp32", eager=each) for each in (False, True))
    assert eager == replace(plain, eager=3 * 4 * count)
    assert eager.vectors == plain.vectors + 12 * count
