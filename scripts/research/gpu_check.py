"""`scripts/gpu_check`: what this machine's GPU does for p2ptrain, measured and tested in one go.

    speed-150M, speed-1B  FSDP2 on one GPU, bf16, compiled: tokens/s, MFU, memory
    swarm                 the demo: its nodes share the GPU, which a node takes where there is one
    kernels               their tests
    trainer               tests of what trains in the tests' own process, on the GPU
    beside-150M, -1B      FSDP2's tokens/s beside those of a plain loop, and of transformers' model
                          where that is installed, each in a process of its own

It prints one JSON object at its end, and on stderr what came of each part as soon as it is known.
Without a GPU it says so and exits with 0: a machine without one is not at fault. With one, whatever
fails makes it exit with 1; so does a torch that cannot use it.

`targets` in that object has the figures that were asked for, and whether each was met; what was
missed is told on stderr, too. That alone does not make it exit with 1, nor `ok` false: a target is
missed by our code as it is, on this GPU and beside whoever else computes on it, and nothing is
broken here that whoever runs this could mend.

Where the packages are installed for another Python than .venv's, `PYTHON -m
scripts.research.gpu_check` is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from p2ptrain.bench.processes import Failed
from p2ptrain.bench.trainer import others, run, setting
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host import gpus
from p2ptrain.trainer.host.micro_batch import halved, is_out_of_memory

STEPS, ROUNDS = 10, 3
LIMIT_S = 3600.0
LEAVE_S = 5.0
"""To end a part whose time is over, and to say so."""
GONE_WITHIN_S = 10.0
"""A killed process that still holds memory of the GPU has that long to give it back."""
WORDS_MAX = 4000
MFU_ASKED = 0.40
"""Of the model of 1 B at a sequence of 2,048."""
RATIOS_ASKED = {"plain": 0.95, "transformers": 1.0}
"""FSDP2's tokens/s over those of each loop, in the faster of the loop's two ways to compute."""

ON_GPU = (
    *(
        "attention",
        "batch",
        "cost",
        "donated_state",
        "inner_state",
        "late_bookkeeping",
        "loop",
        "muon",
    ),
    *("parallelize", "progress", "sync_modes"),
)
"""Of tests/trainer, what trains in the tests' own process."""
MEASURED_BY_A_CPU = ("late_swarm", "replica")
"""They compare a trainer with what computes on the CPU, more closely than a GPU rounds."""

# What torch warns of on a GPU nobody has seen in advance.
TRAINER_TESTS = ("-W", "default", *(f"tests/trainer/test_{name}.py" for name in ON_GPU))

OUTER_STEPS = 48
"""Of the demo here. On a GPU its 16 may be over before a newcomer has loaded CUDA and joined."""

ASK = """
import json, torch
try:
    print(json.dumps([torch.cuda.get_device_name(), ""]))
except Exception as exc:
    print(json.dumps(["", f"torch {torch.__version__}: {exc}"]))
"""

Part = Callable[[float], dict[str, Any]]
"""It has so many seconds. Raises Failed, and subprocess.TimeoutExpired."""


def models() -> dict[str, TrainerConfig]:
    """GPT-2's and Llama 3.2's usual sizes, with a vocabulary that both afford."""
    alike = {"vocab": 32_000, "compile": True}
    return {
        "150M": setting(12, 1024, 1024, 32, "bf16", "cuda", **alike),  # type: ignore[arg-type]
        "1B": setting(20, 2048, 2048, 16, "bf16", "cuda", **alike),  # type: ignore[arg-type]
    }


def gpu_of_torch() -> tuple[str, str]:
    """What torch calls it; or nothing, and why it can use none."""
    asked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        return "", asked.stderr.strip()[-WORDS_MAX:]
    name, why = json.loads(asked.stdout)
    return name, why


def without_gpu(why: str, *, shown: bool) -> dict[str, Any]:
    """The report where torch can use none, which is a fault where the machine has one (`shown`)."""
    if not shown:
        return {"gpu": None, "ok": True, "reason": "there is no GPU here; nothing was checked"}
    reason = "this machine has an NVIDIA GPU, and torch cannot use it"
    do = "P2PTRAIN_TORCH=… scripts/setup with a torch for CUDA that fits the driver"
    return {"gpu": None, "ok": False, "reason": reason, "torch": why, "do": do}


def speed(config: TrainerConfig, limit_s: float) -> dict[str, Any]:
    """With half as many sequences at once until they fit. Raises Failed."""
    ends_s = time.monotonic() + limit_s
    while True:
        left_s = ends_s - time.monotonic()
        try:
            found = run(config, ["fsdp2"], STEPS, ROUNDS, sys.executable, limit_s=left_s)
            return found["fsdp2"] | {"micro_batch": config.micro_batch}
        except Failed as exc:
            smaller = halved(config, 1)
            if not is_out_of_memory(exc) or smaller is None:
                raise
            config = smaller


def beside(config: TrainerConfig, limit_s: float) -> dict[str, Any]:
    """FSDP2, and what others do with as many sequences at once: a process each, since all together
    might not fit. One that cannot do it says why. Raises Failed: FSDP2 cannot.
    """
    ends_s = time.monotonic() + limit_s
    ours = speed(config, limit_s)
    config = replace(config, micro_batch=ours["micro_batch"])
    told: dict[str, Any] = {"fsdp2": ours}
    for name in others(config, transformers=find_spec("transformers") is not None):
        left_s = ends_s - time.monotonic()
        try:
            told |= run(config, [name], STEPS, ROUNDS, sys.executable, limit_s=left_s)
        except Failed as exc:
            told[name] = {"reason": str(exc)}
    return told


