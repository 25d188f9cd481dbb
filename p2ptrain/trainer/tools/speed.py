"""Compare this trainer's speed with a plain loop and transformers' model, for `bench trainer`.

`python -m p2ptrain.trainer.tools.speed JSON` trains several models (the contenders) alternately on
the same synthetic blocks, with the same sizes, optimizer and clipping. It prints one JSON object
for each contender.

    fsdp2               as in a run: `batch.train_on` on the model that `parallelize` distributes
    plain               the same model without FSDP2, in a plain loop
    transformers        LlamaForCausalLM in the plain loop, if transformers is installed
    plain_bf16,         like the previous two, but with bf16 parameters, as in FSDP2
    transformers_bf16

There are two ways to compute in bf16. `plain` and `transformers` have fp32 parameters under
autocast, like most training loops: each product rounds its inputs, and everything else stays fp32.
FSDP2's mixed precision computes with bf16 parameters, which are rounded once per step from the fp32
parameters that are trained. So all activations are bf16, too. The `_bf16` contenders do the same
(`RoundedModel`). A comparison with a `_bf16` contender shows the cost of FSDP2 itself; the others
also have the cost of autocast.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from p2ptrain.data.blocks import Tokens
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.formats.huggingface import SIZES
from p2ptrain.trainer.formats.shapes import parameter_count
from p2ptrain.trainer.host.flops import mfu
from p2ptrain.trainer.rank.batch import own_pieces, predicted_tokens, train_on
from p2ptrain.trainer.rank.model import Llama, token_losses
from p2ptrain.trainer.rank.optimizer import clip_gradients, make_adamw, make_optimizer
from p2ptrain.trainer.rank.parallelize import build, recompute
from p2ptrain.trainer.rank.ranks import Ranks, open_ranks

DEVIATION = 0.02
Step = Callable[[Tokens], float]


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a contender in its best round. `mfu` and `memory_bytes` (the peak) are measured
    on a GPU only. On a CPU, processor time is measured, so that other programs do not distort the
    rate."""

    contender: str
    tokens_per_s: float
    loss: float
    parameters: int
    device: str
    mfu: float | None
    memory_bytes: int | None


def fsdp2(config: TrainerConfig, ranks: Ranks) -> Step:
    model = build(config, ranks)
    _start(model)
    optimizer = make_optimizer(model, config.inner)
    return lambda rows: train_on(rows, model, optimizer, ranks, config).loss


def plain(config: TrainerConfig, ranks: Ranks, *, rounded: bool = False) -> Step:
    with ranks.device:
        model = Llama(config.model)
    for block in model.blocks:
        if config.recompute:
            recompute(block)
        if config.compile:
            block.compile()
    return _loop(model, model, config, ranks, rounded=rounded)


