"""Each judgement turns facts about a machine into the right line, with a fix that helps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.error_codes import CODES
from p2ptrain.config.node import NodeConfig
from p2ptrain.doctor.disk import DiskFacts, judge_space, judge_speed
from p2ptrain.doctor.finding import Finding, Level, exit_status, fault, good, warning
from p2ptrain.doctor.home import (
    HomeFacts,
    LastStop,
    judge_home,
    judge_last_stop,
    last_stop,
)
from p2ptrain.doctor.installation import (
    PackageFacts,
    judge_kernels,
    judge_packages,
    judge_python,
)
from p2ptrain.doctor.machine import (
    BUILT_UNIX,
    ClockFacts,
    judge_clock,
    judge_driver,
    judge_memory,
    judge_open_files,
    judge_shared_memory,
)
from p2ptrain.doctor.ports import PortFacts, judge_port
from p2ptrain.doctor.run_needs import DISK, MEMORY, judge_needs, judge_share, share_of
from p2ptrain.doctor.subject import Learned
from p2ptrain.doctor.torch_trial import TrialFacts, judge_trial
from p2ptrain.doctor.transfer import RateFacts, judge_rates
from p2ptrain.doctor.witnesses import not_asked
from p2ptrain.errors import ConfigError
from p2ptrain.identity import Identity
from p2ptrain.prepare.machine_check import Machine
from p2ptrain.run import Run
from p2ptrain.testing.published import manifest_of, publish
from tests.node.test_fitness import AMPLE

HOME = Path("/srv/node")
CONFIG = NodeConfig(HOME)
GPUS = NodeConfig(HOME, device="cuda", ranks=2)

ON_CPU = replace(AMPLE, has_gpu=False, takes_gpu=False)
PACKAGES = PackageFacts(
    needed=frozenset({"trio", "libp2p"}),
    exact={"libp2p": "0.8.1"},
    pinned={"trio": "0.35.0", "libp2p": "0.8.1"},
    installed={"trio": "0.35.0", "libp2p": "0.8.1", "pip": "25"},
)
OWN = HomeFacts(HOME, True, True, True, 1000, None)
FAST_DISK = DiskFacts(HOME, 10**12, 5e8, 0.001)
STEADY = ClockFacts([(at, BUILT_UNIX + at) for at in (10.0, 10.5, 11.0)])
IN_USE = ConfigError("port 4202 is in use", code="PORT-IN-USE")
PORT = PortFacts("data port", "--data-listen", "0.0.0.0:4202", 4202)
ABSENT = "data port", "--data-listen", "10.9.9.9:4202", 4202
NOT_OURS = ConfigError("the data plane cannot listen on 10.9.9.9", code="ADDR-LISTEN", do="use 0")

LOADED = {"end": "load", "torch": "2.13.0", "seconds": 2.0}
MET = {"end": "meet", "device": "cpu", "free_bytes": 10**9}
MULTIPLIED = {"end": "multiply", "operations_per_s": 8e10, "deviation": 1e-7}
GATHERED = {"end": "gather", "ranks": 2, "is_right": True}
WHOLE = TrialFacts([LOADED, MET, MULTIPLIED, GATHERED], 0)


def of_trial(*reports: dict[str, Any], status: int | None = 1, tail: str = "") -> Finding:
    """Return the last line about a trial that ended with `status` after these reports."""
    return list(judge_trial(TrialFacts(reports, status, tail)))[-1]


def stopped(code: str, reason: str, *, is_recorded: bool = True) -> Finding:
    stop = LastStop(1000.0, code, reason, is_recorded)
    found = judge_last_stop(stop, HOME, CODES, 1000.0 + 7300)
    assert found is not None
    return found


def needs(machine: Machine) -> Finding:
    """Return the judgement of the run's memory or disk that is not good."""
    organiser = Identity.from_seed(b"organiser".ljust(32))
    run = Run.publish(organiser, manifest_of(organiser.peer))
    found = judge_needs(CONFIG, machine, run)
    return next(each for each in found if each.level is not Level.GOOD)


FAULT, WARNING = Level.FAULT, Level.WARNING

