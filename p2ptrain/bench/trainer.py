"""`p2ptrain bench trainer`: compare our trainer with a plain loop and transformers' model.

A process of `p2ptrain.trainer.tools.speed` trains. This module starts it, with transformers in a
temporary environment, and prints the results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from p2ptrain.bench.lines import FigureLine
from p2ptrain.bench.processes import ProcessFailed
from p2ptrain.bench.throwaway import environment_with
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, TrainerConfig

TRANSFORMERS = ("transformers==4.57.3",)
"""The version to install. Without its torch extra, it uses the torch that is installed here."""

HEAD_WIDTH = 64
VOCAB = 4096
PROCESS_S_MAX = 3600.0
WORDS_MAX = 2000

NAMES = {
    "plain": "a plain loop without FSDP2",
    "plain_bf16": "a plain loop with bf16 parameters, as under FSDP2, instead of autocast",
    "transformers": "transformers' LlamaForCausalLM in a plain loop",
    "transformers_bf16": "transformers' LlamaForCausalLM with bf16 parameters",
}
"""Names of the contenders, which `p2ptrain.trainer.tools.speed` explains."""


def setting(
    layers: int,
    width: int,
    sequence: int,
    batch: int,
    precision: str,
    device: str,
    *,
    vocab: int = VOCAB,
    compile: bool = False,
) -> TrainerConfig:
    """Return the settings for a Llama with heads of 64 and AdamW. Raises ConfigError."""
    heads = max(1, width // HEAD_WIDTH)
    ffn = -(-8 * width // 3 // HEAD_WIDTH) * HEAD_WIDTH
    return TrainerConfig(
        ModelSpec(vocab, layers, width, heads, heads, ffn, sequence),
        InnerSpec(1, batch, 1e-4, 0, 10**6),
        device=device,  # type: ignore[arg-type]  # TrainerConfig checks it
        precision=precision,  # type: ignore[arg-type]
        compile=compile,
    )


def run(
    config: TrainerConfig,
    contenders: list[str],
    steps: int,
    rounds: int,
    python: str,
    limit_s: float = PROCESS_S_MAX,
) -> dict[str, dict[str, Any]]:
    """Run `p2ptrain.trainer.tools.speed`, and return its result for each contender. Raises
    ProcessFailed."""
    told = {"config": asdict(config), "contenders": contenders, "steps": steps, "rounds": rounds}
    command = [python, "-m", "p2ptrain.trainer.tools.speed", json.dumps(told)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as exc:
        raise ProcessFailed(f"training took over {limit_s:.0f} s") from exc
    if done.returncode:
        raise ProcessFailed(done.stderr.strip()[-WORDS_MAX:])
    # If NCCL_DEBUG is set, NCCL also writes to stdout.
    told_back = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return {each["contender"]: each for each in map(json.loads, told_back)}


Run = Callable[..., dict[str, Any]]
"""A function that measures like `run` and takes its arguments."""


def measure(
    config: TrainerConfig, steps: int, rounds: int, *, transformers: bool, run: Run = run
) -> Iterator[FigureLine]:
    """Measure all contenders with `run`.

    Raises ProcessFailed: a process failed, or transformers could not be installed.
    """
    contenders = ["fsdp2", *others(config, transformers=transformers)]
    with ExitStack() as stack:
        python = sys.executable
        if transformers:
            python = stack.enter_context(environment_with(TRANSFORMERS))
        speeds = run(config, contenders, steps, rounds, python)
    ours = speeds["fsdp2"]
    name = f"FSDP2 with one rank, {ours['parameters'] / 1e6:.1f} M parameters, {config.precision}"
    yield FigureLine(name, ours["tokens_per_s"], "tokens/s", details=ours)
    for other, words in NAMES.items():
        if other in speeds:
            ratio = ours["tokens_per_s"] / speeds[other]["tokens_per_s"]
            yield FigureLine(name, ratio, "× the tokens/s of", words, speeds[other])


def others(config: TrainerConfig, *, transformers: bool) -> list[str]:
    """Return the contenders besides FSDP2. In bf16, each of them is measured both under autocast
    and with bf16 parameters."""
    loops = ["plain"] + ["transformers"] * transformers
    ways = ["", "_bf16"] if config.precision == "bf16" else [""]
    return [loop + way for loop in loops for way in ways]
