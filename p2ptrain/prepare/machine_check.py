"""Check that this machine can run a node, before the node joins a run.

A finding is a fault or a warning. With a fault, the node could not work, and it does not start.
With a warning, the node may work, and it starts. So faults depend on the machine's total memory,
and only warnings depend on the memory that is free now. A new node does not know its run yet; then
only devices and ports are checked. Memory and disk are checked once it has the manifest.

Three things are not checked here. `open_files` raises the limit on open files before this check.
The control plane binds its port at the start. Only the trainer knows how many sequences fit
on a GPU at once, and it adapts their number (`trainer.host.micro_batch`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import try_listening
from p2ptrain.errors import MachineUnfit, counted
from p2ptrain.ids import RunId
from p2ptrain.observe.states import size
from p2ptrain.prepare.node_memory import memory_of
from p2ptrain.run import Run, RunManifest
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.host import gpus
from p2ptrain.trainer.host.cost import trainer_memory
from p2ptrain.trainer.host.torchrun_trainer import open_door

OTHER_GPUS = ("kfd", "dxg")
"""Names in /dev of AMD's driver and of WSL. Only the user knows whether torch can use such a GPU.
"""

CGROUP = Path("/sys/fs/cgroup")
CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""The files in `CGROUP` with a container's memory limit, for both versions of cgroups."""

CPU_INFO = Path("/proc/cpuinfo")

BF16_FLAGS = frozenset({"avx512bw", "avx_ne_convert", "bf16"})
"""CPU flags of x86 and ARM with which oneDNN multiplies in bf16 for torch. A test compares them
with torch's own answer."""

RANK_SHM_BYTES = 32 << 20
"""Bytes of /dev/shm for each rank: NCCL's buffers between two ranks on one machine. By default, a
container has 64 MiB for all ranks."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of this machine; sizes are in bytes."""

    memory: int
    """Memory and swap that this node would have if no other program ran."""
    memory_free: int
    """Memory that is available now without swapping."""
    disk_free: int
    stored: int
    """Bytes already used by the store."""
    shm: int | None
    """The size of /dev/shm, if there is one."""
    has_gpu: bool
    takes_gpu: bool
    """Whether `--device auto` chooses a GPU."""
    has_torch: bool
    has_bf16: bool
    """Whether the CPU has instructions for bf16."""


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """A fault, or a warning, about this machine. `do` says what the user can do about it."""

    code: str
    what: str
    do: str
    is_fault: bool = False


FREE_DISK = "free some disk space, or set --home to a folder on a larger disk"


def check(
    config: NodeConfig, home: Home, run: Run | None, machine: Machine | None = None
) -> list[MachineFinding]:
    """Return the warnings about `machine`, which is by default the machine that runs this. The call
    blocks while it adds up the sizes of all files of the store.

    Raises:
        MachineUnfit: there is a fault: MEM-HOST, DISK-LOW, GPU-NONE, EXTRA-MISSING.
        ConfigError: the data plane's port cannot be bound.
        TrainerError: the ranks' port cannot be bound.
    """
    try_listening(config.data_host, config.data_port)
    if config.ranks_host and not config.seed:
        open_door(config.ranks_host, config.ranks_port).close()
    found = list(findings(config, machine or machine_of(home), run))
    _require_none_is_a_fault(found)
    return found


def check_publishing(home: Home, numel: int) -> None:
    """Check that the first weights of a run of `numel` elements can be created in `home` (the
    folder with the organiser's files).

    Raises MachineUnfit: MEM-HOST, DISK-LOW.
    """
    _require_none_is_a_fault(list(_publishing(machine_of(home), numel)))


def _require_none_is_a_fault(found: list[MachineFinding]) -> None:
    for each in found:
        if each.is_fault:
            raise MachineUnfit(
                each.what,
                code=each.code,
                evidence=[other.what for other in found if other is not each],
                do=each.do,
            )


def findings(config: NodeConfig, machine: Machine, run: Run | None) -> Iterator[MachineFinding]:
    """Yield all faults and warnings about `machine`. Pure."""
    if not config.seed and not config.ranks_host:
        yield from _devices(config, machine)
    if run is not None:
        if not config.observes:  # θ and m take no memory in a node that only follows the ledger.
            yield from _memory(config, machine, run)
        yield from _disk(config, machine, run)


def _publishing(machine: Machine, numel: int) -> Iterator[MachineFinding]:
    """Yield faults that prevent `machine` from creating the first weights (θ and the momentum m).

    The whole θ is created in memory. On disk, m takes only one chunk, because it is zero and equal
    chunks are stored once.
    """
    theta, room = 4 * numel, machine.disk_free + machine.stored
    takes = f"the first weights take {size(theta)} of"
    if theta > machine.memory:
        what = f"{takes} memory, but this machine has only {size(machine.memory)}"
        do = "publish from a machine with more memory, or add swap"
        yield MachineFinding("MEM-HOST", what, do, is_fault=True)
    if theta > room:
        what = f"{takes} disk, but only {size(room)} are free"
        yield MachineFinding("DISK-LOW", what, FREE_DISK, is_fault=True)