PLANTED: list[tuple[str, Any, Level, str, str, str]] = [
    (
        "old Python",
        lambda: judge_python((3, 10, 2), "CPython", "Linux"),
        *(FAULT, "INSTALLATION", "3.11 to 3.13", "P2PTRAIN_PYTHON"),
    ),
    (
        "another system",
        lambda: judge_python((3, 12, 1), "CPython", "Darwin"),
        *(FAULT, "INSTALLATION", "on Darwin", "install"),
    ),
    (
        "missing package",
        lambda: judge_packages(replace(PACKAGES, installed={"libp2p": "0.8.1"})),
        *(FAULT, "INSTALLATION", "packages are missing: trio", "scripts/setup"),
    ),
    (
        "package with which nothing works",
        lambda: judge_packages(
            replace(PACKAGES, installed={"libp2p": "0.9.0", "trio": "0.35.0"}),
        ),
        *(FAULT, "INSTALLATION", "libp2p 0.9.0 (tested: 0.8.1)", "scripts/setup"),
    ),
    (
        "package that was not tested",
        lambda: judge_packages(replace(PACKAGES, installed={"libp2p": "0.8.1", "trio": "1"})),
        *(WARNING, "INSTALLATION", "trio 1 (tested: 0.35.0)", "scripts/setup"),
    ),
    (
        "wrong kernel",
        lambda: judge_kernels(("avx2", "baseline"), "avx2"),
        *(FAULT, "KERNELS", "avx2 kernels compute a wrong result", "delete"),
    ),
    (
        "little free memory",
        lambda: judge_memory(replace(AMPLE, memory_free=10**8)),
        *(WARNING, "MEM-HOST", "100.0 MB are free", "close other programs"),
    ),
    (
        "small /dev/shm",
        lambda: judge_shared_memory(GPUS, replace(AMPLE, shm=1 << 20)),
        *(WARNING, "SHM-SMALL", "has only 1.0 MB", "--shm-size"),
    ),
    (
        "no GPU",
        lambda: judge_driver(GPUS, replace(AMPLE, has_gpu=False, takes_gpu=False), ""),
        *(FAULT, "GPU-NONE", "no GPU was found", "--device cpu"),
    ),
    (
        "a GPU of another vendor",
        lambda: judge_driver(CONFIG, replace(AMPLE, takes_gpu=False), ""),
        *(WARNING, "", "not from NVIDIA", "--device cuda"),
    ),
    (
        "too few open files",
        lambda: judge_open_files(64, 128),
        *(FAULT, "FD-LIMIT", "only 128", "ulimit -n 4096"),
    ),
    (
        "few open files",
        lambda: judge_open_files(256, 1024),
        *(WARNING, "FD-LIMIT", "may open 1024", "LimitNOFILE=4096"),
    ),
    (
        "clock that goes backwards",
        lambda: judge_clock(ClockFacts([(11.0, 5.0), (10.0, 6.0)])),
        *(FAULT, "CLOCK", "went backwards", "clock source"),
    ),
    (
        "clock that jumps",
        lambda: judge_clock(ClockFacts([(10.0, 2e9), (11.0, 2e9 + 3600)])),
        *(WARNING, "CLOCK", "jumped by +3599.0 s", "timedatectl"),
    ),
    (
        "clock of 1970",
        lambda: judge_clock(ClockFacts([(10.0, 5.0), (11.0, 6.0)])),
        *(WARNING, "CLOCK", "1970-01-01", "timedatectl"),
    ),
    (
        "home that is a file",
        lambda: judge_home(replace(OWN, is_folder=False)),
        *(FAULT, "HOME", "is a file", "--home"),
    ),
    (
        "home without permission",
        lambda: judge_home(replace(OWN, is_writable=False, owner_id=0)),
        *(FAULT, "HOME", "may not write to /srv/node: it belongs to user 0", "chown"),
    ),
    (
        "home that cannot be created",
        lambda: judge_home(replace(OWN, exists=False, is_folder=False, is_writable=False)),
        *(FAULT, "HOME", "may not create /srv/node: the folder above it belongs", "--home DIR"),
    ),
    (
        "last stop: identity in use",
        lambda: stopped("ID-IN-USE", "another process uses this identity"),
        *(WARNING, "ID-IN-USE", "2 hours ago: another process", "never copy an identity.key"),
    ),
    (
        "last stop: full disk",
        lambda: stopped("DISK-LOW", "No space left on device"),
        *(WARNING, "DISK-LOW", "No space left on device", "Make room"),
    ),
    (
        "last stop: killed",
        lambda: stopped("", "", is_recorded=False),
        *(WARNING, "NODE-KILLED", "was killed", "out of memory"),
    ),
    (
        "nearly full disk",
        lambda: judge_space(replace(FAST_DISK, free=10**8)),
        *(FAULT, "DISK-LOW", "only 100.0 MB are free", "larger disk"),
    ),
    (
        "rather full disk",
        lambda: judge_space(replace(FAST_DISK, free=10**9)),
        *(WARNING, "DISK-LOW", "only 1.0 GB are free", "larger disk"),
    ),
    (
        "slow disk",
        lambda: judge_speed(replace(FAST_DISK, write_rate=1e6)),
        *(WARNING, "DISK-SLOW", "writes 1.0 MB/s", "local disk"),
    ),
    (
        "slow flush on a full disk",
        lambda: judge_speed(replace(FAST_DISK, write_rate=None, flush_s=0.5)),
        *(WARNING, "DISK-SLOW", "takes 500 ms", "local disk"),
    ),
    (
        "port in use",
        lambda: judge_port(replace(PORT, error=IN_USE, holder="nginx (process 812)")),
        *(FAULT, "PORT-IN-USE", "nginx (process 812) listens", "--data-listen, such as 4204"),
    ),
    (
        "port in use by a program of another user",
        lambda: judge_port(replace(PORT, error=IN_USE)),
        *(FAULT, "PORT-IN-USE", "a program of another user", "4204"),
    ),
    (
        "address of another machine",
        lambda: judge_port(PortFacts(*ABSENT, NOT_OURS)),
        *(FAULT, "ADDR-LISTEN", "cannot listen on 10.9.9.9", "use 0"),
    ),
    (
        "torch that hangs while it loads",
        lambda: of_trial({"begin": "load"}, status=None),
        *(FAULT, "TORCH-BROKEN", "loading torch did not end", "disk is busy"),
    ),
    (
        "torch for a newer processor",
        lambda: of_trial(LOADED, MET, {"begin": "multiply"}, status=-4),
        *(FAULT, "TORCH-BROKEN", "multiplying two matrices crashed with SIGILL", "newer processor"),
    ),
    (
        "torch that the kernel kills",
        lambda: of_trial({"begin": "load"}, status=-9),
        *(FAULT, "TORCH-BROKEN", "crashed with SIGKILL", "close other programs"),
    ),
    (
        "ranks that cannot meet",
        lambda: of_trial(LOADED, {"begin": "meet"}, status=None),
        *(FAULT, "TORCH-BROKEN", "preparing the device did not end", "loopback"),
    ),
    (
        "trainer that cannot be loaded",
        lambda: of_trial(LOADED, {"begin": "meet"}, tail="ImportError: the kernels are missing"),
        *(FAULT, "INSTALLATION", "the kernels are missing", "scripts/setup"),
    ),
    (
        "gathering that fails",
        lambda: of_trial(LOADED, MET, MULTIPLIED, tail="Traceback\nRuntimeError: refused"),
        *(FAULT, "TORCH-BROKEN", "RuntimeError: refused", "loopback"),
    ),
    (
        "device that computes wrong products",
        lambda: next(
            each
            for each in judge_trial(
                TrialFacts([LOADED, MET, MULTIPLIED | {"deviation": float("nan")}, GATHERED], 0)
            )
            if each.name == "device"
        ),
        *(FAULT, "DEVICE-WRONG", "wrong products", "overclocking"),
    ),
    (
        "GPU that other programs use",
        lambda: next(
            each
            for each in judge_trial(
                TrialFacts([LOADED, MET | {"device": "H100"}, MULTIPLIED, GATHERED], 0)
            )
            if each.name == "device"
        ),
        *(WARNING, "GPU-BUSY", "only 1.0 GB of its memory are free", "nvidia-smi"),
    ),
    (
        "driver that does not suit torch",
        lambda: of_trial(
            LOADED,
            {"error": {"code": "GPU-DRIVER", "what": "torch cannot use a GPU", "do": "use cpu"}},
            status=4,
        ),
        *(FAULT, "GPU-DRIVER", "cannot use a GPU", "use cpu"),
    ),
    (
        "run that needs more memory",
        lambda: needs(replace(ON_CPU, memory=1000, memory_free=1000)),
        *(FAULT, "MEM-HOST", "this machine has only 1.0 kB", "more memory"),
    ),
    (
        "run that needs more disk",
        lambda: needs(replace(ON_CPU, disk_free=1000)),
        *(FAULT, "DISK-LOW", "only 1.0 kB of disk", "larger disk"),
    ),
    (
        "slow connection",
        lambda: judge_rates(RateFacts("ann", down=1e6, up=1e5)),
        *(WARNING, "SYNC-SLOW", "8.0 Mbit/s down, 0.8 Mbit/s up", "cable"),
    ),
    (
        "busy member",
        lambda: judge_rates(RateFacts("ann")),
        *(WARNING, "", "ann was busy", "in a minute"),
    ),
    (
        "members that do not help without admission",
        lambda: not_asked(HOME, is_admitted=False, is_own=True, is_running=False),
        *(WARNING, "", "only peers that the run admits", "once the organiser"),
    ),
    (
        "members that are not asked beside a node",
        lambda: not_asked(HOME, is_admitted=True, is_own=False, is_running=True),
        *(WARNING, "", "a node is running here", "p2ptrain status --home /srv/node"),
    ),
    (
        "members that do not help without a key",
        lambda: not_asked(HOME, is_admitted=True, is_own=False, is_running=False),
        *(WARNING, "", "no key yet", "p2ptrain id --home /srv/node"),
    ),
]


