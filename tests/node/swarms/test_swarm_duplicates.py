"""Two nodes that use the same key find each other over real sockets, and one of them ends. A quick
restart of one node is not mistaken for a second node."""

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


def copied(s: Swarm, name: str, *, whole_home: bool = True) -> SwarmNode:
    """Create a node with a copy of another node's entire home (folder), or only with a copy of its
    key. Do not start the new node."""
    home, original = s.folder / f"{name}-copy", s[name].home
    if whole_home:
        # The original keeps running, so temporary files may vanish during the copy.
        passing = shutil.ignore_patterns("control.sock", "lock", "tmp", "peers*", "*.new*")
        shutil.copytree(original.root, home, ignore=passing)
    else:
        home.mkdir()
        shutil.copy(original.identity, Home(home).identity)
    return s.add(f"{name}-copy")


def is_told(node: SwarmNode) -> bool:
    """Return whether this node warns of another process with its key, or has stopped for it."""
    if not node.up:
        return isinstance(node.error, IdentityInUse)
    return "identity" in node.context.alerts


async def test_copy_does_not_start_while_the_original_runs(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: len(s.credits("ann")) >= 1)
        copy = copied(s, "ann")
        copy.config = replace(copy.config, listen=("/ip4/127.0.0.1/tcp/0",))
        # With QUICK_TO_ASK, the original has two seconds to answer. A busy machine needs longer.
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
        twins = [s["cai"], copied(s, "cai", whole_home=False)]
        for twin in twins:
            # Neither copy waits for an answer at its start. So both start, as if they could not
            # reach any member.
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
        # The other nodes continue, and accept the heartbeats of the copy that still runs.
        await s.go_on(1, "seed", "ann")
        await s.until(lambda: s.seed.context.identities.incarnations.is_known(*heard_as(left)))


def asking(**seconds: float) -> Timing:
    """Return a node's timing with these values for the search for duplicates of itself."""
    return replace(QUICK_TO_ASK, questions=replace(QUICK_TO_ASK.questions, **seconds))


def heard_as(node: SwarmNode) -> tuple[PeerId, int]:
    """Return the peer id of this node, and the number that identifies its newest start."""
    return node.peer, node.context.identities.incarnation


async def test_quick_restart_after_a_kill_is_not_mistaken_for_a_copy(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: len(s.credits("bob")) >= 1)
        for _ in range(2):
            await s.stop("bob")
            await s.start("bob")
            assert s["bob"].error is None
        done = len(s.credits("bob"))
        await s.until(lambda: len(s.credits("bob")) > done)
        assert not is_told(s["bob"])
