"""Distribute a model over a peer's ranks. The model's own code does not know about this.

FSDP2 is always used, even with one rank. So there is only one case to test, and the copying of
parameters to files and to the node works the same everywhere.
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
    """Return the model, sharded over `ranks`. Its parameters are fp32 and unset until θ is loaded.

    The model is built on the meta device, so that a rank never allocates more than its share. With
    precision "bf16", the model computes in bfloat16 and reduces gradients in fp32; the trained
    parameters stay fp32.

    The order of the calls for each block matters. `recompute` comes first, so that the compiler
    sees the recomputation. `fully_shard` comes last, because the recomputation must not repeat its
    all-gather.
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
    """Keep only the block's input, and compute its other activations again in the backward pass.
    This costs a third more arithmetic.

    The wrapper is a Python function and not a `partial`, because the compiler starts at a Python
    frame. The first frame of a partial would be torch's checkpoint function, which the compiler
    skips together with everything that it calls.
    """
    forward = block.forward

    def recomputed(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    block.forward = recomputed


def forget_gathered(model: nn.Module) -> None:
    """Drop the gathered copies that a forward pass without a backward pass leaves behind.

    FSDP keeps them for the backward pass. Without a backward pass, the next forward pass would use
    these old copies, even if the shards have been loaded again since.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
