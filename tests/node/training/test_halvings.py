"""After a trainer ran out of memory, it halves its micro-batch until it fits. The node keeps the
micro-batch that was found, so that the next start does not have to search for it again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import Halving
from p2ptrain.node.control.status import status
from p2ptrain.node.training import micro_batch_memory
from p2ptrain.node.training.trainer_processes import subprocesses
from p2ptrain.observe.status import status_lines
from p2ptrain.trainer.host.supervisor import Supervisor
from p2ptrain.trainer.host.torchrun_trainer import ExternalTrainers
from tests.node.rig import Rig, rig

FOUND = Halving("A GPU", 1000, 2)


def started_again(r: Rig, **config: object) -> Supervisor | ExternalTrainers:
    """Apply `config` to the node's configuration, simulate a restart, and return its trainers."""
    r.context.trainer.halving = None
    r.configure(**config)
    trainers = subprocesses(r.context)
    assert isinstance(trainers, Supervisor | ExternalTrainers)
    return trainers


def hello(r: Rig, device: str = "A GPU", memory_bytes: int = 1000, micro_batch: int = 2) -> Hello:
    """Return the first frame of a trainer on this device."""
    return Hello(0, 1, r.context.layout.digest, 9, device, micro_batch, memory_bytes)


@asynccontextmanager
async def halved(tmp_path: Path) -> AsyncIterator[Rig]:
    """Open a node whose trainer has run out of memory and found the micro-batch of FOUND."""
    async with rig(tmp_path) as made:
        started_again(made).on_halving(FOUND)
        yield made


@pytest.mark.parametrize("ranks_host", ["", "127.0.0.1"])
async def test_restarted_node_begins_with_the_kept_micro_batch(
    tmp_path: Path, ranks_host: str
) -> None:
    async with rig(tmp_path) as r:
        assert started_again(r, ranks_host=ranks_host).config.halving is None
        started_again(r).on_halving(FOUND)
        assert started_again(r).config.halving == FOUND


async def test_status_shows_the_kept_micro_batch_and_how_to_forget_it(tmp_path: Path) -> None:
    async with halved(tmp_path) as r:
        started_again(r)
        r.context.trainer.device = micro_batch_memory.in_words(r.context, hello(r))
        told = [line for line in status_lines(await status(r.context)) if "halving" in line]
        day = json.loads(r.context.home.halving.read_text())["day"]
        assert told == [
            f"trainer   A GPU, 1 rank; micro-batch 2, found by halving on {day} "
            f"(to forget it, use --micro-batch N or remove {r.context.home.halving})"
        ]
        assert micro_batch_memory.in_words(r.context, hello(r, micro_batch=1)) == "A GPU, 1 rank"


@pytest.mark.parametrize(
    "changed",
    [{"compile": True}, {"recompute": True}, {"ranks": 2}, {"precision": "bf16"}, {"threads": 2}],
    ids=str,
)
async def test_kept_micro_batch_is_forgotten_if_settings_change(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    async with halved(tmp_path) as r:
        assert started_again(r, **changed).config.halving is None
        assert r.said("halving-forgotten")
        assert not r.context.home.halving.exists()


async def test_kept_micro_batch_is_used_if_only_keep_inner_changes(tmp_path: Path) -> None:
    """Whether the optimizer's state is kept on disk does not affect the memory that is needed."""
    async with halved(tmp_path) as r:
        assert started_again(r, keep_inner=False).config.halving == FOUND


@pytest.mark.parametrize(("device", "memory_bytes"), [("Another", 1000), ("A GPU", 1100)])
async def test_kept_micro_batch_is_forgotten_on_another_device_or_with_more_memory(
    tmp_path: Path, device: str, memory_bytes: int
) -> None:
    async with halved(tmp_path) as r:
        started_again(r)
        assert (
            micro_batch_memory.in_words(r.context, hello(r, device, memory_bytes, 4))
            == f"{device}, 1 rank"
        )
        assert started_again(r).config.halving is None


async def test_micro_batch_that_the_user_sets_replaces_the_kept_one(tmp_path: Path) -> None:
    async with halved(tmp_path) as r:
        trainers = started_again(r, micro_batch=4)
        assert (trainers.config.micro_batch, trainers.config.halving) == (4, None)
        trainers.on_halving(FOUND)
        assert started_again(r, micro_batch=0).config.halving is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 4096,
        b"{}",
        b"\xff",
        b"[1]",
        b'{"settings": "", "day": "2026-02-30", "halving": {}}',
        b'{"settings": "", "day": "2026-02-03", "halving": {}}',
        b'{"settings": "", "day": "2026-02-03", "halving": {"device": "A GPU", "memory_bytes": 1,'
        b' "micro_batch": 0}}',
    ],
)
async def test_damaged_file_of_the_micro_batch_is_ignored_and_rewritten(
    tmp_path: Path, content: bytes
) -> None:
    async with halved(tmp_path) as r:
        r.context.home.halving.write_bytes(content)
        trainers = started_again(r)
        assert trainers.config.halving is None
        assert len(r.said("halving-ignored")) == 1
        trainers.on_halving(FOUND)
        assert started_again(r).config.halving == FOUND


async def test_micro_batch_that_cannot_be_stored_is_used_until_the_node_stops(
    tmp_path: Path,
) -> None:
    async with halved(tmp_path) as r:
        r.context.home.halving.unlink()
        r.context.home.halving.mkdir()
        trainers = started_again(r)
        trainers.on_halving(FOUND)
        assert len(r.said("halving-not-kept")) == 1
        assert r.context.trainer.halving is not None
