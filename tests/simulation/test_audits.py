"""Auditors exclude peers that fake contributions, although some auditors lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from p2ptrain.ledger.chain.findings import Verdict
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.simulation import PROFILES, simulate
from p2ptrain.simulation.liars.audit_liar import AuditLiar, AuditTrick
from p2ptrain.simulation.run import run_to_end, violations_in, world_of
from p2ptrain.simulation.world import SimWorld

AUDITORS = PROFILES["auditors"]
HONEST = replace(AUDITORS, audit_liars=0)


def verdicts(world: SimWorld) -> Iterator[Verdict]:
    disks = [node.disk for node in world.nodes.values() if node.me not in world.liars]
    values = (each.entry.value for each in max((disk.chain for disk in disks), key=len))
    yield from (value for value in values if isinstance(value, Verdict))


def test_rules_hold_with_three_to_eight_peers_of_which_two_lie() -> None:
    reports = [
        simulate(seed, peers=peers, steps=6, profile="auditors")
        for peers in (3, 4, 5, 6, 7, 8)
        for seed in range(3)
    ]
    assert [it for it in reports if not it.good] == []
    assert sum(it.commits for it in reports) > 80


def test_every_trick_occurs() -> None:
    tricks = set[AuditTrick]()
    for seed in range(40):
        nodes = world_of(seed, peers=5, steps=1, profile=AUDITORS).nodes
        tricks.update(*(node.tricks for node in nodes.values() if isinstance(node, AuditLiar)))
    assert tricks == set(AuditTrick)


def test_liars_are_excluded_and_successful_appeals_end_exclusions() -> None:
    outcomes = Counter[str]()
    for seed in range(8):
        world = world_of(seed, peers=6, steps=10, profile=AUDITORS)
        assert (run_to_end(world), violations_in(world)) == ("", [])
        for verdict in verdicts(world):
            for peer in verdict.peers:
                sound = verdict.about(peer)[0].found == "sound"
                kind = "liar" if peer in world.liars else "honest"
                outcomes[f"{kind} {'returns' if sound else 'is excluded'}"] += 1
    assert outcomes["liar is excluded"] > 4
    assert outcomes["honest returns"] > 0


def test_honest_peers_at_a_twentieth_of_the_speed_are_never_excluded() -> None:
    for seed in range(4):
        world = world_of(seed, peers=6, steps=8, profile=HONEST)
        assert (run_to_end(world), violations_in(world)) == ("", [])
        assert list(verdicts(world)) == []
        assert world.latest.audits != ()


def test_a_run_without_audits_names_no_auditors() -> None:
    world = world_of(1, peers=4, steps=3, profile=PROFILES["claims"])
    run_to_end(world)
    chain = world.nodes[world.rules.founders[0]].disk.chain
    rosters = [each.entry.value for each in chain if isinstance(each.entry.value, Roster)]
    assert {roster.auditors for roster in rosters} == {None}
    assert (world.latest.auditors, world.latest.audits, world.latest.excluded) == ((), (), {})