def _devices(config: NodeConfig, machine: Machine) -> Iterator[MachineFinding]:
    if not machine.has_torch:
        yield MachineFinding(
            "EXTRA-MISSING",
            "torch is not installed, but a node that trains needs it",
            "run scripts/setup without P2PTRAIN_TORCH, which installs torch; or use --seed, "
            "to serve the run without training",
            is_fault=True,
        )
    if config.device == "cuda" and not machine.has_gpu:
        yield MachineFinding(
            "GPU-NONE",
            "you set --device cuda, but no GPU was found on this machine",
            "use --device cpu, or install the driver; a container needs --gpus all",
            is_fault=True,
        )
    if config.precision == "bf16" and not machine.has_bf16 and _on_cpu(config, machine):
        yield MachineFinding(
            "BF16-SLOW",
            "this CPU has no instructions for bf16; fp32 is about 20 times as fast on it",
            "leave out --precision",
        )
    wanted = config.ranks * RANK_SHM_BYTES
    uses_gpus = machine.has_gpu and not _on_cpu(config, machine)
    if uses_gpus and config.ranks > 1 and machine.shm is not None and machine.shm < wanted:
        yield MachineFinding(
            "SHM-SMALL",
            f"{config.ranks} ranks on GPUs may need {size(wanted)} of /dev/shm, which has only "
            f"{size(machine.shm)}",
            "give the container more shared memory: --shm-size 1g",
        )


def _on_cpu(config: NodeConfig, machine: Machine) -> bool:
    return config.device == "cpu" or (config.device == "auto" and not machine.takes_gpu)


def _memory(config: NodeConfig, machine: Machine, run: Run) -> Iterator[MachineFinding]:
    needed = memory_needed(config, machine, run)
    takes = f"this run takes {size(needed)} of memory, but"
    do = "close other programs, or use a machine with more memory"
    if needed > machine.memory:
        what = f"{takes} this machine has only {size(machine.memory)}"
        yield MachineFinding("MEM-HOST", what, do, is_fault=True)
    elif needed > machine.memory_free:
        what = f"{takes} only {size(machine.memory_free)} were free when the node started"
        yield MachineFinding("MEM-HOST", what, do)


def memory_needed(config: NodeConfig, machine: Machine, run: Run) -> int:
    """Return the bytes of this machine's memory that the model takes in the node and, if it
    computes on the CPU, in the trainer, without activations."""
    node = memory_of(run.id, run.manifest)
    needed = node.of_seed if config.seed else node.total
    if _on_cpu(config, machine) and not config.seed and not config.ranks_host:
        needed += _of_trainer(run.manifest)
    return needed


def room_for_activations(run: RunId, manifest: RunManifest, memory: int) -> int:
    """Return the memory in bytes that a trainer on CPUs may use for activations: half of `memory`,
    after the vectors of node and trainer. The other half is for other programs and for errors in
    the estimate."""
    return max(0, memory - memory_of(run, manifest).total - _of_trainer(manifest)) // 2


def _of_trainer(manifest: RunManifest) -> int:
    model, inner, eager = manifest.model, manifest.inner, manifest.sync.eager
    return trainer_memory(model, inner, "fp32", eager=eager).vectors


def _disk(config: NodeConfig, machine: Machine, run: Run) -> Iterator[MachineFinding]:
    """Yield faults and warnings about the disk. A node needs room for one more snapshot than it
    keeps, because the oldest is deleted only when the next one is complete. For the same reason the
    node needs room for two states of the inner optimizer, each as large as a snapshot."""
    snapshot, inner = snapshot_bytes(run), inner_bytes(config, run)
    room, kept = machine.disk_free + machine.stored, config.keep_snapshots
    has = f"only {size(room)} of disk are free for this node"
    if snapshot > room:
        what = f"a snapshot of this run takes {size(snapshot)}, but {has}"
        yield MachineFinding("DISK-LOW", what, FREE_DISK, is_fault=True)
    elif kept and (kept + 1) * snapshot + inner > room:
        beside = f", and the inner optimizer takes {size(inner)}" if inner else ""
        each = f"{counted(kept, 'snapshot')} and the next one take {size(snapshot)} each"
        what = f"{each}{beside}, but {has}"
        do = f"set --keep-snapshots to a smaller number, or {FREE_DISK}"
        yield MachineFinding("DISK-LOW", what, do)


def snapshot_bytes(run: Run) -> int:
    """Return the size of a snapshot of `run`."""
    return 8 * layout_of(run.manifest.model).numel


def inner_bytes(config: NodeConfig, run: Run) -> int:
    """Return the disk space for the states of the inner optimizer; 0 if the node keeps none."""
    return 0 if config.seed or not config.keep_inner else 2 * snapshot_bytes(run)


# ── measurements ─────────────────────────────────────────────────────────────────────────────────


def machine_of(home: Home) -> Machine:
    """Measure this machine. `home` is the folder with the node's files."""
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
    """Return whether the CPU has instructions for bf16. Return True if the kernel does not list the
    CPU's flags, since the answer is then unknown."""
    try:
        words = cpu_info.read_text(errors="replace").split()
    except OSError:
        return True
    return not BF16_FLAGS.isdisjoint(words)


def memory_bytes() -> int:
    """Return the memory without swap that this node would have if no other program ran. The number
    is the same at every start."""
    return min(psutil.virtual_memory().total, container_limit(CGROUP))


def memory_free_bytes() -> int:
    """Return the memory that is available without swapping."""
    return min(psutil.virtual_memory().available, container_limit(CGROUP))


def container_limit(cgroup: Path) -> int:
    """Return the memory limit of this process's container; 2^62 if there is none."""
    limit = 1 << 62
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            limit = min(limit, int((cgroup / name).read_text()))
    return limit


def stored_bytes(folder: Path) -> int:
    """Return the total size of all files under `folder`. Ignore files that disappear meanwhile."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total
