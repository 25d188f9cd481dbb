"""The settings with which a node starts its trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.node.training.trainer_processes import subprocesses
from p2ptrain.prepare import machine_check
from p2ptrain.trainer.host.cost import trainer_memory
from p2ptrain.trainer.host.supervisor import Supervisor
from tests.node.rig import Rig, rig


def at_once(r: Rig, **config: object) -> int:
    """Return `micro_batch` of a trainer that is started with this configuration. 0 means the entire
    batch."""
    r.configure(**config)
    trainers = subprocesses(r.context)
    assert isinstance(trainers, Supervisor)
    return trainers.config.micro_batch


async def test_cpu_trainer_starts_with_a_batch_that_fits_and_gpu_trainer_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as r:
        assert at_once(r) == 0
        manifest = r.context.manifest
        one = trainer_memory(manifest.model, manifest.inner, "fp32", eager=False).activations
        kept = next(
            memory
            for memory in range(0, 1 << 20, 64)
            if machine_check.room_for_activations(r.run.id, manifest, memory)
        )
        monkeypatch.setattr(machine_check, "memory_bytes", lambda: kept + 2 * one)
        assert manifest.inner.batch_sequences > 1
        assert at_once(r) == 1
        assert at_once(r, micro_batch=2) == 2
        assert at_once(r, micro_batch=0, device="cuda") == 0
