"""Real trainer processes, with one rank and with two. They are killed, stopped and frozen, lose
their node, and get blocks that cannot be read."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from p2ptrain.errors import (
    TrainerDiverged,
    TrainerError,
    TrainerExited,
    TrainerStalled,
    TrainerUnfit,
)
from p2ptrain.ids import Digest
from p2ptrain.ipc.frames import (
    Evaluate,
    Evaluated,
    Failed,
    FragmentReady,
    Frame,
    Hello,
    Load,
    Progress,
    Train,
)
from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ipc.trainer_config import Halving, Optimizer, TrainerConfig
from p2ptrain.ipc.wire import encode
from p2ptrain.trainer.formats.shapes import parameter_count
from p2ptrain.trainer.host.launch import LaunchedRanks, StderrTail
from p2ptrain.trainer.host.micro_batch import UNFIT_EXIT_CODE
from p2ptrain.trainer.host.stall_watch import AnswerTimeout, RestartBudget, StallWatch
from p2ptrain.trainer.host.supervisor import LocalTrainer, Supervisor, failure
from tests.trainer.receiving import receive
from tests.trainer.reference import read, reference

if TYPE_CHECKING:
    from tests.trainer.conftest import Vectors

AnyFrame = TypeVar("AnyFrame", bound=Frame)
DAMAGED = "its checksum does not match its tokens"
Supervise = Callable[..., Supervisor]


@pytest.fixture
def supervise(on_cpu: TrainerConfig, vectors: Vectors) -> Supervise:
    def make(**options: Any) -> Supervisor:
        return Supervisor(on_cpu, vectors.theta_fd, vectors.local_fd, **options)

    return make


@pytest.fixture
def started() -> Iterator[Callable[[Supervisor], LocalTrainer]]:
    running: list[LocalTrainer] = []

    def start(supervisor: Supervisor) -> LocalTrainer:
        running.append(supervisor.start())
        return running[-1]

    yield start
    for trainer in running:
        trainer.kill()


class Clock:
    """A monotonic clock that can run faster than time."""

    def __init__(self) -> None:
        self._rate, self._since, self._shown = 1.0, time.monotonic(), 0.0

    def __call__(self) -> float:
        return self._shown + self._rate * (time.monotonic() - self._since)

    def set_rate(self, rate: float) -> None:
        self._shown, self._since, self._rate = self(), time.monotonic(), rate


def wait_for(trainer: LocalTrainer, kind: type[AnyFrame]) -> AnyFrame:
    while True:
        frame = receive(trainer, timeout_s=0.5)
        if isinstance(frame, kind):
            return frame


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_ranks_train_as_one_and_end_together(
    optimizer: Optimizer,
    on_cpu: TrainerConfig,
    started: Callable[[Supervisor], LocalTrainer],
    vectors: Vectors,
    block_paths: tuple[str, ...],
) -> None:
    config = replace(on_cpu, inner=replace(on_cpu.inner, optimizer=optimizer))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = Halving("cpu", memory, 2)
    trainers = [
        started(Supervisor(each, vectors.theta_fd, vectors.local_fd, ranks=ranks))
        for ranks, each in ((1, config), (2, replace(config, halving=found)))
    ]
    lease, held_out = read(block_paths[:6], config), read(block_paths[6:8], config)
    rates = [learning_rate(config.inner, step) for step in range(len(lease))]
    expected = reference(config, lease, rates)
    evaluated = reference(config, [np.concatenate(held_out)], [0.0])

    hellos = []
    for trainer in trainers:
        vectors.local[:] = np.nan
        hellos.append(wait_for(trainer, Hello))
        for frame in (Load(0), Evaluate(1, block_paths[6:8]), Train(0, block_paths[:6], 0)):
            trainer.send(frame)
        evaluated.assert_alike(losses=[wait_for(trainer, Evaluated).loss])
        told = [wait_for(trainer, Progress) for _ in lease]
        ready = wait_for(trainer, FragmentReady)
        assert ready.loss == pytest.approx(np.mean([each.loss for each in told]))
        np.testing.assert_array_equal(np.isnan(vectors.local), ~vectors.covered)
        expected.assert_alike(
            losses=[each.loss for each in told],
            norms=[each.gradient_norm for each in told],
            weights=np.nan_to_num(vectors.local),
        )
    assert expected.moved > 4.0

    parameters = parameter_count(config.model)
    assert hellos[0] == Hello(0, 1, vectors.layout.digest, parameters, "cpu", 5, memory)
    assert asdict(hellos[1]) == asdict(hellos[0]) | {"ranks": 2, "micro_batch": 2}

    assert trainers[0].stop(deadline_s=120.0) == 0
    os.kill(trainers[1].pids[1], signal.SIGKILL)
    with pytest.raises(TrainerExited) as caught:
        wait_for(trainers[1], Hello)
    assert caught.value.returncode == -signal.SIGKILL
    assert trainers[1].poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("unlucky", "damaged", "said"),
    [
        (0, False, "data block b7 cannot be read: No such file or directory"),
        (1, True, f"another rank reports: data block b7 is rejected: {DAMAGED}"),
    ],
)
def test_ranks_keep_running_if_one_of_them_cannot_read_a_block(
    unlucky: int,
    damaged: bool,
    said: str,
    on_cpu: TrainerConfig,
    started: Callable[[Supervisor], LocalTrainer],
    vectors: Vectors,
    block_paths: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rank runs in a different folder, so the relative path `b7` is a different file for each
    rank."""
    good = Path(block_paths[0]).read_bytes()
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        if rank != unlucky:
            (tmp_path / str(rank) / "b7").write_bytes(good)
        elif damaged:
            (tmp_path / str(rank) / "b7").write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    own_folder = f"import os; os.chdir(os.path.join({str(tmp_path)!r}, os.environ['RANK']))"
    (tmp_path / "sitecustomize.py").write_text(own_folder)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    trainer = started(Supervisor(on_cpu, vectors.theta_fd, vectors.local_fd, ranks=2))
    trainer.send(Load(0))
    trainer.send(Train(0, (block_paths[1], "b7", block_paths[2]), 0))
    failed = wait_for(trainer, Failed)
    assert failed.code == "DATA"
    assert failed.text == said
    trainer.send(Evaluate(7, ("b7",)))
    assert wait_for(trainer, Failed).evaluation == 7
    trainer.send(Train(0, block_paths[3:5], 1))
    assert wait_for(trainer, FragmentReady).blocks == 3


