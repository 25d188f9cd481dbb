"""A node on a CPU starts its trainer with a micro-batch that fits the machine's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.node.training.trainer_processes import subprocesses
from p2ptrain.prepare import machine_check
from p2ptrain.trainer.host.cost import trainer_memory
from p2ptrain.trainer.host.supervisor import Supervisor
from tests.node.rig import Rig, rig


def at_once(r: Rig, **config: object) -> int:
    """Return the micro-batch with which a trainer would be started after this change of the node's
    configuration. 0 means the entire batch at once."""
    r.configure(**config)
    trainers = subprocesses(r.context)
    assert isinstance(trainers, Supervisor)
    return trainers.config.micro_batch


async def test_micro_batch_is_limited_by_memory_only_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer on a GPU begins with the entire batch and halves it if memory runs out. On a CPU,
    Linux would kill the trainer instead."""
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
