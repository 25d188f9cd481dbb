"""In a run that allows branches, most voters stop. The others continue on a branch, a separate
continuation of the ledger, and rejoin later."""

from __future__ import annotations

import re
from pathlib import Path

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Branch, Heal
from p2ptrain.node.control.status import status
from p2ptrain.testing.published import policy
from tests.node.swarm import Swarm, SwarmNode, swarm

ENDLESS = 10_000
FOUNDERS = ("seed", "ann", "bob", "cai", "dan")
GONE = ("seed", "cai", "dan")
LEFT = ("ann", "bob")
BRANCHING = policy(quorum_loss="branch", branch_after_s=6.0)
PATIENT = policy(quorum_loss="branch", branch_after_s=20.0)
"""Three stopped voters have time to start again on a busy machine before two of them branch off."""


def line(node: SwarmNode) -> str:
    """Return the name of the chain or branch that this node is on. For the chain of the run, it is
    the run's id. A node that moves to another chain starts again, and has no chain meanwhile: "".
    """
    return node.context.ledger.snapshot.line if node.up else ""


def is_on_branch(node: SwarmNode) -> bool:
    return node.up and line(node) != node.context.run


def voters(node: SwarmNode) -> tuple[PeerId, ...]:
    return node.context.ledger.snapshot.voters


def kinds(node: SwarmNode) -> list[type]:
    """Return the types of the entries in this node's ledger."""
    return [type(certified.entry.value) for certified in node.context.ledger.core.chain]


async def branch_off(s: Swarm) -> int:
    """Stop three of five voters, and wait until the two others are on a branch and have finished
    two outer steps there. Return the outer step in which the branch begins."""
    # A busy machine may lose a voter for a while. Of four or three voters, two could go on alone.
    await s.until(lambda: s.at_step(1) and all(len(voters(s[name])) == 5 for name in LEFT))
    await s.stop(*GONE)
    # On a busy machine, one may miss the other for a while and branch off alone. Then they meet.
    ann, bob = (s[name] for name in LEFT)
    await s.until(lambda: is_on_branch(ann) and line(ann) == line(bob) and len(voters(ann)) == 2)
    step = s["ann"].context.ledger.snapshot.past[-1].step
    await s.until(lambda: s.at_step(step + 2, *LEFT))
    return step


async def test_two_of_five_voters_branch_off_and_rejoin_the_majority(
    tmp_path: Path,
) -> None:
    async with swarm(
        tmp_path, nodes=FOUNDERS[1:], founders=FOUNDERS, steps=ENDLESS, rules=PATIENT
    ) as s:
        assert s.run is not None
        run_id = s.run.id
        step = await branch_off(s)
        assert Branch in kinds(s["ann"])
        assert {*voters(s["ann"])} == {s["ann"].peer, s["bob"].peer}
        said = (await status(s["ann"].context)).branch
        assert said.startswith(f"on a branch since outer step {step}, without ")
        # On a busy machine, a roster without the first node that left may come before the branch.
        counts = re.search(r"; (\d) of (\d) voters are gone$", said)
        assert counts is not None
        assert 1 <= int(counts[2]) - int(counts[1]) <= len(LEFT)
        s.check_chain("ann")
        s.check_equal()
        left_line = line(s["ann"])
        await s.start(*GONE)
        await s.until(lambda: all(s[name].up and line(s[name]) == run_id for name in LEFT))
        await s.until(lambda: len({*s.credits("ann")} & {*s.credits("bob")}) > 0)
        await s.go_on(2, *FOUNDERS)
        assert {line(s[name]) for name in FOUNDERS} == {run_id} != {left_line}
        assert not {Branch, Heal} & {*kinds(s["ann"])}
        assert s["ann"].events("rejoining") != []
        s.check_equal()


async def test_members_of_one_branch_adopt_another_branch_when_they_meet(tmp_path: Path) -> None:
    """Ann and Bob are on a branch and stop. Then the seed, Cai and Dan branch off too. When Ann and
    Bob come back, all end on one of the two branches."""
    others = ("cai", "dan")
    four = (*LEFT, *others)
    async with swarm(
        tmp_path, nodes=FOUNDERS[1:], founders=FOUNDERS, steps=ENDLESS, rules=BRANCHING
    ) as s:
        await branch_off(s)
        lines = {line(s["ann"])}
        await s.stop(*LEFT)
        await s.start(*others, bootstrap="seed")
        await s.until(lambda: all(is_on_branch(s[name]) for name in others))
        lines.add(line(s["cai"]))
        await s.go_on(1, *others)
        await s.start(*LEFT, bootstrap="seed")
        await s.until(lambda: all(s[n].up for n in four) and len({line(s[n]) for n in four}) == 1)
        assert len(lines) == 2
        assert line(s["ann"]) in lines
        await s.until(lambda: all(s[n].up and s[n].context.at_head() for n in four))
        await s.go_on(2, *four)
        rejoined = {name for name in four if s[name].events("rejoining")}
        assert rejoined in ({*LEFT}, {*others})
        assert len([kind for kind in kinds(s["ann"]) if kind is Branch]) == 1
        s.check_equal()