def test_killed_trainer_can_be_restarted_and_continues(
    supervise: Supervise,
    started: Callable[[Supervisor], LocalTrainer],
    block_paths: tuple[str, ...],
) -> None:
    supervisor = supervise(budget=RestartBudget(restarts_max=1))
    trainer = started(supervisor)
    wait_for(trainer, Hello)
    trainer.send(Load(0))
    trainer.send(Train(0, block_paths * 100, 0))
    wait_for(trainer, Progress)
    os.kill(trainer.pids[0], signal.SIGKILL)
    with pytest.raises(TrainerExited) as caught:
        wait_for(trainer, FragmentReady)
    assert caught.value.returncode == -signal.SIGKILL
    with pytest.raises(TrainerExited):
        trainer.send(Load(1))

    again = started(supervisor)
    wait_for(again, Hello)
    again.send(Load(1))
    again.send(Train(1, block_paths[:2], 4))
    assert wait_for(again, FragmentReady).blocks == 2
    with pytest.raises(TrainerError, match="restarted 1 times") as refused:
        supervisor.start()
    assert refused.value.code == "TRAINER-RESTARTS"


def test_frozen_trainer_counts_as_stalled_and_can_be_killed(
    supervise: Supervise,
    started: Callable[[Supervisor], LocalTrainer],
    block_paths: tuple[str, ...],
) -> None:
    clock = Clock()
    trainer = started(supervise(clock=clock))
    trainer.send(Load(0))
    trainer.send(Train(0, block_paths[:3], 0))
    wait_for(trainer, FragmentReady)
    clock.set_rate(8.0)  # Only now: a busy machine may keep the trainer silent for a long time.
    os.kill(trainer.pids[0], signal.SIGSTOP)
    trainer.send(Train(1, block_paths, 3))
    with pytest.raises(TrainerStalled, match="training, but silent"):
        wait_for(trainer, Progress)
    assert trainer.poll() is None
    assert trainer.kill() == -signal.SIGKILL
    assert trainer.stop(deadline_s=1.0) == -signal.SIGKILL


def test_suspended_node_does_not_consider_its_trainer_stalled() -> None:
    """The node was suspended for 30 s. It checks its trainer before it reads the frame that arrived
    in the meantime."""
    now = 100.0
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(["sleep", "600"])
    nothing, lifeline = os.pipe()
    launched = LaunchedRanks((process,), ours, lifeline, StderrTail(nothing))
    trainer = LocalTrainer(
        launched, StallWatch(now, AnswerTimeout(start_limit_s=10.0)), 1, lambda: now
    )
    trainer.check()
    now = 130.0
    theirs.sendall(encode(Hello(0, 1, Digest("0" * 64), 100, "cpu", 1)))
    trainer.check()
    assert [frame.kind for frame in trainer.feed(ours.recv(1 << 16))] == ["hello"]
    trainer.check()
    assert trainer.kill() == -signal.SIGKILL
    theirs.close()


