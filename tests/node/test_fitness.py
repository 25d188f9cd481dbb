"""Before a node starts, it checks its machine: a lack that makes the run impossible here is a
fault, and a resource that may run short causes a warning."""

from __future__ import annotations

import socket
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from p2ptrain.archive.home import Home
from p2ptrain.archive.update_format import published_formats
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import ConfigError, MachineUnfit, TrainerError
from p2ptrain.node.observer import as_observer
from p2ptrain.prepare import machine_check
from p2ptrain.prepare.machine_check import (
    Machine,
    check,
    container_limit,
    findings,
    memory_bytes,
    multiplies_bf16,
    room_for_activations,
    stored_bytes,
)
from p2ptrain.run import Run
from p2ptrain.testing.published import publish
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.host import gpus

AMPLE = Machine(
    memory=1 << 40,
    memory_free=1 << 40,
    disk_free=1 << 40,
    stored=0,
    shm=1 << 30,
    has_gpu=True,
    takes_gpu=True,
    has_torch=True,
    has_bf16=True,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def run(home: Home) -> Run:
    return publish(home)


@pytest.fixture
def config(home: Home) -> NodeConfig:
    return NodeConfig(home.root, device="cpu", data_host="127.0.0.1")


def said(config: NodeConfig, machine: Machine, run: Run | None) -> list[tuple[str, bool]]:
    """Return the code of each finding, and whether it is a fault rather than a warning."""
    return [(each.code, each.is_fault) for each in findings(config, machine, run)]


def test_machine_with_plenty_of_resources_gets_no_warning(config: NodeConfig, run: Run) -> None:
    for each in (config, replace(config, device="cuda", ranks=8), replace(config, seed=True)):
        assert said(each, AMPLE, run) == said(each, AMPLE, None) == []


def test_only_nodes_that_start_trainers_need_torch(config: NodeConfig, run: Run) -> None:
    without = replace(AMPLE, has_torch=False)
    assert said(config, without, None) == [("EXTRA-MISSING", True)]
    elsewhere = replace(config, ranks_host="127.0.0.1", ranks_port=4203)
    for each in (replace(config, seed=True), elsewhere):
        assert said(each, without, run) == []


def test_too_little_memory_is_a_fault_but_memory_in_use_is_a_warning(
    config: NodeConfig, run: Run
) -> None:
    vector = 4 * layout_of(run.manifest.model).numel
    (finding,) = findings(config, replace(AMPLE, memory=8 * vector, memory_free=0), run)
    assert finding.is_fault
    assert finding.what.startswith("this run takes ")
    assert said(config, replace(AMPLE, memory_free=8 * vector), run) == [("MEM-HOST", False)]
    # On a GPU the trainer's vectors are in GPU memory. A seed keeps θ and m, and applies updates.
    on_gpu, seed = replace(config, device="cuda"), replace(config, seed=True)
    assert said(on_gpu, replace(AMPLE, memory=8 * vector), run) == []
    assert said(on_gpu, replace(AMPLE, memory=3 * vector), run) == [("MEM-HOST", True)]
    either, eight = replace(config, device="auto"), replace(AMPLE, memory=8 * vector)
    assert said(either, eight, run) == []
    assert said(either, replace(eight, takes_gpu=False), run) == [("MEM-HOST", True)]
    needed = 2 * vector + published_formats(run.id, run.manifest)[0].payload_bytes
    assert said(seed, replace(AMPLE, memory=needed - 1), run) == [("MEM-HOST", True)]
    assert said(seed, replace(AMPLE, memory=needed), run) == []


def test_observer_needs_no_memory_for_theta(config: NodeConfig, run: Run) -> None:
    """An observer only fetches and stores snapshots. It does not load them."""
    vector = 4 * layout_of(run.manifest.model).numel
    small = replace(AMPLE, memory=2 * vector - 1, memory_free=0)
    assert said(replace(config, seed=True), small, run) == [("MEM-HOST", True)]
    assert said(as_observer(config), small, run) == []
    assert said(as_observer(config), replace(small, disk_free=0), run) == [("DISK-LOW", True)]


def test_activations_get_half_of_the_memory_that_node_and_trainer_leave(
    config: NodeConfig, run: Run
) -> None:
    """If the memory does not suffice for node and trainer, activations get nothing."""
    machine = replace(AMPLE, memory=1 << 20)
    assert said(config, machine, run) == []

    def is_enough(memory: int) -> bool:
        found = findings(config, replace(machine, memory=memory), run)
        return not any(each.is_fault for each in found)

    kept = bisect_left(range(1 << 20), True, key=is_enough)
    rooms = [room_for_activations(run.id, run.manifest, kept + more) for more in (-99, 0, 10, 99)]
    assert rooms == [0, 0, 5, 49]
    assert 0 < memory_bytes() <= psutil.virtual_memory().total


def test_space_that_stored_data_already_take_is_not_needed_again(
    config: NodeConfig, run: Run
) -> None:
    snapshot = 8 * layout_of(run.manifest.model).numel
    full = replace(AMPLE, disk_free=0)
    assert said(config, full, run) == [("DISK-LOW", True)]
    assert said(config, replace(full, stored=snapshot), run) == [("DISK-LOW", False)]
    # The inner optimizer's state takes as much space as a snapshot. While a new state is written,
    # the disk holds two of them.
    three, five = (replace(full, stored=count * snapshot) for count in (3, 5))
    assert said(config, five, run) == []
    assert said(config, three, run) == [("DISK-LOW", False)]
    for less in (replace(config, keep_inner=False), replace(config, seed=True)):
        assert said(less, three, run) == []
    everything = replace(config, keep_snapshots=None)
    assert said(everything, replace(full, stored=snapshot), run) == []


def test_requested_gpu_must_exist_if_the_node_starts_the_ranks(
    config: NodeConfig,
) -> None:
    none, asked = replace(AMPLE, has_gpu=False), replace(config, device="cuda")
    assert said(asked, none, None) == [("GPU-NONE", True)]
    elsewhere = replace(asked, ranks_host="127.0.0.1")
    for each in (replace(config, device="auto"), replace(asked, seed=True), elsewhere):
        assert said(each, none, None) == []


@pytest.mark.parametrize(
    ("names", "visible", "has_one"),
    [
        (["nvidia0", "nvidiactl"], None, True),
        (["nvidia3", "nvidiactl", "nvidia-uvm"], "GPU-5f3e", True),
        (["nvidia0"], "", False),
        (["nvidia0"], "-1", False),
        (["nvidiactl", "nvidia-caps"], None, False),
        (["kfd", "dxg"], None, False),
    ],
)
def test_gpu_is_found_unless_its_device_file_is_missing_or_it_is_hidden(
    names: list[str], visible: str | None, has_one: bool, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).touch()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus.has_nvidia_gpu(tmp_path, environment) == has_one


def test_bf16_on_a_cpu_without_bf16_instructions_gets_a_warning(config: NodeConfig) -> None:
    old, asked = replace(AMPLE, has_bf16=False, takes_gpu=False), replace(config, precision="bf16")
    assert said(asked, old, None) == [("BF16-SLOW", False)]
    assert said(replace(asked, device="auto"), old, None) == [("BF16-SLOW", False)]
    for each in (config, replace(asked, seed=True), replace(asked, ranks_host="127.0.0.1")):
        assert said(each, old, None) == []
    assert said(replace(asked, device="auto"), replace(old, takes_gpu=True), None) == []


@pytest.mark.needs_torch
def test_linux_and_torch_agree_whether_the_cpu_multiplies_bf16(tmp_path: Path) -> None:
    from p2ptrain.trainer.rank.bf16_emulation import multiplies_bf16 as as_torch_says

    assert multiplies_bf16(machine_check.CPU_INFO) == as_torch_says("cpu")
    assert multiplies_bf16(tmp_path / "not there")


def test_small_shared_memory_is_a_warning_for_several_ranks_on_gpus(config: NodeConfig) -> None:
    small = replace(AMPLE, shm=64 << 20)
    four = replace(config, device="auto", ranks=4)
    assert said(four, small, None) == [("SHM-SMALL", False)]
    for each in (replace(four, ranks=1), replace(four, device="cpu")):
        assert said(each, small, None) == []
    assert said(four, replace(small, shm=None), None) == []
    assert said(four, replace(small, takes_gpu=False), None) == []
    assert said(replace(four, device="cuda"), small, None) == [("SHM-SMALL", False)]


def test_error_names_the_fault_and_the_warnings(home: Home, config: NodeConfig, run: Run) -> None:
    tight = replace(AMPLE, memory_free=0, disk_free=0)
    with pytest.raises(MachineUnfit) as caught:
        check(config, home, run, tight)
    assert (caught.value.code, caught.value.exit_code) == ("DISK-LOW", 4)
    assert len(caught.value.evidence) == 1
    assert "0 bytes were free when the node started" in caught.value.evidence[0]


@pytest.mark.needs_torch
def test_machine_of_the_tests_has_no_fault_for_a_tiny_run(
    home: Home, config: NodeConfig, run: Run
) -> None:
    assert [each for each in check(config, home, run) if each.is_fault] == []


@pytest.mark.needs_torch
def test_port_in_use_is_reported_by_the_check(home: Home, config: NodeConfig) -> None:
    """The check runs before the node joins a run, so the user learns of the port at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as data:
            check(replace(config, data_port=port), home, None)
        with pytest.raises(TrainerError) as ranks:
            check(replace(config, ranks_host="127.0.0.1", ranks_port=port), home, None)
    assert (data.value.code, ranks.value.code) == ("PORT-IN-USE", "RANKS-LISTEN")
    assert check(replace(config, data_port=port), home, None) == []


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("memory.max", "4096\n", 4096),
        ("memory.max", "max\n", 1 << 62),
        ("memory/memory.limit_in_bytes", "8192\n", 8192),
        ("other", "1", 1 << 62),
    ],
)
def test_memory_limit_of_a_container_is_read(
    name: str, text: str, limit: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert container_limit(tmp_path) == limit


def test_sizes_of_stored_files_are_added_up(tmp_path: Path) -> None:
    assert stored_bytes(tmp_path / "none") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(bytes(3))
    (tmp_path / "a" / "b" / "y").write_bytes(bytes(4))
    assert stored_bytes(tmp_path) == 7