def swarm(limit_s: float) -> dict[str, Any]:
    """The demo's verdict, and on what its nodes have trained. Raises Failed: it has none."""
    with tempfile.TemporaryDirectory() as folder:
        config, file = Path(folder, "demo.toml"), Path(folder, "demo.json")
        config.write_text(longer(Path("configs/demo.toml").read_text()))
        words = ("--config", str(config), "--json", str(file))
        try:
            command(limit_s, "p2ptrain.demo", *words)
        except Failed:
            if not file.exists():
                raise
        told = json.loads(file.read_text())
    sharing = [device for device in told["devices"].values() if device != "cpu"]
    missed = [claim for claim, holds in told["claims"].items() if not holds]
    wanted = ("outer_steps", "devices", "val_loss_first", "val_loss_last", "run_s")
    # Three begin, and the two that are left when the third is killed commit that very step.
    fine = told["ok"] and len(sharing) >= 2
    judged = {"ok": fine, "sharing": len(sharing), "missed": missed}
    return judged | {name: told[name] for name in wanted}


def longer(run_file: str) -> str:
    """The demo's run file with more outer steps."""
    before, outer, after = run_file.partition("[outer]")
    changed, count = re.subn(r"^steps = \d+", f"steps = {OUTER_STEPS}", after, count=1, flags=re.M)
    assert outer, "the demo has outer steps"
    assert count, "and says how many"
    return before + outer + changed


def command(limit_s: float, *words: str, **environment: str) -> dict[str, Any]:
    """How a program of ours ended. Raises Failed: not well, or not in time."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        said = f"{_killed(process)}\nnot done after {limit_s:.0f} s"
        raise Failed(said.strip()[-WORDS_MAX:]) from None
    if process.returncode:
        raise Failed(said.strip()[-WORDS_MAX:])
    return {"ok": True, "said": said.strip().splitlines()[-1:]}


def _killed(process: subprocess.Popen[str]) -> str:
    """The words of what is ended with all that it has begun: the next part wants the GPU alone."""
    begun = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in begun:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(begun, timeout=GONE_WITHIN_S)
    said, _ = process.communicate()
    return said


def parts() -> dict[str, Part]:
    """What is done, in this order."""
    sizes = models().items()
    return {
        **{f"speed-{name}": partial(speed, config) for name, config in sizes},
        "swarm": swarm,
        "kernels": lambda limit_s: command(limit_s, "pytest", "-q", "tests/kernels"),
        "trainer": lambda limit_s: command(
            limit_s, "pytest", "-q", *TRAINER_TESTS, P2PTRAIN_TEST_DEVICE="cuda"
        ),
        **{f"beside-{name}": partial(beside, config) for name, config in sizes},
    }


def check(name: str, todo: dict[str, Part], limit_s: float = LIMIT_S) -> dict[str, Any]:
    """All of `todo`; a part that fails does not keep the others from being done."""
    ends_s, found = time.monotonic() + limit_s, {}
    for part, do in todo.items():
        began_s = time.monotonic()
        try:
            if ends_s - LEAVE_S <= began_s:
                raise Failed("no time was left for it")
            told = do(ends_s - LEAVE_S - began_s)
        except (Failed, subprocess.TimeoutExpired) as exc:
            told = {"ok": False, "reason": str(exc)}
        found[part] = told | {"seconds": round(time.monotonic() - began_s, 1)}
        sys.stderr.write(json.dumps({part: found[part]}) + "\n")
    fine = all(each.get("ok", True) for each in found.values())
    asked = targets(found)
    if missed := [each for each in asked if each["met"] is False]:
        sys.stderr.write(json.dumps({"missed": missed}) + "\n")
    return {"gpu": name, "ok": fine, "targets": asked, "parts": found}


def targets(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What was asked for, and what these parts have found of it."""
    mfu = found.get("speed-1B", {}).get("mfu")
    told = [_target("MFU of 1B", MFU_ASKED, mfu)]
    for name in models():
        rates = {who: each.get("tokens_per_s") for who, each in _measured(found, name).items()}
        for loop, asked in RATIOS_ASKED.items():
            theirs = [rate for way in (loop, f"{loop}_bf16") if (rate := rates.get(way))]
            ratio = rates["fsdp2"] / max(theirs) if theirs else None
            told.append(_target(f"tokens/s of {name} ÷ those of {loop}", asked, ratio))
    return told


def _measured(found: dict[str, dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    """The contenders of one model that said anything."""
    part = found.get(f"beside-{name}", {})
    return {who: told for who, told in part.items() if isinstance(told, dict)}


def _target(what: str, asked: float, found: float | None) -> dict[str, Any]:
    """`met` is None where it was not measured, or the GPU's peak is not known."""
    met = None if found is None else found >= asked
    return {"what": what, "asked": asked, "found": found, "met": met}


def main() -> int:
    todo = parts()
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of these; all if left out")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of all parts together")
    given = parser.parse_args()
    if unknown := set(given.parts) - todo.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    chosen = {name: do for name, do in todo.items() if name in (given.parts or todo)}
    name, why = gpu_of_torch()
    if name:
        report = check(name, chosen, given.limit_s)
    else:
        report = without_gpu(why, shown=gpus.has_nvidia_gpu(gpus.DEVICES, os.environ))
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