@pytest.mark.parametrize("useful", [False, True])
def test_node_gives_up_on_trainers_that_hang_at_every_start(
    supervise: Supervise, useful: bool
) -> None:
    """A hang is noticed only after three minutes, so the limit on restarts within ten minutes is
    never reached."""
    now, starts, theirs = 0.0, 0, []

    def launch(*_: object) -> LaunchedRanks:
        ours, other = socket.socketpair()
        theirs.append(other)
        nothing, lifeline = os.pipe()
        return LaunchedRanks((), ours, lifeline, StderrTail(nothing))

    supervising = supervise(launch=launch, clock=lambda: now)
    with ExitStack() as ended:
        if not useful:
            ended.enter_context(pytest.raises(TrainerError, match="TRAINER-RESTARTS"))
        while starts < 100:
            trainer = supervising.start()
            starts += 1
            trainer.useful = useful and starts % 5 == 0
            for _ in range(181):
                now += 1.0
                with suppress(TrainerStalled):
                    trainer.check()
            with pytest.raises(TrainerStalled):
                trainer.check()
            trainer.kill()
    assert starts == (100 if useful else 6)
    for each in theirs:
        each.close()


@pytest.mark.parametrize(
    ("arena_bytes", "access", "status", "error", "words"),
    [
        (64, os.O_RDWR, UNFIT_EXIT_CODE, TrainerUnfit, "the arena holds 64 bytes"),
        (2**20, os.O_RDONLY, 1, TrainerExited, "Permission denied"),
    ],
    ids=["unfit", "unforeseen"],
)
def test_output_of_a_failing_trainer_is_kept_and_it_exits_promptly(
    arena_bytes: int,
    access: int,
    status: int,
    error: type[TrainerExited],
    words: str,
    config: TrainerConfig,
    vectors: Vectors,
    started: Callable[[Supervisor], LocalTrainer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # At exit, the process waits, as NCCL does for other ranks.
    waits = "import atexit, time; atexit.register(time.sleep, 600)"
    (tmp_path / "sitecustomize.py").write_text(waits)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "theta").write_bytes(bytes(arena_bytes))
    theta_fd = os.open(tmp_path / "theta", access)
    trainer = started(Supervisor(config, theta_fd, vectors.local_fd))
    os.close(theta_fd)
    while trainer.socket.recv(4096):
        pass
    with pytest.raises(TrainerExited) as caught:
        trainer.feed(b"")
    assert (type(caught.value), caught.value.returncode) == (error, status)
    assert words in caught.value.stderr_tail
    assert ("Traceback" in caught.value.stderr_tail) == (error is TrainerExited)


def test_trainer_does_not_outlive_its_node(tmp_path: Path, config: TrainerConfig) -> None:
    program = (
        "import os, sys\n"
        "from p2ptrain.ipc.trainer_config import Optimizer, TrainerConfig\n"
        "from p2ptrain.trainer.host.supervisor import Supervisor\n"
        "fd = os.memfd_create('arena'); os.ftruncate(fd, 2**20)\n"
        "trainer = Supervisor(TrainerConfig.from_json(sys.argv[1]), fd, fd).start()\n"
        "print(trainer.pids[0], flush=True)\n"
        "sys.stdin.read()\n"
    )
    node = subprocess.Popen(
        [sys.executable, "-c", program, config.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with node:
        assert node.stdout is not None
        trainer_fd = os.pidfd_open(int(node.stdout.readline()))
        node.kill()
    ended, _, _ = select.select([trainer_fd], [], [], 120.0)
    os.close(trainer_fd)
    assert ended


@pytest.mark.parametrize(
    ("code", "error"), [("NAN", TrainerDiverged), ("DATA", TrainerError), ("ORDER", TrainerError)]
)
def test_failed_frame_is_raised_as_the_matching_error(code: str, error: type[TrainerError]) -> None:
    raised = failure(Failed(code, "words"))
    assert (type(raised), raised.code, raised.what) == (error, code, "words")


def test_modules_that_nodes_import_do_not_load_torch_or_trio() -> None:
    program = (
        "import sys, p2ptrain.trainer.host.supervisor, p2ptrain.trainer.formats.genesis\n"
        "import p2ptrain.ipc.learning_rate, p2ptrain.data.blocks, p2ptrain.ipc.channel\n"
        "print(*sorted({'torch', 'trio', 'libp2p', 'tokenizers'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (loaded.returncode, loaded.stdout.strip()) == (0, ""), loaded.stderr
