"""Runs that average the model in several fragments, and runs that train while they average. Nodes
are real, trainers are simulated."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from p2ptrain.cli.main import main
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ipc import frames
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.fake_trainer import trace
from p2ptrain.testing.published import policy
from tests.node.accounts import Credits
from tests.node.swarm import Swarm, SwarmNode, swarm

MODES = {
    "streaming": (SyncSpec(fragments=2, overlap_steps=1), 4, TrustRules(claims=True)),
    "delayed": (SyncSpec(overlap_steps=2), 2, TrustRules()),
    "eager": (SyncSpec(overlap_steps=2, eager=True), 2, TrustRules(claims=True)),
}
STEPS = 9
AMENDMENT = ("--codec", "fp16", "--outer-lr", 0.5, "--lr", 0.05)

Committed = tuple[int, Digest, Credits]


@pytest.mark.parametrize("mode", MODES)
async def test_updates_contain_the_work_since_their_fragment_was_last_merged(
    tmp_path: Path, mode: str
) -> None:
    """During the run, a peer joins, and the codec and the learning rates are amended. No work is
    lost because of this."""
    sync, inner_steps, trust = MODES[mode]
    rules = policy(grace_s=30.0, snapshot_every=STEPS)
    settings: dict[str, Any] = {
        "sync": sync,
        "inner_steps": inner_steps,
        "rules": rules,
        "later": ("cai",),
        "trust": trust,
    }
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=STEPS, stops_at=2, **settings) as s:
        await s.until(lambda: s.at_step(2))
        amended_step = await admit_and_amend(s, "cai")
        s.stop_at(None)
        await s.until(lambda: s.at_step(STEPS))
        assert {node.context.ledger.snapshot.phase for node in s.up} == {Phase.ENDED}
        assert len({node.context.outer.vectors.digest() for node in s.up}) == 1
        committed = s.check_blocks()
        assert any(s["cai"].peer in credits for _, _, credits in committed)
        for number, (step, update, credits) in enumerate(committed):
            used = s.seed.context.store.manifest(update).meta["codec"]
            assert (step, used) == (step, "int8" if step < amended_step else "fp16")
            found = applied(s.seed, step, update)
            due = expected(s.seed, step, committed[:number], credits)
            assert np.abs(found - due).max() <= 4 * np.abs(due).max() / 100, step
        assert trained_ahead(s["ann"]) == (sync.overlap_steps > 0)
        checks = [each for node in s.up for each in node.events("average-checked")]
        assert bool(checks) == trust.claims
        assert {each["wrong"] for each in checks} <= {""}


async def admit_and_amend(s: Swarm, name: str) -> int:
    """Start this node and wait until it is a member. Then publish the amendment, and wait until all
    nodes have received it. The run must be stopped. Return the outer step from which the amendment
    applies."""
    await s.start(name)
    await s.until(lambda: s.seed.context.ledger.snapshot.is_member(s[name].peer))
    step = s.seed.context.ledger.snapshot.step + 3
    words = ["run", "amend", "swarm", "--from-step", step, *AMENDMENT, "--home", s.seed.home.root]
    assert await trio.to_thread.run_sync(partial(main, [str(word) for word in words])) == 0
    await s.until(lambda: all(node.context.ledger.core.reports.terms for node in s.up))
    return step


def applied(node: SwarmNode, step: int, update: Digest) -> NDArray[np.float32]:
    """Return the averaged pseudo-gradient that this update encodes."""
    context = node.context
    payload = context.store.read_blob(update)
    outer_step = context.outer_step(step)
    found = np.empty(outer_step.fragment.numel, np.float32)
    outer_step.codec.dequantise(payload, found)
    return found


def expected(
    node: SwarmNode, step: int, before: list[Committed], credits: Credits
) -> NDArray[np.float32]:
    """Return the update of outer step `step` that is correct for these credits: the mean of the
    participants' work since this fragment was last merged, weighted by the number of blocks."""
    context, sync = node.context, node.context.manifest.sync
    fragment = context.outer_step(step).fragment
    works, weights = [], []
    for peer in credits:
        own = [(at, each[peer]) for at, _, each in before if peer in each]
        merged = [(at, blocks) for at, blocks in own if (step - at) % sync.fragments == 0]
        since, offered = max(merged, default=(-1, ()))
        blocks = blocks_of(peer, [*(each for at, _, each in before if at > since), credits])
        work = np.zeros(context.layout.numel, np.float32)
        for block in blocks[forgotten(node, offered) :]:
            work += trace(context.data_block(block), context.layout.numel)
        works.append(np.empty(fragment.numel, np.float32))
        fragment.gather(work, works[-1])
        weights.append(len(blocks))
    return np.average(works, axis=0, weights=weights)


def forgotten(node: SwarmNode, offered: tuple[int, ...]) -> int:
    """Return how many blocks that were trained ahead of a merge are lost in the merge.

    Without mixing (α = 0), a merge replaces the weights of the fragment with θ, so work done ahead
    is lost. No work is lost if all averages are applied one whole outer step late. A participant
    that was left out before loses none either: it offered all its blocks, and did not train ahead.
    """
    manifest = node.context.manifest
    if not offered or manifest.delayed or len(offered) == manifest.blocks_per_lease:
        return 0
    return manifest.sync.overlap_steps


def blocks_of(peer: PeerId, steps: list[Credits]) -> list[int]:
    return [block for each in steps for block in each.get(peer, ())]


def trained_ahead(node: SwarmNode) -> bool:
    """Return whether this node's trainer has trained during a reduce."""
    return any(isinstance(each, frames.Train) and each.ahead for each in node.remote.obeyed)


async def test_streaming_run_survives_a_lost_node_a_lost_trainer_and_a_joiner(
    tmp_path: Path,
) -> None:
    """Afterwards all states are equal, and no block was committed twice."""
    sync, inner_steps, _ = MODES["streaming"]
    settings: dict[str, Any] = {"sync": sync, "inner_steps": inner_steps, "later": ("dan",)}
    async with swarm(tmp_path, steps=10_000, **settings) as s:
        await s.go_on(2)
        await s.stop("cai")
        await s.go_on(2)
        s["bob"].remote.dies = True
        await s.start("cai", "dan")
        await s.until(lambda: len(s.credits("dan")) >= 3 and contributed_again(s, "cai"))
        await s.go_on(2)
        s.check_equal()
        s.check_blocks()


def contributed_again(s: Swarm, name: str) -> bool:
    """Return whether this node has taken part in a committed reduce since its newest start."""
    return any(s[name].events("committed", took_part=True))
