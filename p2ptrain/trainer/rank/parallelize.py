"""Spreads a model over a peer's ranks, from outside: the model does not know.

Always FSDP2, also with one rank, so that there is one path to test and shards, checkpoints and the
arena behave the same everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.model import Llama
from p2ptrain.trainer.rank.ranks import Ranks


def build(config: TrainerConfig, ranks: Ranks) -> Llama:
    """The model, sharded over `ranks`, its parameters in fp32 and unset until θ is loaded.

    It is made on the meta device, so no rank ever holds more than its share.  `bf16` computes in
    bfloat16 and reduces gradients in fp32; the parameters that are trained stay fp32.

    What is done to a block is done in this order: first that its activations are recomputed, so
    that compilation sees it; last the sharding, whose gathering must not be done twice.
    """
    with torch.device("meta"):
        model = Llama(config.model, config.document_token)
    policy = MixedPrecisionPolicy()
    if config.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        if config.recompute:
            recompute(block)
        if config.compile:
            block.compile()
        fully_shard(block, mesh=ranks.mesh, mp_policy=policy, reshard_after_forward=ranks.count > 1)
    fully_shard(model, mesh=ranks.mesh, mp_policy=policy)
    model.to_empty(device=ranks.device)
    return model


def recompute(block: nn.Module) -> None:
    """Keep of this block's activations its input alone, and compute the others again when the
    backward pass needs them: a third more arithmetic for memory that no longer grows with depth.

    A function of Python's own, no `partial`: the compiler begins with a frame, and a partial's
    first is that of torch's checkpoint, which it leaves alone with all that is called from there.
    """
    forward = block.forward

    def recomputed(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    block.forward = recomputed


def forget_gathered(model: nn.Module) -> None:
    """Drop the gathered copies that a forward pass without a backward pass leaves behind.

    FSDP keeps them for the backward pass; without one, the next forward pass would compute with
    them whatever has been loaded into the shards since.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
