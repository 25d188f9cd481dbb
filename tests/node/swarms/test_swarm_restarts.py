"""Nodes that stop and start again continue from their own disks, without losing committed work."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.ledger_on_disk import open_ledger
from p2ptrain.ipc.frames import Load, Train
from p2ptrain.store import LocalDisk, OpenFile
from p2ptrain.testing.published import policy
from tests.chaos.harness.modes import MODES
from tests.node.swarm import Swarm, SwarmNode, deaf, swarm

ENDLESS = 10_000


@contextmanager
def held(s: Swarm, *names: str) -> Iterator[None]:
    """Make the trainers of these nodes stop before their next inner step, so that the run stops
    too."""
    for name in names:
        s[name].remote.held = True
    try:
        yield
    finally:
        for name in names:
            s[name].remote.held = False


async def start_and_catch_up(s: Swarm, name: str, *others: str) -> None:
    """Start a node while the trainers of `others` are held, and wait until it has caught up.

    An outer step takes a tenth of a second here. If the run continued during the start, the node
    would fall so far behind that it would load a snapshot instead of the missed updates.
    """
    with held(s, *others):
        await s.start(name)
        await s.until(lambda: 0 <= s[name].step == s.seed.step)


async def test_restarted_node_continues_from_its_home(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=ENDLESS) as s:
        bob = s["bob"]
        await s.step_by_step(lambda: len(s.credits("bob")) >= 3 and bob.events("snapshot"))
        chain = list(bob.context.ledger.core.chain)
        await s.stop("bob")
        assert s.run is not None
        ledger, _, votes = open_ledger(bob.home, s.run, bob.identity, 0.0)
        assert ledger.chain[: len(chain)] == chain
        assert ledger.records() == list(votes)[-len(ledger.records()) :]
        await s.stand_still()
        obeyed = len(bob.remote.obeyed)
        await s.start("bob")
        await s.until(lambda: bob.step == s.seed.step)
        s.stop_at(None)
        done = len(s.credits("bob"))
        await s.until(lambda: len(s.credits("bob")) > done)
        assert bob.events("snapshot-fetched") == []  # The node began with its own snapshot.
        orders = [each for each in bob.remote.obeyed[obeyed:] if isinstance(each, Load | Train)]
        begun = next(at for at, each in enumerate(orders) if isinstance(each, Train))
        load, train = orders[begun - 1 : begun + 1]
        assert isinstance(load, Load)
        assert isinstance(train, Train)
        assert load.step >= 3
        # The trainer continues the learning rate's schedule at the right inner step. `check_chain`
        # verifies that it also trains on the right blocks.
        assert train.first_inner_step == s.run.manifest.blocks_per_step * load.step
        s.check_chain()
        s.check_equal()


async def test_run_continues_after_all_nodes_stopped_at_once(tmp_path: Path) -> None:
    names = ("seed", "ann", "bob", "cai")
    async with swarm(tmp_path, steps=ENDLESS) as s:
        await s.step_by_step(
            lambda: (
                len(s["ann"].context.ledger.snapshot.voters) == len(names)
                and all(s[name].events("snapshot") for name in names)
            )
        )
        await s.stop(*names)
        step = max(node.step for node in s.nodes.values())
        assert step == -1
        await s.start(*names)
        await s.until(lambda: all(s[name].step >= 0 for name in names))
        s.stop_at(None)
        await s.go_on(2)
        for name in names:
            assert s[name].events("snapshot-fetched") == []
        s.check_chain()
        s.check_equal()


@pytest.mark.parametrize("mode", ["plain", "streaming", "eager"])
async def test_run_continues_after_all_nodes_stopped_during_a_reduce(
    tmp_path: Path, mode: str
) -> None:
    """After the restart no node has the work that the open roster names. The work must be done
    again; the empty arena (the memory with the trained weights) must not be averaged. In runs that
    train while they average, all trainers are ahead of the reduce when the nodes stop."""
    roster_names = ("ann", "bob", "cai")
    names = ("seed", *roster_names)
    how = MODES[mode]
    settings: dict[str, Any] = {"sync": how.sync, "inner_steps": how.inner_steps}
    rules = policy(grace_s=30.0, patience_s=30.0)
    async with swarm(tmp_path, steps=ENDLESS, rules=rules, **settings) as s:
        await s.until(lambda: all(s.credits(name) for name in roster_names))
        last = max(s[name].context.ledger.snapshot.step for name in names) + 1
        with deaf(s["ann"], s["bob"], s["cai"], from_step=last, hangs=True):
            await s.until(lambda: all(is_exchanging(s[name], last) for name in roster_names))
            if how.sync.overlap_steps:
                await s.until(lambda: all(is_ahead(s[name], last) for name in roster_names))
            roster = s["ann"].context.ledger.snapshot.roster
            await s.stop(*names)
        assert roster is not None
        for name in roster_names:
            s[name].remote.held = True
        await s.start(*names)
        await s.until(lambda: all(hears_everybody(s[name], len(names) - 1) for name in names))
        assert s.seed.context.ledger.snapshot.roster == roster
        for name in roster_names:
            s[name].remote.held = False
        await s.until(lambda: s.at_step(last + 2, "seed"))
        assert last in [step for step, _, _ in s.committed(s.seed)]
        s.check_blocks()
        s.check_equal()
        if how.sync.fragments == 1:
            s.check_chain()


def is_exchanging(node: SwarmNode, step: int) -> bool:
    """Return whether this node is in the roster of this outer step, and has begun to average."""
    roster = node.context.ledger.snapshot.roster
    began = node.events("exchange-started", step=step)
    return roster is not None and roster.step == step and bool(began)


def is_ahead(node: SwarmNode, step: int) -> bool:
    """Return whether this node's trainer has trained further since the node reported that it is
    ready for this outer step."""
    marks = [each["event"] for each in node.records if each.get("step") == step]
    done = [mark for mark in marks if mark in ("ready", "inner-step")]
    return done[-1:] == ["inner-step"] and "ready" in done


def hears_everybody(node: SwarmNode, others: int) -> bool:
    """Return whether this node has θ and has received two heartbeats of each of the other nodes. So
    it could take part in a reduce with them."""
    serials = [record.heartbeat.serial for record in node.context.peers.table]
    return node.step >= 0 and len(serials) == others and min(serials) >= 2


@dataclass
class SmallDisk(LocalDisk):
    """A disk that is full when the test says so, for new chunks or for the logs."""

    no_chunks: bool = False
    no_records: bool = False

    def write(self, path: Path, data: memoryview) -> None:
        if self.no_chunks:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, data)

    def opened(self, path: Path) -> OpenFile:
        file = super().opened(path)
        append = file.append

        def append_if_it_fits(data: memoryview) -> None:
            if self.no_records:
                raise OSError(errno.ENOSPC, "No space left on device")
            append(data)

        file.append = append_if_it_fits  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("full", ["no_chunks", "no_records"])
async def test_full_disk_stops_a_node_cleanly_and_free_space_lets_it_continue(
    tmp_path: Path, full: str
) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), later=("cai",), steps=ENDLESS) as s:
        cai = s["cai"]
        disk = SmallDisk()
        cai.disk = disk
        await s.start("cai")
        await s.until(lambda: len(s.credits("cai")) >= 2)
        setattr(disk, full, True)
        await s.until(lambda: cai.error is not None)
        assert cai.error is not None
        assert cai.error.code == "DISK-LOW"
        await s.go_on(1)
        setattr(disk, full, False)
        done = len(s.credits("cai"))
        await start_and_catch_up(s, "cai", "ann", "bob")
        await s.until(lambda: len(s.credits("cai")) > done)
        s.check_chain()  # This checks the chain of the seed, which has finished every outer step.
        s.check_equal()
