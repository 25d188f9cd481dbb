"""If memory runs out, all ranks start again with half as many sequences at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from p2ptrain.errors import TrainerError, TrainerExited, TrainerOutOfMemory
from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import Halving, TrainerConfig
from p2ptrain.ipc.wire import encode
from p2ptrain.trainer.host.cost import trainer_memory
from p2ptrain.trainer.host.launch import LaunchedRanks, StderrTail
from p2ptrain.trainer.host.micro_batch import (
    GPU_SHARE,
    OUT_OF_MEMORY_EXIT_CODE,
    as_found,
    at_once,
    halved,
    is_out_of_memory,
    on_gpu,
    within,
)
from p2ptrain.trainer.host.stall_watch import RestartBudget
from p2ptrain.trainer.host.supervisor import Supervisor
from tests.trainer.receiving import receive

if TYPE_CHECKING:
    from tests.trainer.conftest import Vectors


def test_sequences_at_once_are_halved_until_one_is_left(config: TrainerConfig) -> None:
    seen: list[tuple[int, int]] = []
    smaller: TrainerConfig | None = config
    while smaller is not None:
        seen.append((at_once(smaller, 1), at_once(smaller, 2)))
        smaller = halved(smaller, 1)
    assert seen == [(5, 3), (3, 3), (2, 2), (1, 1)]
    two = halved(replace(config, micro_batch=400), 2)
    assert two is not None
    assert two.micro_batch == 2


def test_first_try_computes_only_as_many_sequences_as_fit(config: TrainerConfig) -> None:
    """A batch has 5 sequences. If the memory has room for the shares of all ranks, each rank
    computes its whole share at once. Otherwise it computes as many sequences as fit, but at least
    one."""
    memory = trainer_memory(config.model, config.inner, "fp32", eager=False)
    each = memory.activations
    rooms = [0, each, 3 * each - 1, 3 * each, 5 * each]
    assert [at_once(within(config, 1, room), 1) for room in rooms] == [1, 1, 2, 3, 5]
    assert [at_once(within(config, 2, room), 2) for room in rooms] == [1, 1, 1, 1, 2]
    assert within(config, 2, 6 * each) == config
    few = replace(config, recompute=True)
    assert at_once(within(few, 1, 3 * memory.activations_recomputed), 1) == 3


def test_first_try_on_a_gpu_leaves_room_for_the_first_step(
    config: TrainerConfig,
) -> None:
    memory = trainer_memory(config.model, config.inner, "fp32", eager=False)
    to_come = memory.gathered + memory.gradients + memory.optimizer
    for ranks, least in ((1, 5), (2, 3)):
        rooms = [to_come / ranks + fit * memory.activations for fit in (-99, 0, 1, 2, 99)]
        fits = [on_gpu(config, ranks, int(room / GPU_SHARE) + 9) for room in rooms]
        assert fits == [1, 1, 1, 2, least]
    few = replace(config, recompute=True)
    room = to_come + 3 * memory.activations_recomputed
    assert on_gpu(few, 1, int(room / GPU_SHARE) + 9) == 3


def test_out_of_memory_errors_are_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."))
    assert is_out_of_memory(MemoryError())
    cublas = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert is_out_of_memory(RuntimeError(cublas))
    none_left = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    assert is_out_of_memory(RuntimeError(none_left))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**54)
    assert is_out_of_memory(caught.value)


class EveryStartEnds:
    """Replace the ranks with processes that print torch's error message and exit like a rank that
    has run out of memory."""

    def __init__(self) -> None:
        self.configs: list[TrainerConfig] = []

    def __call__(
        self, config: TrainerConfig, theta_fd: int, local_fd: int, ranks: int
    ) -> LaunchedRanks:
        words = f"import sys; print('CUDA out of memory.'); sys.exit({OUT_OF_MEMORY_EXIT_CODE})"
        self.configs.append(config)
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        lifeline_read, lifeline = os.pipe()
        os.close(lifeline_read)
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", words], stdout=out_write, pass_fds=[theirs.fileno()]
        )
        os.close(out_write)
        theirs.close()
        return LaunchedRanks((process,) * ranks, ours, lifeline, StderrTail(out_read))


def test_halving_after_out_of_memory_does_not_count_as_a_restart(
    config: TrainerConfig, vectors: Vectors
) -> None:
    launch = EveryStartEnds()
    budget = RestartBudget(restarts_max=1)
    supervisor = Supervisor(
        config, vectors.theta_fd, vectors.local_fd, budget=budget, launch=launch
    )
    said: list[TrainerExited] = []
    while len(said) < 5:
        trainer = supervisor.start()
        with pytest.raises(TrainerOutOfMemory) as caught:
            receive(trainer, timeout_s=120.0)
        said.append(caught.value)
        trainer.kill()
    with pytest.raises(TrainerError) as ended:
        supervisor.start()
    assert [each.micro_batch for each in launch.configs] == [0, 3, 2, 1, 1]
    assert [each.what.removeprefix("the trainer ran out of memory with ") for each in said] == [
        "5 sequences at once; trying 3",
        "3 sequences at once; trying 2",
        "2 sequences at once; trying 1",
        "1 sequence at once",
        "1 sequence at once",
    ]
    assert {each.code for each in said} == {"MEM-OOM"}
    assert said[0].evidence == ("CUDA out of memory.",)
    assert "--recompute" in said[-1].do
    assert ended.value.code == "TRAINER-RESTARTS"


def test_next_try_halves_the_number_that_the_ranks_found_to_fit(
    config: TrainerConfig, vectors: Vectors
) -> None:
    launch = EveryStartEnds()
    told: list[Halving] = []
    supervisor = Supervisor(
        config, vectors.theta_fd, vectors.local_fd, on_halving=told.append, launch=launch
    )
    trainer = supervisor.start()
    hello = Hello(0, 1, vectors.layout.digest, 9, "A GPU", 2, 700)
    assert trainer.feed(encode(hello)) == [hello]
    with pytest.raises(TrainerOutOfMemory, match="with 2 sequences at once; trying 1"):
        receive(trainer, timeout_s=120.0)
    trainer.kill()
    supervisor.start().kill()
    assert [each.micro_batch for each in launch.configs] == [0, 1]
    assert told == [Halving("A GPU", 700, 1)]


def test_halving_applies_to_the_same_device_without_more_memory(
    config: TrainerConfig,
) -> None:
    knows = replace(config, halving=Halving("A GPU", 1000, 2))
    assert at_once(as_found(config, 1, "A GPU", 1000), 1) == 5
    assert at_once(as_found(knows, 1, "A GPU", 1000), 1) == 2
    assert at_once(as_found(knows, 2, "A GPU", 1040), 2) == 2
    assert at_once(as_found(replace(knows, micro_batch=1), 1, "A GPU", 100), 1) == 1
    assert as_found(knows, 1, "A GPU", 1060) == as_found(knows, 1, "Another", 1000) == knows
