"""Check torch and the device: load torch, multiply matrices, and gather a vector from all ranks.

This process never loads torch. One or two processes of `trainer.tools.device_trial` do, and report
each step. If one of them hangs, its step is known, and all of them are killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from p2ptrain.doctor.finding import Finding, Tell, fault, good, warning
from p2ptrain.doctor.installation import SET_UP
from p2ptrain.doctor.subject import Learned, Subject
from p2ptrain.observe.states import size
from p2ptrain.trainer.host import gpus
from p2ptrain.trainer.host.launch import environment_of_rank

TRIAL_S = 40.0
"""Seconds for the whole trial. Loading torch for the first time takes half a minute on a slow disk.
"""
LOOK_S = 0.05
OUTPUT_BYTES_MAX = 1 << 20
TAIL_CHARACTERS = 300
DEVIATION_MAX = 1e-2
"""Largest relative error of a product. TF32 on a GPU rounds to 11 bits; a fault makes far more."""

GPU_FREE_MIN = 1 << 30
"""Bytes of free memory on a GPU below which not even a small model can be trained there."""

STEPS = ("load", "meet", "multiply", "gather")
WORDS = {
    "load": ("torch", "loading torch"),
    "meet": ("device", "preparing the device"),
    "multiply": ("device", "multiplying two matrices"),
    "gather": ("all-gather", "exchanging data between two processes"),
}
"""For each step, the name of its line, and the step as a phrase."""

REINSTALL = (
    "install torch again: delete .venv and run scripts/setup (P2PTRAIN_TORCH chooses a build of "
    "torch for this machine)"
)
NETWORK = (
    "let programs of this machine connect to each other over loopback: check that the interface lo "
    "is up, and that no firewall or proxy variable interferes"
)


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """The reports of one rank, and its exit status. `status` is None if the rank was too slow and
    therefore killed."""

    reports: Sequence[Mapping[str, Any]]
    status: int | None
    tail: str = ""
    """The end of its stderr."""

    @property
    def done(self) -> dict[str, Mapping[str, Any]]:
        return {each["end"]: each for each in self.reports if each.get("end") in STEPS}

    @property
    def failed_at(self) -> str:
        """The step that did not end; "load" if the process did not even report that one."""
        return next((each for each in STEPS if each not in self.done), STEPS[-1])

    @property
    def error(self) -> Mapping[str, str] | None:
        return next((each["error"] for each in self.reports if "error" in each), None)


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_trial(facts: TrialFacts) -> Iterator[Finding]:
    """Yield a line for each step up to the first that failed."""
    done = facts.done
    if "load" in done:
        report = done["load"]
        yield good("torch", f"{report['torch']} loads in {report['seconds']:.1f} s")
    if "multiply" in done:
        met = done["meet"]
        yield _judge_product(str(met["device"]), int(met["free_bytes"]), done["multiply"])
    if "gather" in done:
        yield _judge_gather(done["gather"])
    elif facts.error is not None:
        yield _judge_error(facts.failed_at, facts.error)
    else:
        yield _judge_failure(facts)


def _judge_product(name: str, free_bytes: int, report: Mapping[str, Any]) -> Finding:
    device = "the processor" if name == "cpu" else name
    if not report["deviation"] <= DEVIATION_MAX:
        return fault(
            "device",
            f"{device} computes wrong products (relative error {report['deviation']:.2g})",
            fix="do not train on it: test this machine's memory and device, and reset overclocking",
            code="DEVICE-WRONG",
        )
    speed = report["operations_per_s"] / 1e9
    said = f"{device} multiplies matrices correctly, {speed:,.0f} Gflop/s"
    if name == "cpu":
        return good("device", said)
    if free_bytes < GPU_FREE_MIN:
        return warning(
            "device",
            f"{said}, but only {size(free_bytes)} of its memory are free",
            fix="stop the other programs that use the GPU (nvidia-smi lists them)",
            code="GPU-BUSY",
        )
    return good("device", f"{said}, {size(free_bytes)} of its memory are free")


def _judge_gather(report: Mapping[str, Any]) -> Finding:
    if not report["is_right"]:
        said = "the ranks of a trainer receive other data than was sent"
        return fault("all-gather", said, fix=REINSTALL, code="TORCH-BROKEN")
    alone = "a single rank exchanges data with itself"
    together = f"{report['ranks']} processes of this machine can exchange data"
    said = alone if report["ranks"] == 1 else together
    return good("all-gather", said)


def _judge_error(step: str, error: Mapping[str, str]) -> Finding:
    name, code = WORDS[step][0], error["code"]
    if code == "EXTRA-MISSING":
        return fault(
            "torch",
            "torch is not installed, but a node that trains needs it",
            fix="run scripts/setup without P2PTRAIN_TORCH, which installs torch; or use --seed, to "
            "serve a run without training",
            code=code,
        )
    likely = f"; most likely, {error['likely']}" if error.get("likely") else ""
    advice = error.get("do") or f"p2ptrain explain {code}"
    return fault(name, f"{error['what']}{likely}", fix=advice, code=code)


def _judge_failure(facts: TrialFacts) -> Finding:
    step = facts.failed_at
    name, words = WORDS[step]
    said = f"{words} {_how_it_ended(facts)}"
    if step != "load" and "ImportError: " in facts.tail:
        return fault(name, said, fix=SET_UP, code="INSTALLATION")
    advice = NETWORK if step == "gather" or (step == "meet" and facts.status is None) else REINSTALL
    if facts.status == -signal.SIGKILL:
        advice = "close other programs: the kernel kills processes when memory runs out"
    elif facts.status == -signal.SIGILL:
        advice = f"this build of torch is for a newer processor: {REINSTALL}"
    elif facts.status is None and step == "load":
        advice = f"see whether the disk is busy or very slow, and try again; if it stays, {advice}"
    return fault(name, said, fix=advice, code="TORCH-BROKEN")


def _how_it_ended(facts: TrialFacts) -> str:
    if facts.status is None:
        return f"did not end within {TRIAL_S:.0f} s"
    if -facts.status in set(signal.Signals):
        return f"crashed with {signal.Signals(-facts.status).name}"
    last = facts.tail.strip().rpartition("\n")[2]
    return f"failed: {last[-TAIL_CHARACTERS:] or f'exit status {facts.status}'}"


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def torch_trial(subject: Subject, learned: Learned, tell: Tell) -> None:
    config = subject.config
    if config.seed:
        tell(good("torch", "not needed: a seed does not train"))
        return
    if config.ranks_host:
        tell(good("torch", "not tried out: torchrun starts the ranks, maybe on other machines"))
        return
    on_gpu = config.device == "cuda" or (
        config.device == "auto" and gpus.has_nvidia_gpu(gpus.DEVICES, os.environ)
    )
    # Two ranks cannot share a GPU. On processors, a second rank shows that loopback works.
    ranks = 1 if on_gpu and config.ranks == 1 else 2
    device = "cuda" if on_gpu else "cpu"
    facts = try_out(subject.python, device, ranks, threads=config.threads, deadline_s=TRIAL_S)
    if report := facts.done.get("multiply"):
        learned.operations_per_s = report["operations_per_s"] * config.ranks
    for finding in judge_trial(facts):
        tell(finding)


@dataclass(slots=True)
class _Rank:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]
    killed: bool = field(default=False)

    def facts(self) -> TrialFacts:
        status = None if self.killed else self.process.returncode
        return TrialFacts(_reports(_text(self.output)), status, _text(self.errors))


def try_out(python: str, device: str, ranks: int, *, threads: int, deadline_s: float) -> TrialFacts:
    """Run the trial in `ranks` processes, and return the facts of the first that failed; those of
    rank 0 if none did. No process is left when this returns."""
    with ExitStack() as stack:
        # As in a trainer, rank 0 gets a socket that is bound already, so no port can be lost.
        store = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port, started = store.getsockname()[1], list[_Rank]()
        stack.callback(_kill, started)
        for rank in range(ranks):
            output, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            command = [python, "-m", "p2ptrain.trainer.tools.device_trial", "--device", device]
            process = subprocess.Popen(
                command + ["--store-fd", str(store.fileno())] * (rank == 0),
                pass_fds=(store.fileno(),) * (rank == 0),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment_of_rank(rank, ranks, port, threads),
                start_new_session=True,
            )
            started.append(_Rank(process, output, errors))
        failed = _await(started, time.monotonic() + deadline_s)
        if failed is None and any(each.process.returncode is None for each in started):
            for each in started:
                each.killed = each.process.returncode is None
            failed = next(each for each in started if each.killed)
        _kill(started)
        return (failed or started[0]).facts()


def _await(ranks: Sequence[_Rank], ends: float) -> _Rank | None:
    """Wait until all ranks have ended well, or one has failed, or the time is up. Return the one
    that failed."""
    while time.monotonic() < ends:
        for rank in ranks:
            if rank.process.poll():
                return rank
        waiting = [rank for rank in ranks if rank.process.returncode is None]
        if not waiting:
            return None
        with suppress(subprocess.TimeoutExpired):
            waiting[0].process.wait(LOOK_S)
    return None


def _kill(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.process.kill()
        rank.process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(OUTPUT_BYTES_MAX).decode(errors="replace")


def _reports(text: str) -> list[Mapping[str, Any]]:
    """Return the lines that are JSON objects. Libraries may print other lines."""
    found: list[Mapping[str, Any]] = []
    for line in text.splitlines():
        with suppress(ValueError):
            if isinstance(report := json.loads(line), dict):
                found.append(report)
    return found
