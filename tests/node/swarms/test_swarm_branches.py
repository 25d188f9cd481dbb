"""In a run that may branch, most voters vanish: the others continue on a branch, and rejoin
later."""

from __future__ import annotations

from pathlib import Path

from p2ptrain.ledger.chain.values import Branch, Heal
from p2ptrain.node.control.status import status
from p2ptrain.testing.published import policy
from tests.node.swarm import Swarm, SwarmNode, swarm

ENDLESS = 10_000
FOUNDERS = ("seed", "ann", "bob", "cai", "dan")
GONE = ("seed", "cai", "dan")
LEFT = ("ann", "bob")
BRANCHING = policy(quorum_loss="branch", branch_after_s=6.0)


def line(node: SwarmNode) -> str:
    return node.context.ledger.snapshot.line


def kinds(node: SwarmNode) -> list[type]:
    return [type(certified.entry.value) for certified in node.context.ledger.core.chain]


async def branch_off(s: Swarm) -> int:
    """Let three of five voters vanish, and wait until the two others have branched off and
    committed. Return the outer step in which they branched off."""
    await s.until(lambda: s.at_step(1))
    await s.stop(*GONE)
    await s.until(lambda: all(line(s[name]) != s["ann"].context.run for name in LEFT))
    assert line(s["ann"]) == line(s["bob"])
    step = s["ann"].context.ledger.snapshot.past[-1].step
    await s.until(lambda: s.at_step(step + 2, *LEFT))
    return step


async def test_two_of_five_voters_branch_off_and_rejoin_the_majority(
    tmp_path: Path,
) -> None:
    async with swarm(
        tmp_path, nodes=FOUNDERS[1:], founders=FOUNDERS, steps=ENDLESS, rules=BRANCHING
    ) as s:
        assert s.run is not None
        run_id = s.run.id
        step = await branch_off(s)
        assert Branch in kinds(s["ann"])
        assert s["ann"].context.ledger.snapshot.voters == tuple(
            peer
            for peer in s["ann"].context.manifest.founders
            if peer in (s["ann"].peer, s["bob"].peer)
        )
        said = (await status(s["ann"].context)).branch
        assert said.startswith(f"on a branch since outer step {step}, without ")
        assert said.endswith("; 3 of 5 voters are gone")
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


async def test_one_of_two_branches_heals_and_all_end_on_the_other(tmp_path: Path) -> None:
    others = ("cai", "dan")
    four = (*LEFT, *others)
    async with swarm(
        tmp_path, nodes=FOUNDERS[1:], founders=FOUNDERS, steps=ENDLESS, rules=BRANCHING
    ) as s:
        assert s.run is not None
        run_id = s.run.id
        await branch_off(s)
        lines = {line(s["ann"])}
        await s.stop(*LEFT)
        await s.start(*others, bootstrap="seed")
        await s.until(lambda: all(line(s[name]) != run_id for name in others))
        lines.add(line(s["cai"]))
        await s.go_on(1, *others)
        await s.start(*LEFT, bootstrap="seed")
        await s.until(lambda: all(s[n].up for n in four) and len({line(s[n]) for n in four}) == 1)
        assert len(lines) == 2
        assert line(s["ann"]) in lines
        await s.until(lambda: all(s[n].context.at_head() for n in four))
        await s.go_on(2, *four)
        rejoined = {name for name in four if s[name].events("rejoining")}
        assert rejoined in ({*LEFT}, {*others})
        assert len([kind for kind in kinds(s["ann"]) if kind is Branch]) == 1
        s.check_equal()
