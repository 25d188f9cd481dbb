"""Try out torch and this machine's device, for `p2ptrain doctor`.

The process is one rank. It prints a line of JSON before and after each step, so that its parent
knows which step hangs or crashes:

    {"begin": "load"}       {"end": "load", "torch": "2.13.0", "seconds": 2.1}
    {"begin": "meet"}       {"end": "meet", "device": "cpu"}
    {"begin": "multiply"}   {"end": "multiply", "operations_per_s": 8e10, "deviation": 1e-7}
    {"begin": "gather"}     {"end": "gather", "ranks": 2, "is_right": true}

or {"error": {"code": …, "what": …, "likely": …, "do": …}} if this machine is unfit, or if torch is
not installed. The ranks meet and the tensors travel exactly as in a trainer.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time

from p2ptrain.errors import MachineUnfit

ALARM_S = 60
"""Seconds after which the kernel ends this process in any case."""

PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that lets the kernel end a process together with its parent."""

SIZE = 1024
"""Rows and columns of the matrices: enough to keep a core busy for 30 ms."""
MULTIPLY_S = 0.5


def main() -> None:
    signal.alarm(ALARM_S)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    options = argparse.ArgumentParser()
    options.add_argument("--device", choices=("cpu", "cuda"), required=True)
    options.add_argument("--store-fd", type=int)
    arguments = options.parse_args()
    status = 0
    try:
        _load()
        _try_out(arguments.device, arguments.store_fd)
    except MachineUnfit as exc:
        error = {"code": exc.code, "what": exc.what, "likely": exc.likely, "do": exc.do}
        _say(error=error)
        status = exc.exit_code
    # Unloading torch takes a second, and is of no use to anybody.
    os._exit(status)


def _load() -> None:
    """Load torch. Raises MachineUnfit: it is not installed."""
    _say(begin="load")
    began = time.monotonic()
    try:
        import torch
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise MachineUnfit("torch is not installed", code="EXTRA-MISSING") from exc
    _say(end="load", torch=torch.__version__, seconds=time.monotonic() - began)


def _try_out(device: str, store_fd: int | None) -> None:
    from p2ptrain.trainer.rank.ranks import open_ranks

    _say(begin="meet")
    with open_ranks(device, store_fd) as ranks:
        _say(end="meet", device=ranks.device_name, free_bytes=ranks.free_bytes())
        _multiply(ranks.device.type)
        _gather(ranks.count, ranks.rank, ranks.device.type)


def _multiply(device: str) -> None:
    """Multiply two matrices, check the product, and measure the speed in the precision that a
    trainer uses by default: bf16 on a GPU that has it, fp32 otherwise."""
    import torch

    _say(begin="multiply")
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator).to(device) for _ in range(2))
    product = (left @ right)[:16].to("cpu", torch.float64)
    exact = left[:16].to("cpu", torch.float64) @ right.to("cpu", torch.float64)
    deviation = float((product - exact).abs().max() / exact.abs().max())
    if device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        left, right = left.bfloat16(), right.bfloat16()
    began, count = time.monotonic(), 0
    while (seconds := time.monotonic() - began) < MULTIPLY_S or not count:
        total = (left @ right).sum().item()  # `item` waits until a GPU has finished.
        count += 1
    assert total == total
    _say(end="multiply", operations_per_s=2 * SIZE**3 * count / seconds, deviation=deviation)


def _gather(count: int, rank: int, device: str) -> None:
    import torch
    import torch.distributed as dist

    _say(begin="gather")
    own = torch.full((1 << 16,), float(rank), device=device)
    gathered = [torch.empty_like(own) for _ in range(count)]
    dist.all_gather(gathered, own)
    is_right = all(bool((each == number).all()) for number, each in enumerate(gathered))
    _say(end="gather", ranks=count, is_right=is_right)


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
