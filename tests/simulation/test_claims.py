"""Participants stay bound to their claims in worlds with unequal speeds, crashes and a liar."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.proofs.claims import Claim
from p2ptrain.simulation import PROFILES, simulate
from p2ptrain.simulation.liars.claim_liar import ClaimLiar, ClaimTrick
from p2ptrain.simulation.run import run_to_end, violations_in, world_of
from p2ptrain.simulation.world import SimWorld

CLAIMS = PROFILES["claims"]
HONEST = replace(CLAIMS, claim_liars=0)


def committed(world: SimWorld) -> list[tuple[int, Claim]]:
    """Return the claims in committed updates, with the outer steps of these updates."""
    disks = [node.disk for node in world.nodes.values() if node.me not in world.liars]
    entries = max((disk.chain for disk in disks), key=len)
    opened: Roster | None = None
    named = []
    for value in (certified.entry.value for certified in entries):
        if isinstance(value, Roster) and value.participants:
            opened = value
        elif isinstance(value, Commit) and opened is not None:
            named += [(value.step, each.peer, each.claim) for each in opened.participants]
    documents = dict(chain.from_iterable(node.disk.claims.items() for node in world.nodes.values()))
    return [(step, documents[claim]) for step, _, claim in named if claim in documents]


def test_claims_hold_with_three_to_six_peers_of_which_one_lies() -> None:
    reports = [
        simulate(seed, peers=peers, steps=5, profile="claims")
        for peers in (3, 4, 5, 6)
        for seed in range(4)
    ]
    assert [it for it in reports if not it.good] == []
    assert sum(it.commits for it in reports) > 60


def test_every_trick_occurs() -> None:
    tricks = set[ClaimTrick]()
    for seed in range(40):
        liar = world_of(seed, peers=4, steps=1, profile=CLAIMS).nodes
        tricks.update(*(node.tricks for node in liar.values() if isinstance(node, ClaimLiar)))
    assert tricks == set(ClaimTrick)


def test_stragglers_contribute_rebased_work_under_new_claims() -> None:
    """A peer at a twentieth of the others' speed keeps its work, and claims it for a later step."""
    rebased = set[str]()
    for seed in range(4):
        world = world_of(seed, peers=5, steps=10, profile=HONEST)
        assert (run_to_end(world), violations_in(world)) == ("", [])
        claims = committed(world)
        assert all(claim.step == step for step, claim in claims)
        assert len({claim.digest for _, claim in claims}) == len(claims)
        rebased |= {f"{seed} {claim.peer}" for _, claim in claims if claim.base is None}
    assert len(rebased) > 4


def test_restarted_peers_do_not_use_serial_numbers_again() -> None:
    restarts = 0
    for seed in range(4):
        world = world_of(seed, peers=4, steps=6, profile=HONEST)
        run_to_end(world)
        restarts += world.restarts
        for node in world.nodes.values():
            numbers = [claim.serial for claim in node.disk.claims.values()]
            assert numbers == list(range(1, node.disk.serial + 1))
            assert node.disk.evidence == []
    assert restarts > 0
