"""`scripts/gpu_check`: test and measure p2ptrain on this machine's GPU.

    speed-150M, speed-1B  FSDP2 on one GPU, bf16, compiled: tokens/s, MFU, memory.
    swarm                 The demo. Its nodes share the GPU.
    kernels               The tests of the kernels.
    trainer               The tests that train in their own process, on the GPU.
    beside-150M, -1B      FSDP2's tokens/s compared with those of a plain loop, and of the model of
                          transformers if that is installed. Each runs in its own process.

The script prints one JSON object at the end, and the result of each part on stderr. Without a GPU
it says so and exits with 0. With a GPU it exits with 1 if a part fails, or if torch cannot use it.

`targets` in that object lists the required figures and whether each was met. Missed targets are
also printed on stderr. A missed target does not change the exit status or `ok`: nothing is broken,
and other programs may be using the GPU.

If the packages are installed for a Python other than that of .venv, run `PYTHON -m
scripts.research.gpu_check` instead.
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

from p2ptrain.bench.processes import ProcessFailed
from p2ptrain.bench.trainer import Run, others, run, setting
from p2ptrain.config.samples import sample
from p2ptrain.demo.run_file import without_donors
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host import gpus
from p2ptrain.trainer.host.micro_batch import halved, is_out_of_memory

STEPS, ROUNDS = 10, 3
LIMIT_S = 3600.0
LEAVE_S = 5.0
"""Time reserved to stop a part that exceeds its limit, and to report it."""
GONE_WITHIN_S = 10.0
"""Time to wait until killed processes have ended and released their GPU memory."""
WORDS_MAX = 4000
MFU_ASKED = 0.40
"""Required MFU of the 1 B model at a sequence length of 2,048."""
RATIOS_ASKED = {"plain": 0.95, "transformers": 1.0}
"""Required ratio of FSDP2's tokens/s to those of each loop, in the faster of the loop's two
variants (autocast, and bf16 parameters)."""

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
"""The tests in tests/trainer that train in the test process itself."""
MEASURED_BY_A_CPU = ("late_swarm", "replica", "sample_texts")
"""Tests that compare a trainer with CPU results more exactly than a GPU's rounding allows."""

# The warnings of torch on a new GPU are not known in advance, so they are not errors.
TRAINER_TESTS = ("-W", "default", *(f"tests/trainer/test_{name}.py" for name in ON_GPU))

OUTER_STEPS = 48
"""Outer steps of the demo here. On a GPU, the usual 16 can be over before a newcomer has loaded
CUDA."""

ASK = """
import json, torch
try:
    print(json.dumps([torch.cuda.get_device_name(), ""]))
except Exception as exc:
    print(json.dumps(["", f"torch {torch.__version__}: {exc}"]))
"""

Part = Callable[[float], dict[str, Any]]
"""A function `part(limit_s)` that runs a part within this time. Raises Failed,
subprocess.TimeoutExpired."""


def models() -> dict[str, TrainerConfig]:
    """Return models of the usual sizes of GPT-2 and Llama 3.2, with one vocabulary size."""
    alike = {"vocab": 32_000, "compile": True}
    return {
        "150M": setting(12, 1024, 1024, 32, "bf16", "cuda", **alike),  # type: ignore[arg-type]
        "1B": setting(20, 2048, 2048, 16, "bf16", "cuda", **alike),  # type: ignore[arg-type]
    }


def gpu_of_torch() -> tuple[str, str]:
    """Return torch's name of the GPU, or an empty name and why torch cannot use a GPU."""
    asked = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        return "", asked.stderr.strip()[-WORDS_MAX:]
    name, why = json.loads(asked.stdout)
    return name, why


def without_gpu(why: str, *, shown: bool) -> dict[str, Any]:
    """Return the report if torch cannot use a GPU, which is an error if there is one (`shown`)."""
    if not shown:
        return {"gpu": None, "ok": True, "reason": "this machine has no GPU; nothing was checked"}
    reason = "this machine has an NVIDIA GPU, but torch cannot use it"
    do = "run P2PTRAIN_TORCH=… scripts/setup with a CUDA build of torch that fits the driver"
    return {"gpu": None, "ok": False, "reason": reason, "torch": why, "do": do}


def speed(config: TrainerConfig, limit_s: float, run: Run = run) -> dict[str, Any]:
    """Measure FSDP2, halving the micro-batch until it fits into memory. Raises Failed."""
    ends_s = time.monotonic() + limit_s
    while True:
        left_s = ends_s - time.monotonic()
        try:
            found = run(config, ["fsdp2"], STEPS, ROUNDS, sys.executable, limit_s=left_s)
            return found["fsdp2"] | {"micro_batch": config.micro_batch}
        except ProcessFailed as exc:
            smaller = halved(config, 1)
            if not is_out_of_memory(exc) or smaller is None:
                raise
            config = smaller


