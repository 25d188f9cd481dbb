"""Whether this machine can do what it is about to do, found out before anybody waits for it.

A fault is what cannot work whatever else happens; then the node does not start.  A doubt may turn
out well, and is told.  So a fault counts what there is in all, and only a doubt what is free now.
Before a newcomer knows its run, devices and ports alone can be judged; the rest is once it does.

Not judged here: how many files may be open (`cli.machine` raises that limit first), whether the
control plane's port is free (it is listened on at once), and what a GPU can hold, which its trainer
knows and finds a way around (`trainer.fitting`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import try_listening
from p2ptrain.errors import MachineUnfit
from p2ptrain.ids import RunId
from p2ptrain.observe.states import size
from p2ptrain.prepare.node_memory import memory_of
from p2ptrain.run import Run, RunManifest
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.host import gpus
from p2ptrain.trainer.host.cost import trainer_memory
from p2ptrain.trainer.host.torchrun_trainer import open_door

OTHER_GPUS = ("kfd", "dxg")
"""There: AMD's driver, and what WSL has for any. Whether torch can use them is for users to say."""

CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Under /sys/fs/cgroup, of either version: what a container was given."""

CGROUP = Path("/sys/fs/cgroup")

CPU_INFO = Path("/proc/cpuinfo")

BF16_FLAGS = frozenset({"avx512bw", "avx_ne_convert", "bf16"})
"""Of x86 and ARM: where oneDNN multiplies in bf16 for torch. A test asks torch on this machine."""

RANK_SHM_BYTES = 32 << 20
"""NCCL's buffers between two ranks of one machine; containers have 64 MiB for all unless told."""


@dataclass(frozen=True, slots=True)
class Machine:
    """In bytes."""

    memory: int
    """That this node could ever have, swap included."""
    memory_free: int
    disk_free: int
    stored: int
    """What is in the store already."""
    shm: int | None
    """Of /dev/shm, where there is one."""
    has_gpu: bool
    takes_gpu: bool
    """Whether `auto` is a GPU."""
    has_torch: bool
    has_bf16: bool
    """Whether the CPU has instructions for it."""


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    what: str
    do: str
    is_fault: bool = False


def check(config: NodeConfig, home: Home, run: Run | None) -> list[Finding]:
    """The doubts. Blocks for as long as it takes to look at every file of the store.

    Raises:
        MachineUnfit: a fault; MEM-HOST, DISK-LOW, GPU-NONE, EXTRA-MISSING.
        ConfigError: the data plane's port cannot be had.
        TrainerError: nor can the ranks'.
    """
    try_listening(config.data_host, config.data_port)
    if config.ranks_host and not config.seed:
        open_door(config.ranks_host, config.ranks_port).close()
    found = list(findings(config, machine_of(home), run))
    _require_none_is_a_fault(found)
    return found


def check_publishing(home: Home, numel: int) -> None:
    """Whether the first weights of a run of `numel` elements can be made in `home`.

    Raises MachineUnfit: MEM-HOST, DISK-LOW.
    """
    _require_none_is_a_fault(list(publishing_findings(machine_of(home), numel)))


def _require_none_is_a_fault(found: list[Finding]) -> None:
    for each in found:
        if each.is_fault:
            raise MachineUnfit(
                each.what,
                code=each.code,
                evidence=[other.what for other in found if other is not each],
                do=each.do,
            )


def findings(config: NodeConfig, machine: Machine, run: Run | None) -> Iterator[Finding]:
    """All that is to be said of `machine`. Pure."""
    if not config.seed and not config.ranks_host:
        yield from _devices(config, machine)
    if run is not None:
        if not config.observes:  # Its θ and m are never written to, and so take no memory.
            yield from _memory(config, machine, run)
        yield from _disk(config, machine, run)


def publishing_findings(machine: Machine, numel: int) -> Iterator[Finding]:
    """θ is made whole in memory. On disk m takes no more than a chunk: it is zero throughout, and
    equal chunks are stored once. Pure."""
    theta, room = 4 * numel, machine.disk_free + machine.stored
    if theta > machine.memory:
        yield Finding(
            "MEM-HOST",
            f"first weights of {size(theta)} are made in memory, and there are "
            f"{size(machine.memory)}",
            "publish from a machine that has more memory, or add swap",
            is_fault=True,
        )
    if theta > room:
        yield Finding(
            "DISK-LOW",
            f"first weights of {size(theta)} are stored, and there is room for {size(room)}",
            "make room, or give --home a folder on a larger disk",
            is_fault=True,
        )


