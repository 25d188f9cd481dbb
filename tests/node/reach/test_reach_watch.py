"""How a node's reachability changes over hours, in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from p2ptrain.ids import PeerId
from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer
from p2ptrain.peers.reach_questions import (
    PEER_AGAIN_S,
    ROUND_EVERY_S,
    UNREACHED_EVERY_S,
    Askable,
)
from p2ptrain.peers.reach_verdict import OpenedPorts, OwnPlace, Reach
from p2ptrain.peers.reach_watch import ReachWatch

SIX = "2606:1::5"
HOME, OFFICE = "198.51.100.7", "198.51.100.8"
AT_HOME, AT_OFFICE = OwnPlace("192.168.1.5", 4201, 4202), OwnPlace("10.1.2.3", 4201, 4202)
UPNP = OpenedPorts("UPnP", 4201, 4202, 1800.0)


@dataclass
class World:
    """A node, its router, and six members at six sites that answer at once. `reached` is whether
    the node's ports are reached. Members in `liars` report the opposite."""

    reached: bool
    host: str = HOME
    place: OwnPlace = AT_HOME
    opened: OpenedPorts | None = None
    liars: frozenset[str] = frozenset()
    by_ipv6: frozenset[str] = frozenset()
    """The members that are connected by IPv6."""
    counts_arrivals: bool = False
    now: float = 0.0
    watch: ReachWatch = field(default_factory=ReachWatch)
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    arrivals: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[float, PeerId]] = field(default_factory=list)

    def run(self, seconds: float) -> Reach:
        """Let time pass in steps of a second, and return the verdict."""
        ends = self.now + seconds
        while self.now < ends:
            self._step()
            self.now += 1.0
        return self.watch.verdict.reach

    def _step(self) -> None:
        members = {name: Askable(PeerId(name), f"site {name}") for name in "abcdef"}
        for peer in self.watch.choose(members.values(), self.now, self.draw):
            self.asked.append((self.now, peer))
            said = self.reached != (peer in self.liars)
            outcome = DialOutcome.REACHED if said else DialOutcome.SILENT
            if self.reached and self.counts_arrivals:
                self.arrivals[members[peer].site] = self.now
            host = SIX if peer in self.by_ipv6 else self.host
            self.watch.note_answer(members[peer], ReachAnswer(host, outcome, outcome), self.now)
        self.watch.judge(self.place, self.arrivals, self.arrivals, self.now, self.opened)


def test_verdict_is_known_in_a_minute_and_each_round_costs_three_questions() -> None:
    for reached, verdict, every_s, spot_checks in (
        (True, Reach.OPEN, ROUND_EVERY_S, 6 * 5),
        (False, Reach.CLOSED, UNREACHED_EVERY_S, 0),
    ):
        world = World(reached)
        assert world.run(60.0) is verdict
        assert world.run(5 * every_s) is verdict
        assert len(world.asked) == 3 * 6 + spot_checks
        assert world.watch.external_host == HOME


def test_ipv6_is_judged_beside_the_verdict() -> None:
    """The node's router translates IPv4 addresses, and a member at another site connects by
    IPv6."""
    world = World(reached=False)
    assert world.run(60.0) is Reach.CLOSED
    assert [world.watch.data_by_ipv6] == [None]
    world.arrivals["2606:2:0:5::/64"] = world.now
    assert world.run(1.0) is Reach.CLOSED
    assert (world.watch.ports.data, world.watch.data_by_ipv6) == (False, True)


def test_router_that_ceases_to_forward_is_noticed_within_two_minutes() -> None:
    for seed in range(10):
        world = World(reached=True, counts_arrivals=True, draw=random.Random(seed))
        assert world.run(150.0 + 37.0 * seed) is Reach.OPEN
        world.reached = False
        assert world.run(120.0) is Reach.CLOSED