@pytest.mark.parametrize(
    ("judge", "level", "code", "said", "fix"),
    [row[1:] for row in PLANTED],
    ids=[row[0] for row in PLANTED],
)
def test_planted_fault_gets_its_line_and_its_fix(
    judge: Any, level: Level, code: str, said: str, fix: str
) -> None:
    found = judge()
    assert (found.level, found.code) == (level, code)
    assert said in found.said
    assert fix in found.fix
    assert not code or code in CODES


def test_healthy_facts_get_good_lines() -> None:
    found = [
        judge_python((3, 12, 1), "CPython", "Linux"),
        judge_packages(PACKAGES),
        judge_kernels(("avx2", "baseline"), ""),
        judge_memory(AMPLE),
        judge_shared_memory(GPUS, AMPLE),
        judge_driver(GPUS, AMPLE, "550.54"),
        judge_open_files(1024, -1),
        judge_clock(STEADY),
        judge_home(OWN),
        judge_home(replace(OWN, exists=False, is_folder=False)),
        judge_home(replace(OWN, in_use_by=4711)),
        stopped("", ""),
        judge_space(FAST_DISK),
        judge_speed(FAST_DISK),
        judge_port(PORT),
        judge_port(replace(PORT, error=IN_USE, is_own_node=True)),
        *judge_trial(WHOLE),
        judge_rates(RateFacts("ann", down=1e8, up=1e8)),
    ]
    assert [each for each in found if each.level is not Level.GOOD] == []


