"""On real sockets, a copied key is found and reported, whether or not its nodes vote. A quick
restart is not taken for a copy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from p2ptrain.archive.home import Home
from p2ptrain.errors import IdentityInUse
from p2ptrain.ids import PeerId
from p2ptrain.node.state.timing import Timing
from p2ptrain.peers.incarnations import starts_of
from tests.node.swarm import QUICK_TO_ASK, Swarm, SwarmNode, swarm

ENDLESS = 10_000


def copied(s: Swarm, name: str, *, all_of_it: bool = True) -> SwarmNode:
    """Return a node that is not started, with another node's key or a copy of its entire home."""
    home, original = s.folder / f"{name}-copy", s[name].home
    if all_of_it:
        # The original keeps running, so temporary files may vanish during the copy.
        passing = shutil.ignore_patterns("control.sock", "lock", "tmp", "peers*", "*.new*")
        shutil.copytree(original.root, home, ignore=passing)
    else:
        home.mkdir()
        shutil.copy(original.identity, Home(home).identity)
    return s.add(f"{name}-copy")


def is_told(node: SwarmNode) -> bool:
    if not node.up:
        return isinstance(node.error, IdentityInUse)
    return "identity" in node.context.alerts


async def test_copy_does_not_start_while_the_original_runs(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: len(s.credits("ann")) >= 1)
        copy = copied(s, "ann")
        copy.config = replace(copy.config, listen=("/ip4/127.0.0.1/tcp/0",))
        # By default the original has two seconds to answer. Allow it more time on a busy machine.
        copy.timing = asking(start_wait_s=30.0)
        await s.start("ann-copy")
        assert copy.error is not None
        assert (copy.error.code, copy.error.exit_code) == ("ID-IN-USE", 8)
        assert "signed a random number" in copy.error.evidence[0]
        done = len(s.credits("ann"))
        await s.until(lambda: len(s.credits("ann")) > done)
        assert not is_told(s["ann"])


async def test_one_of_two_copies_started_together_stays_but_does_not_vote(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann",), later=("cai",), steps=ENDLESS) as s:
        twins = [s["cai"], copied(s, "cai", all_of_it=False)]
        for twin in twins:
            # At its start neither copy waits for an answer, as if no member were connected.
            twin.timing = asking(start_wait_s=0.0, quiet_s=3.0, linger_s=3.0)
        await s.start("cai", "cai-copy")
        await s.until(lambda: all(is_told(node) for node in twins) and any(n.up for n in twins))
        await s.until(lambda: len([node for node in twins if node.up]) == 1)
        (left,) = [node for node in twins if node.up]
        (gone,) = [node for node in twins if not node.up]
        assert gone.error is not None
        assert gone.error.exit_code == 8
        assert left.context.ledger.core._instance.electorate.silent
        assert starts_of(left.context.identities.incarnation) == 1
        # No other node is affected. The process that stays follows the run and is heard again.
        await s.go_on(1, "seed", "ann")
        await s.until(lambda: s.seed.context.identities.incarnations.is_known(*heard_as(left)))


def asking(**seconds: float) -> Timing:
    """Return a node's timing with these values for its duplicate checks."""
    return replace(QUICK_TO_ASK, questions=replace(QUICK_TO_ASK.questions, **seconds))


def heard_as(node: SwarmNode) -> tuple[PeerId, int]:
    return node.peer, node.context.identities.incarnation


async def test_quick_restart_after_a_kill_is_not_taken_for_a_copy(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: len(s.credits("bob")) >= 1)
        for _ in range(2):
            await s.stop("bob")
            await s.start("bob")
            assert s["bob"].error is None
        done = len(s.credits("bob"))
        await s.until(lambda: len(s.credits("bob")) > done)
        assert not is_told(s["bob"])
