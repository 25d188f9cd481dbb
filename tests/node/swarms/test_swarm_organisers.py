"""A run admits volunteers although all machines of one organiser are gone for good."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.run import (
    Amendment,
    CoOrganisers,
    Grant,
    Role,
    SignedAllowlist,
    SignedAmendment,
    SignedGrant,
    load_allowlist,
    save_allowlist,
    save_amendments,
    save_grants,
)
from tests.node.swarm import Swarm, SwarmNode, swarm
from tests.node.swarms.test_swarm_members import ask

ENDLESS = 10_000
LEAD_STEPS = 12
"""Outer steps until an amendment applies. An outer step takes a tenth of a second here."""


async def new_volunteer(s: Swarm, name: str = "eve") -> SwarmNode:
    """Let a volunteer, which only knows Ann, ask to join."""
    eve = s.add(name)
    eve.timing = replace(eve.timing, approval_look_s=10.0)
    s.nursery.start_soon(partial(s.start, name, bootstrap="ann"))
    return eve


async def asks_at(s: Swarm, node: SwarmNode, volunteer: SwarmNode) -> None:
    """Wait until `volunteer` is shown by `p2ptrain peers pending` in the home of `node`."""
    await s.until(lambda: volunteer.peer in node.context.join_requests.pending)
    assert await ask(node, "pending") == {"pending": [volunteer.peer]}


async def approve(node: SwarmNode, peer: PeerId, role: Role = "trainer") -> None:
    """Do what `p2ptrain peers approve` does in the home of an organiser's node."""
    held = load_allowlist(node.home.allowlist, node.context.around.run)
    assert held is not None
    after = held.allowlist.with_peer(peer, role, tracks=True)
    save_allowlist(node.home.allowlist, SignedAllowlist.publish(node.identity, after))
    await ask(node, "reload-allowlist")


async def delegate(s: Swarm, number: int, *peers: PeerId) -> None:
    """Let the members agree on these delegates."""
    seed, step = s.seed, s.seed.step + LEAD_STEPS
    amendment = Amendment(seed.context.run, number, step, admitters=tuple(sorted(peers)))
    run = seed.context.around.run
    made = SignedAmendment.publish(seed.identity, amendment, run)
    save_amendments(seed.home.amendments, [*seed.context.amendments.held, made])
    await ask(seed, "reload-amendments")


async def grant(node: SwarmNode, peer: PeerId, number: int = 1, role: Role = "trainer") -> None:
    """Do what `p2ptrain peers approve` does in the home of a delegate's node."""
    made = Grant(node.context.run, peer, 1, number, int(time.time()), role)
    held = node.context.admission.grants
    save_grants(node.home.grants, [*held, SignedGrant.publish(node.identity, made)])
    assert await ask(node, "reload-grants") == {"newer": True}


async def test_co_organiser_admits_a_volunteer_after_the_publisher_is_gone(
    tmp_path: Path,
) -> None:
    others = CoOrganisers((load_or_create(Home(tmp_path / "bob").identity).peer,))
    async with swarm(tmp_path, nodes=("ann", "bob", "cai"), steps=ENDLESS, organisers=others) as s:
        await s.until(lambda: len(s["ann"].context.ledger.snapshot.voters) == 4)
        await s.stop("seed")
        eve = await new_volunteer(s)
        await asks_at(s, s["bob"], eve)
        await approve(s["bob"], eve.peer)
        await s.until(lambda: s.credits("eve"))
        s.check_equal()


async def test_delegate_admits_a_volunteer_after_the_only_organiser_is_gone(
    tmp_path: Path,
) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob", "cai"), steps=ENDLESS) as s:
        await s.until(lambda: len(s["ann"].context.ledger.snapshot.voters) == 4)
        bob = s["bob"]
        await delegate(s, 1, bob.peer)
        await s.until(lambda: all(bob.peer in n.context.admission.delegations for n in s.up))
        await s.stop("seed")
        eve = await new_volunteer(s)
        await asks_at(s, bob, eve)
        await grant(bob, eve.peer)
        await s.until(lambda: s.credits("eve"))
        assert s["cai"].events("grant", peer=eve.peer, delegate=bob.peer)
        # A volunteer that a delegate has admitted can restart.
        await s.stop("eve")
        await s.start("eve", bootstrap="ann")
        await s.until(lambda: eve.up)
        await s.go_on(1, "ann", "bob", "cai", "eve")
        s.check_equal()


async def test_reader_fetches_the_run_and_never_becomes_a_member(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: s.at_step(1))
        eve = await new_volunteer(s)
        await asks_at(s, s.seed, eve)
        await approve(s.seed, eve.peer, "reader")
        await s.until(lambda: eve.up)
        assert any("admitted as a reader" in line for line in eve.said)
        await s.until(lambda: eve.step >= 2)
        assert not eve.context.trains
        assert "ROLE-READER" in {each.code for each in eve.context.alerts.warnings.values()}
        step = s["ann"].step
        await s.until(lambda: eve.step > step)
        for node in s.up:
            assert not node.context.ledger.snapshot.is_member(eve.peer)
            assert not node.events("reader-acts"), "its node does not even try"
        await approve(s.seed, eve.peer)
        await s.until(lambda: "ROLE-TRAINER" in codes(eve))
        await s.stop("eve")
        await s.start("eve", bootstrap="ann")
        await s.until(lambda: s.credits("eve"))


def codes(node: SwarmNode) -> set[str]:
    return {each.code for each in node.context.alerts.warnings.values()}