def beside(
    config: TrainerConfig, limit_s: float, run: Run = run, *, transformers: bool | None = None
) -> dict[str, Any]:
    """Measure FSDP2 and the other loops with the same micro-batch.

    Each runs in its own process, since together they might not fit into memory. A loop that fails
    is reported with the reason. `transformers` says whether that library is compared too; None
    means that it is compared if it is installed. Raises Failed if FSDP2 fails.
    """
    ends_s = time.monotonic() + limit_s
    if transformers is None:
        transformers = find_spec("transformers") is not None
    ours = speed(config, limit_s, run)
    config = replace(config, micro_batch=ours["micro_batch"])
    told: dict[str, Any] = {"fsdp2": ours}
    for name in others(config, transformers=transformers):
        left_s = ends_s - time.monotonic()
        try:
            told |= run(config, [name], STEPS, ROUNDS, sys.executable, limit_s=left_s)
        except ProcessFailed as exc:
            told[name] = {"reason": str(exc)}
    return told


def command(limit_s: float, *words: str, **environment: str) -> dict[str, Any]:
    """Run a module of ours, and return its result. Raises Failed if it fails or is too slow."""
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
        raise ProcessFailed(said.strip()[-WORDS_MAX:]) from None
    if process.returncode:
        raise ProcessFailed(said.strip()[-WORDS_MAX:])
    return {"ok": True, "said": said.strip().splitlines()[-1:]}


def swarm(limit_s: float, command: Callable[..., object] = command) -> dict[str, Any]:
    """Run the demo, and return its verdict and the devices of its nodes.

    Raises Failed if the demo has no verdict.
    """
    with tempfile.TemporaryDirectory() as folder:
        config, file = Path(folder, "demo.toml"), Path(folder, "demo.json")
        config.write_text(longer(without_donors(sample("demo"))))
        words = ("--config", str(config), "--json", str(file))
        try:
            command(limit_s, "p2ptrain.demo", *words)
        except ProcessFailed:
            if not file.exists():
                raise
        told = json.loads(file.read_text())
    sharing = [device for device in told["devices"].values() if device != "cpu"]
    missed = [claim for claim, holds in told["claims"].items() if not holds]
    wanted = ("outer_steps", "devices", "val_loss_first", "val_loss_last", "run_s")
    # Three nodes begin. After one is killed, the other two commit the same outer step.
    fine = told["ok"] and len(sharing) >= 2
    judged = {"ok": fine, "sharing": len(sharing), "missed": missed}
    return judged | {name: told[name] for name in wanted}


def longer(run_file: str) -> str:
    """Return the demo's run file with more outer steps."""
    before, outer, after = run_file.partition("[outer]")
    changed, count = re.subn(r"^steps = \d+", f"steps = {OUTER_STEPS}", after, count=1, flags=re.M)
    assert outer, "the demo's run file has no [outer]"
    assert count, "the demo's run file does not set its outer steps"
    return before + outer + changed


def _killed(process: subprocess.Popen[str]) -> str:
    """Kill a process and its children, and return its output. The next part needs the whole GPU."""
    begun = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in begun:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(begun, timeout=GONE_WITHIN_S)
    said, _ = process.communicate()
    return said


def parts() -> dict[str, Part]:
    """Return all parts, in the order in which they run."""
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
    """Run all parts in `todo`. A failing part does not stop the others."""
    ends_s, found = time.monotonic() + limit_s, {}
    for part, do in todo.items():
        began_s = time.monotonic()
        try:
            if ends_s - LEAVE_S <= began_s:
                raise ProcessFailed("the time limit was reached before this part")
            told = do(ends_s - LEAVE_S - began_s)
        except (ProcessFailed, subprocess.TimeoutExpired) as exc:
            told = {"ok": False, "reason": str(exc)}
        found[part] = told | {"seconds": round(time.monotonic() - began_s, 1)}
        sys.stderr.write(json.dumps({part: found[part]}) + "\n")
    fine = all(each.get("ok", True) for each in found.values())
    asked = targets(found)
    if missed := [each for each in asked if each["met"] is False]:
        sys.stderr.write(json.dumps({"missed": missed}) + "\n")
    return {"gpu": name, "ok": fine, "targets": asked, "parts": found}


def targets(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each required figure together with the measured one."""
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
    """Return the results of the loops that were measured for one model."""
    part = found.get(f"beside-{name}", {})
    return {who: told for who, told in part.items() if isinstance(told, dict)}


def _target(what: str, asked: float, found: float | None) -> dict[str, Any]:
    """Return one target. `met` is None if it was not measured or the GPU's peak is unknown."""
    met = None if found is None else found >= asked
    return {"what": what, "asked": asked, "found": found, "met": met}


def main() -> int:
    todo = parts()
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run; by default all")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=LIMIT_S,
        help="time limit of all parts together, in seconds",
    )
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
