"""Runs of several fragments, and runs that train while they average: real nodes, fake trainers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from p2ptrain.ids import PeerId
from p2ptrain.ipc import frames
from p2ptrain.ledger.state import Phase
from p2ptrain.node.updates import codec_of
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.accounts import Credits
from p2ptrain.testing.fake_trainer import trace
from p2ptrain.testing.published import policy
from tests.node.swarm import Swarm, SwarmNode, swarm

MODES = {
    "streaming": (SyncSpec(fragments=2, overlap_steps=1), 4),
    "a step late": (SyncSpec(overlap_steps=2), 2),
}
STEPS = 12


@pytest.mark.parametrize("mode", MODES)
async def test_updates_are_of_what_was_trained_since_their_fragment_was_last_merged(
    tmp_path: Path, mode: str
) -> None:
    sync, inner_steps = MODES[mode]
    settings = {"sync": sync, "inner_steps": inner_steps, "rules": policy(grace_s=30.0)}
    async with swarm(tmp_path, steps=STEPS, **settings) as s:
        await s.until(lambda: s.at_step(STEPS))
        assert {node.parts.ledger.state.phase for node in s.up} == {Phase.ENDED}
        assert len({node.parts.outer.vectors.digest() for node in s.up}) == 1
        committed = s.check_blocks()
        # Who comes, or comes back, trains nothing ahead at first: from then on twice round.
        others = [step for step, _, credits in committed if len(credits) < 3]
        steady = max(others, default=-1) + 1 + 2 * sync.fragments
        assert committed[steady:]
        for step, update, credits in committed[steady:]:
            found = np.empty(s.seed.parts.fragment(step).numel, np.float32)
            codec_of(s.seed.parts, step).dequantise(s.seed.parts.store.read_blob(update), found)
            before = [each for at, _, each in committed if step - sync.fragments < at < step]
            due = expected(s.seed, step, before, credits)
            assert np.abs(found - due).max() <= 4 * np.abs(due).max() / 100
        assert trained_ahead(s["ann"])


def expected(
    node: SwarmNode, step: int, before: list[Credits], credits: Credits
) -> NDArray[np.float64]:
    """The mean of what all have trained since this fragment was merged: the first blocks after that
    were trained ahead of it, and forgotten (α = 0), unless all means come a whole step late."""
    parts = node.parts
    forgotten = 0 if parts.manifest.delayed else parts.manifest.sync.overlap_steps
    due = np.zeros(parts.fragment(step).numel)
    part = np.empty(len(due), np.float32)
    for peer in credits:
        work = np.zeros(parts.layout.numel, np.float32)
        for block in blocks_of(peer, [*before, credits])[forgotten:]:
            work += trace(parts.data_block(block), parts.layout.numel)
        parts.fragment(step).gather(work, part)
        due += part * len(credits[peer])
    return due / sum(map(len, credits.values()))


def blocks_of(peer: PeerId, steps: list[Credits]) -> list[int]:
    return [block for each in steps for block in each.get(peer, ())]


def trained_ahead(node: SwarmNode) -> bool:
    return any(isinstance(each, frames.Train) and each.ahead for each in node.remote.obeyed)


async def test_deaths_and_joins_leave_states_equal_and_blocks_committed_once(
    tmp_path: Path,
) -> None:
    sync, inner_steps = MODES["streaming"]
    settings = {"sync": sync, "inner_steps": inner_steps, "later": ("dan",)}
    async with swarm(tmp_path, steps=10_000, **settings) as s:
        await s.go_on(2)
        await s.stop("cai")
        await s.go_on(2)
        s["bob"].remote.dies = True
        await s.start("cai", "dan")
        await s.until(lambda: len(s.credits("dan")) >= 3 and in_it_again(s, "cai"))
        await s.go_on(2)
        s.check_equal()
        s.check_blocks()


def in_it_again(s: Swarm, name: str) -> bool:
    """Whether this node's work goes into updates of its present life."""
    return any(s[name].events("committed", took_part=True))