def test_liar_in_a_spot_check_costs_one_round_and_changes_nothing() -> None:
    world = World(reached=True, liars=frozenset("c"))
    found = {world.run(10.0) for _ in range(600)}
    assert found == {Reach.OPEN}
    rounds = sum(count > 1 for count in Counter(at_s for at_s, _ in world.asked).values())
    told = sum(peer == "c" for _, peer in world.asked)
    assert rounds <= 11 + told


def test_forwarded_port_is_noticed_within_two_minutes() -> None:
    world = World(reached=False, counts_arrivals=True)
    world.run(60.0)
    world.reached = True
    assert world.run(120.0) is Reach.OPEN


def test_connection_to_one_port_leads_to_questions_about_the_other_one() -> None:
    world = World(reached=False)
    assert world.run(70.0) is Reach.CLOSED
    world.reached = True
    place, now = world.place, world.now
    world.watch.judge(place, {}, {"site a": now}, now)
    assert world.watch.verdict.reach is Reach.HALF
    assert world.watch.choose([Askable(PeerId("a"), "site a")], now, world.draw) == ["a"]


def test_node_whose_own_address_is_seen_outside_is_told_to_open_its_firewall() -> None:
    world = World(reached=False, place=OwnPlace(HOME, 4201, 4202))
    assert world.run(60.0) is Reach.CLOSED
    assert "in your firewall" in world.watch.verdict.sentence


def test_new_address_leads_to_new_questions_and_a_new_verdict_within_two_minutes() -> None:
    world = World(reached=True, counts_arrivals=True)
    assert world.run(300.0) is Reach.OPEN
    world.place, world.host, world.reached = AT_OFFICE, OFFICE, False
    assert world.run(1.0) is Reach.UNKNOWN, "evidence about the old address does not count"
    assert world.run(119.0) is Reach.CLOSED
    assert world.watch.external_host == OFFICE


def test_earlier_external_address_is_not_told_in_a_new_network() -> None:
    world = World(reached=True)
    world.run(300.0)
    assert world.watch.external_host == HOME
    world.place = AT_OFFICE
    world.watch.judge(world.place, {}, {}, world.now)
    assert world.watch.external_host == ""


def test_members_that_are_connected_by_ipv6_do_not_hide_the_ipv4_address() -> None:
    world = World(reached=True, by_ipv6=frozenset("ab"))
    assert world.run(6 * ROUND_EVERY_S) is Reach.OPEN
    assert world.watch.external_host == HOME
    sizes = Counter(Counter(when for when, _ in world.asked).values())
    assert sizes[3] == 6, "three members in each round; one in each check between the rounds"
    world.by_ipv6 = frozenset("abcdef")
    world.run(6 * ROUND_EVERY_S)
    assert world.watch.external_host == SIX


def test_opened_ports_are_tried_at_once() -> None:
    world = World(reached=False)
    assert world.run(60.0) is Reach.CLOSED
    world.opened, world.reached = UPNP, True
    assert world.run(120.0) is Reach.MAPPED
    world.reached = False
    assert world.run(ROUND_EVERY_S) is Reach.BLOCKED


def test_external_address_that_changes_alone_is_noticed_within_three_minutes() -> None:
    world = World(reached=True, counts_arrivals=True)
    world.run(60.0)
    world.host, world.reached = OFFICE, False
    assert world.run(180.0) is Reach.CLOSED
    assert world.watch.external_host == OFFICE


def test_one_liar_among_six_members_never_opens_a_closed_node() -> None:
    for seed in range(6):
        world = World(reached=False, liars=frozenset("c"), draw=random.Random(seed))
        found = {world.run(100.0) for _ in range(40)}
        assert found <= {Reach.CLOSED, Reach.UNKNOWN}


def test_members_are_never_asked_twice_in_a_minute_whatever_they_report() -> None:
    """The members report another address each time, which starts a new round each time."""
    world = World(reached=True)
    for number in range(600):
        world.host = f"198.51.100.{number % 250}"
        world.run(1.0)
    for name in "abcdef":
        times = [at for at, peer in world.asked if peer == name]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert all(gap >= PEER_AGAIN_S for gap in gaps)