def test_run_that_fits_gets_good_lines_and_an_expected_share(tmp_path: Path) -> None:
    run = publish(Home(tmp_path))
    needs = list(judge_needs(CONFIG, AMPLE, run))
    assert [(each.name, each.level) for each in needs] == [
        (MEMORY, Level.GOOD),
        (DISK, Level.GOOD),
    ]
    share = share_of(run, Learned(operations_per_s=1e12))
    assert not share.is_computed, "so small a model is limited by other things than products"
    assert (share.steps, share.tokens) == (144, 144 * run.manifest.blocks_per_step * 16)
    assert "4,608 tokens a day" in judge_share(share).said


def test_journal_tells_how_the_last_node_ended() -> None:
    started = {"event": "started", "time": 10.0}
    step = {"event": "step", "time": 15.0}
    stop = {"event": "stopped", "time": 20.0, "code": "NAN", "reason": "a loss is not finite"}
    assert last_stop([]) is None
    assert last_stop([{"event": "saved", "time": 1.0}]) is None
    assert last_stop([started, stop]) == LastStop(20.0, "NAN", "a loss is not finite")
    assert last_stop([started, stop, started, step]) == LastStop(15.0, is_recorded=False)


def test_first_fault_decides_the_exit_status() -> None:
    fine, doubt = good("a", "fine"), warning("b", "doubtful", fix="look")
    network = fault("c", "refused", fix="wait", code="NET-REFUSED", status=5)
    machine = fault("d", "full", fix="make room", code="DISK-LOW")
    assert exit_status([fine, doubt]) == 0
    assert exit_status([fine, doubt, network, machine]) == 5
    assert exit_status([machine, network]) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"level": Level.GOOD, "fix": "a fix for nothing"},
        {"level": Level.WARNING},
        {"level": Level.FAULT, "fix": "wait", "code": "OS"},
        {"level": Level.WARNING, "fix": "wait", "status": 4},
    ],
)
def test_contradictory_finding_cannot_exist(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Finding("name", said="words", **wrong)