def _devices(config: NodeConfig, machine: Machine) -> Iterator[Finding]:
    if not machine.has_torch:
        yield Finding(
            "EXTRA-MISSING",
            "torch is not installed here, and a node that trains needs it",
            "scripts/setup without P2PTRAIN_TORCH installs it; or --seed, which trains nothing",
            is_fault=True,
        )
    if config.device == "cuda" and not machine.has_gpu:
        yield Finding(
            "GPU-NONE",
            "a GPU was asked for, and this machine shows none",
            "--device cpu; or install the driver; a container needs --gpus all",
            is_fault=True,
        )
    if config.precision == "bf16" and not machine.has_bf16 and _on_cpu(config, machine):
        yield Finding(
            "BF16-SLOW",
            "this processor has no instructions for bf16: fp32 is some 20 times as fast on it",
            "leave out --precision",
        )
    wanted = config.ranks * RANK_SHM_BYTES
    uses_gpus = machine.has_gpu and not _on_cpu(config, machine)
    if uses_gpus and config.ranks > 1 and machine.shm is not None and machine.shm < wanted:
        yield Finding(
            "SHM-SMALL",
            f"{config.ranks} ranks on GPUs may need {size(wanted)} of /dev/shm, which has "
            f"{size(machine.shm)}",
            "give the container more: --shm-size 1g",
        )


def _on_cpu(config: NodeConfig, machine: Machine) -> bool:
    return config.device == "cpu" or (config.device == "auto" and not machine.takes_gpu)


def _memory(config: NodeConfig, machine: Machine, run: Run) -> Iterator[Finding]:
    node = memory_of(run.id, run.manifest)
    needed = node.of_seed if config.seed else node.total
    if _on_cpu(config, machine) and not config.seed and not config.ranks_host:
        needed += _of_trainer(run.manifest)
    do = "close other programs, or take part from a machine that has more memory"
    if needed > machine.memory:
        what = f"this run takes {size(needed)} of memory here, and there are {size(machine.memory)}"
        yield Finding("MEM-HOST", what, do, is_fault=True)
    elif needed > machine.memory_free:
        free = size(machine.memory_free)
        what = f"this run takes {size(needed)} of memory here; {free} were free at the start"
        yield Finding("MEM-HOST", what, do)


def room_for_activations(run: RunId, manifest: RunManifest, memory: int) -> int:
    """Of so much memory, what a trainer on the CPU may use beside what it and its node keep: half
    of the rest, for others live here as well, and what it takes is an estimate.
    """
    return max(0, memory - memory_of(run, manifest).total - _of_trainer(manifest)) // 2


def _of_trainer(manifest: RunManifest) -> int:
    model, inner, eager = manifest.model, manifest.inner, manifest.sync.eager
    return trainer_memory(model, inner, "fp32", eager=eager).vectors


def _disk(config: NodeConfig, machine: Machine, run: Run) -> Iterator[Finding]:
    """One more snapshot than is kept, since the oldest goes when the next is whole, and two states
    of the inner optimizer, which are as long, for the same reason.
    """
    snapshot = 8 * layout_of(run.manifest.model).numel
    inner = 0 if config.seed or not config.keep_inner else 2 * snapshot
    room = machine.disk_free + machine.stored
    do = "make room, or give --home a folder on a larger disk"
    if snapshot > room:
        what = f"a snapshot of this run has {size(snapshot)}, and there is room for {size(room)}"
        yield Finding("DISK-LOW", what, do, is_fault=True)
    elif config.keep_snapshots and (config.keep_snapshots + 1) * snapshot + inner > room:
        beside = f", and {size(inner)} of the inner optimizer" if inner else ""
        what = (
            f"{config.keep_snapshots} snapshots of {size(snapshot)}, and the next one{beside}, "
            f"will not fit on this disk: there is room for {size(room)}"
        )
        yield Finding("DISK-LOW", what, f"--keep-snapshots with a smaller number; or {do}")


# ── what there is ────────────────────────────────────────────────────────────────────────────────


def machine_of(home: Home) -> Machine:
    shm = Path("/dev/shm")
    nvidia = gpus.has_nvidia_gpu(gpus.DEVICES, os.environ)
    return Machine(
        memory=memory_bytes() + psutil.swap_memory().total,
        memory_free=memory_free_bytes(),
        disk_free=shutil.disk_usage(home.root).free,
        stored=stored_bytes(home.store) + stored_bytes(home.inner),
        shm=shutil.disk_usage(shm).total if shm.is_dir() else None,
        has_gpu=nvidia or any((gpus.DEVICES / name).exists() for name in OTHER_GPUS),
        takes_gpu=nvidia,
        has_torch=find_spec("torch") is not None,
        has_bf16=multiplies_bf16(CPU_INFO),
    )


def multiplies_bf16(cpu_info: Path) -> bool:
    """Whether the processor does; taken for granted where the kernel does not say what it has."""
    try:
        words = cpu_info.read_text(errors="replace").split()
    except OSError:
        return True
    return not BF16_FLAGS.isdisjoint(words)


def memory_bytes() -> int:
    """That this node could ever have, swap left out: the same at every start."""
    return min(psutil.virtual_memory().total, container_limit(CGROUP))


def memory_free_bytes() -> int:
    """That a program may still take without swapping."""
    return min(psutil.virtual_memory().available, container_limit(CGROUP))


def container_limit(cgroup: Path) -> int:
    """What this process's container may have; more than any machine has, where nobody says."""
    limits = [1 << 62]
    for name in CGROUP_LIMITS:
        try:
            limits.append(int((cgroup / name).read_text()))
        except (OSError, ValueError):
            continue
    return min(limits)


def stored_bytes(folder: Path) -> int:
    """Of all files under `folder`; those that go meanwhile do not count."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue
    return total