def transformers(config: TrainerConfig, ranks: Ranks, *, rounded: bool = False) -> Step:
    """Return a step of transformers' Llama. Raises ImportError: it is not installed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {theirs: getattr(config.model, ours) for ours, theirs in SIZES.items()}
    of_model = LlamaConfig(**sizes, tie_word_embeddings=config.model.tied, use_cache=False)
    with ranks.device:
        model = LlamaForCausalLM(of_model)
    if config.recompute:
        model.gradient_checkpointing_enable()
    forward = torch.compile(model) if config.compile else model

    def logits_of(tokens: Tensor) -> Tensor:
        logits: Tensor = forward(input_ids=tokens).logits
        return logits

    return _loop(model, logits_of, config, ranks, rounded=rounded)


CONTENDERS: dict[str, Callable[[TrainerConfig, Ranks], Step]] = {
    "fsdp2": fsdp2,
    "plain": plain,
    "plain_bf16": partial(plain, rounded=True),
    "transformers": transformers,
    "transformers_bf16": partial(transformers, rounded=True),
}


class RoundedModel:
    """Imitates FSDP2's mixed precision on one rank for a plain model. The model's parameters become
    bf16. Before each step they are rounded from the fp32 parameters `trained`; after each backward
    pass their gradients are added to those of `trained`. Buffers stay as they are."""

    def __init__(self, model: nn.Module) -> None:
        self._computing: list[Tensor] = list(model.parameters())
        self.trained = [nn.Parameter(each.detach().clone()) for each in self._computing]
        for each in self._computing:
            each.data = each.data.bfloat16()

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(self._computing, list[Tensor](self.trained))

    def take_gradients(self) -> None:
        for trained, computing in zip(self.trained, self._computing, strict=True):
            assert computing.grad is not None, "every parameter contributes to the loss"
            gradient, computing.grad = computing.grad.float(), None
            trained.grad = gradient if trained.grad is None else trained.grad.add_(gradient)


def _loop(
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    config: TrainerConfig,
    ranks: Ranks,
    *,
    rounded: bool,
) -> Step:
    """Return the step of a plain training loop around `forward`, which uses the parameters of
    `model`. In bf16 it computes under autocast, or with `rounded` parameters."""
    _start(model)
    inner, device = config.inner, ranks.device.type
    copy = RoundedModel(model) if rounded else None
    parameters = list(model.parameters()) if copy is None else copy.trained
    autocast = config.precision == "bf16" and copy is None
    optimizer = make_adamw(parameters, inner)

    def step(rows: Tokens) -> float:
        tokens, loss_sum = predicted_tokens(rows), 0.0
        if copy is not None:
            copy.refresh()
        for piece in own_pieces(rows, ranks, config.micro_batch):
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                logits = forward(piece[:, :-1])
            loss, objective = token_losses(logits, piece[:, 1:], inner.z_loss)
            (objective / tokens).backward()
            if copy is not None:
                copy.take_gradients()
            loss_sum += float(loss.detach())
        clip_gradients(parameters, inner.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss_sum / tokens

    return step


@torch.no_grad()
def _start(model: nn.Module) -> None:
    torch.manual_seed(0)  # Contenders with the same order of parameters begin with equal values.
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0.0, DEVIATION)
        else:
            parameter.fill_(1.0)


def random_rows(config: TrainerConfig) -> Tokens:
    """Return a block of random tokens."""
    shape = config.inner.batch_sequences, config.model.sequence + 1
    return np.random.default_rng(0).integers(0, config.model.vocab, shape)


def measure(config: TrainerConfig, names: list[str], steps: int, rounds: int) -> Iterator[Speed]:
    """Measure all `names` alternately, in `rounds` rounds of `steps` inner steps each; the best
    round counts."""
    rows = random_rows(config)
    torch.set_num_threads(config.threads)
    with open_ranks(config.device, None) as ranks:
        ready = {name: CONTENDERS[name](config, ranks) for name in names}
        best = dict.fromkeys(names, 0.0)
        losses, memory = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        for lap in range(rounds + 1):  # The first lap warms up: it compiles and fills caches.
            for name, step in ready.items():
                rate, losses[name], memory[name] = _timed(step, rows, steps, ranks)
                best[name] = max(best[name], rate if lap else 0.0)
        for name in names:
            share = mfu(config.model, ranks.device_name, 1, best[name])
            told = memory[name] if config.device == "cuda" else None
            size = parameter_count(config.model)
            yield Speed(name, best[name], losses[name], size, ranks.device_name, share, told)


def _timed(step: Step, rows: Tokens, steps: int, ranks: Ranks) -> tuple[float, float, int]:
    on_gpu = ranks.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    clock = time.perf_counter if on_gpu else time.process_time
    started_s, loss = clock(), 0.0
    for _ in range(steps):
        loss = step(rows)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = clock() - started_s
    memory = torch.cuda.max_memory_allocated() if on_gpu else 0
    return steps * predicted_tokens(rows) / seconds, loss, memory


def main() -> None:
    told = json.loads(sys.argv[1])
    config = TrainerConfig.from_json(json.dumps(told["config"]))
    for speed in measure(config, told["contenders"], told["steps"], told["rounds"]):
        sys.stdout.write(json.dumps(asdict(speed)) + "\n")


if __name__ == "__main__":
    main()
