"""A key that was copied, on real sockets: found and told, whether its nodes vote or not; and a
restart that is quick is no copy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.errors import IdentityInUse
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.node import gossip
from p2ptrain.node import main as node_main
from p2ptrain.node.home import Home
from p2ptrain.node.learning import Say
from p2ptrain.node.loneliness import be_alone
from tests.node.swarm import Swarm, SwarmNode, swarm

ENDLESS = 10_000


def copied(s: Swarm, name: str, *, all_of_it: bool = True) -> SwarmNode:
    """A node that is not started, with the key of another, or with the whole of its home."""
    home, original = s.folder / f"{name}-copy", s[name].home
    if all_of_it:
        # The original goes on: what is written beside something and renamed may vanish meanwhile.
        passing = shutil.ignore_patterns("control.sock", "lock", "tmp", "peers*", "*.new*")
        shutil.copytree(original.root, home, ignore=passing)
    else:
        home.mkdir()
        shutil.copy(original.identity, Home(home).identity)
    return s.add(f"{name}-copy")


def is_told(node: SwarmNode) -> bool:
    if not node.up:
        return isinstance(node.error, IdentityInUse)
    return "identity" in node.parts.standing.warnings


async def test_a_copy_does_not_start_while_the_original_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who speaks every two seconds is believed to live though this machine stood still for some.
    monkeypatch.setattr(gossip, "PATIENCE", 5.0)
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: len(s.credits("ann")) >= 1)
        copy = copied(s, "ann")
        copy.config = replace(copy.config, listen=("/ip4/127.0.0.1/tcp/0",))
        await s.start("ann-copy")
        assert copy.error is not None
        assert (copy.error.code, copy.error.exit_code) == ("ID-IN-USE", 8)
        assert s.seed.peer[-6:] in "".join(copy.error.evidence)
        done = len(s.credits("ann"))
        await s.until(lambda: len(s.credits("ann")) > done)
        assert not is_told(s["ann"])


async def test_two_that_start_together_are_both_told_and_one_stays_without_a_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with swarm(tmp_path, nodes=("ann",), later=("cai",), steps=ENDLESS) as s:
        twins = [s["cai"], copied(s, "cai", all_of_it=False)]
        monkeypatch.setattr(node_main, "be_alone", Together(s, twins[0]).be_alone)
        await s.start("cai", "cai-copy")
        await s.until(lambda: all(is_told(node) for node in twins) and any(n.up for n in twins))
        await s.until(lambda: len([node for node in twins if node.up]) == 1)
        (left,) = [node for node in twins if node.up]
        (gone,) = [node for node in twins if not node.up]
        assert gone.error is not None
        assert gone.error.exit_code == 8
        assert left.parts.ledger._instance.electorate.silent
        # Nobody else is concerned, and who stays follows.
        await s.go_on(1, "seed", "ann")


class Together:
    """Two twins each make sure that they are alone before the other has spoken; then one speaks
    first, for all others: a witness each for either would let both stay.
    """

    def __init__(self, s: Swarm, twin: SwarmNode) -> None:
        self._s = s
        self._peer = twin.peer
        self._sure: list[int] = []

    async def be_alone(self, network: Network, me: PeerId, incarnation: int, say: Say) -> None:
        await be_alone(network, me, incarnation, say)
        self._sure.append(incarnation)
        await self._s.until(lambda: len(self._sure) == 2)
        if incarnation != self._sure[0]:
            await self._s.until(lambda: all(map(self._has_heard, (self._s.seed, self._s["ann"]))))

    def _has_heard(self, witness: SwarmNode) -> bool:
        found = witness.parts.peers.get(self._peer)
        return found is not None and found.heartbeat.incarnation == self._sure[0]


async def test_a_restart_at_once_after_a_kill_is_no_copy(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: len(s.credits("bob")) >= 1)
        for _ in range(2):
            await s.stop("bob")
            await s.start("bob")
            assert s["bob"].error is None
        done = len(s.credits("bob"))
        await s.until(lambda: len(s.credits("bob")) > done)
        assert not is_told(s["bob"])
