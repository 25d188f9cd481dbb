"""`scripts/gpu_check`: what this machine's GPU does for p2ptrain, measured and tested in one go.

    speed     150 M and 1 B parameters, FSDP2 on one GPU, bf16, compiled: tokens/s, MFU, memory
    swarm     the demo: its nodes share the GPU, which a node takes where there is one
    tests     the kernels' tests, and the trainer's with `P2PTRAIN_TEST_DEVICE=cuda`: those that
              train in their own process have it do so

It prints one JSON object. Without a GPU that torch can use it says so and exits with 0: a machine
without one is not at fault. With one, whatever fails makes it exit with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.testing.bench.processes import Failed
from p2ptrain.testing.bench.trainer import run, setting

STEPS, ROUNDS = 10, 3
PART_S_MAX = 1800.0
WORDS_MAX = 1500
MFU_WANTED = 0.40
"""Of the model of 1 B at a sequence of 2,048."""

TRAINER_TESTS = ("-q", "tests/trainer", "--ignore", "tests/trainer/test_replica.py")
"""A replica computes on the CPU, and is compared with a trainer more closely than a GPU rounds."""

ASK = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"


def models() -> dict[str, TrainerConfig]:
    """GPT-2's and Llama 3.2's usual sizes, with a vocabulary that both afford."""
    alike = {"vocab": 32_000, "compile": True, "micro_batch": 8}
    return {
        "150M": setting(12, 1024, 1024, 32, "bf16", "cuda", **alike),  # type: ignore[arg-type]
        "1B": setting(20, 2048, 2048, 16, "bf16", "cuda", **alike),  # type: ignore[arg-type]
    }


def gpu_name() -> str:
    """As torch calls it; empty if there is none that torch can use."""
    asked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() if asked.returncode == 0 else ""


def speed(config: TrainerConfig) -> dict[str, Any]:
    """With half as many sequences at once until they fit. Raises Failed."""
    while True:
        try:
            return run(config, ["fsdp2"], STEPS, ROUNDS, sys.executable)["fsdp2"]
        except Failed as exc:
            if "out of memory" not in str(exc) or config.micro_batch <= 1:
                raise
            config = _halved(config)


def _halved(config: TrainerConfig) -> TrainerConfig:
    from p2ptrain.trainer.fitting import halved

    smaller = halved(config, 1)
    assert smaller is not None
    return smaller


def command(*words: str, **environment: str) -> dict[str, Any]:
    """How a program of ours ended. Raises Failed: not well."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=PART_S_MAX,
        check=False,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise Failed((done.stdout + done.stderr).strip()[-WORDS_MAX:])
    return {"ok": True, "said": done.stdout.strip().splitlines()[-1:]}


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """What is done, in this order."""
    measured = {f"speed {name}": lambda c=config: speed(c) for name, config in models().items()}
    return {
        **measured,
        "swarm": lambda: command("p2ptrain.testing.demo"),
        "kernels": lambda: command("pytest", "-q", "tests/kernels"),
        "trainer": lambda: command("pytest", *TRAINER_TESTS, P2PTRAIN_TEST_DEVICE="cuda"),
    }


def check(name: str, todo: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, Any]:
    """All of `todo`; a part that fails does not keep the others from being done."""
    if not name:
        return {"gpu": None, "ok": True, "reason": "torch sees no GPU here; nothing was checked"}
    found: dict[str, Any] = {}
    for part, do in todo.items():
        try:
            found[part] = do()
        except (Failed, subprocess.TimeoutExpired) as exc:
            found[part] = {"ok": False, "reason": str(exc)}
    fine = all(each.get("ok", True) for each in found.values())
    mfu = found.get("speed 1B", {}).get("mfu")
    return {"gpu": name, "ok": fine, "mfu_wanted_1B": MFU_WANTED, "mfu_1B": mfu, "parts": found}


def main() -> int:
    argparse.ArgumentParser(
        prog="scripts/gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    report = check(gpu_name(), parts())
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
