"""How a node's reachability changes over hours, in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.peers.reach_messages import DialOutcome, ReachAnswer
from p2ptrain.peers.reach_questions import (
    PEER_AGAIN_S,
    ROUND_AGAIN_S,
    ROUND_EVERY_S,
    UNKNOWN_EVERY_S,
    UNREACHED_EVERY_S,
    Askable,
)
from p2ptrain.peers.reach_verdict import OpenedPorts, OwnPlace, Reach
from p2ptrain.peers.reach_watch import ROUTER_S, ReachWatch, about_now

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
            answer = ReachAnswer(host, outcome, outcome)
            about = about_now(self.place, self.opened)
            self.watch.note_answer(members[peer], about, answer, self.now)
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


def test_first_questions_wait_until_the_router_has_answered() -> None:
    """Otherwise members try ports that the router opens a moment later, and answer again only after
    a minute."""
    watch, draw = ReachWatch(), random.Random(1)
    members = [Askable(PeerId(name), f"site {name}") for name in "abc"]
    assert watch.choose(members, 0.0, draw, asks_router=True) == []
    assert len(watch.choose(members, 3.0, draw)) == 3
    silent = ReachWatch()
    assert silent.choose(members, 0.0, draw, asks_router=True) == []
    assert len(silent.choose(members, ROUTER_S, draw, asks_router=True)) == 3


def test_answer_about_ports_from_before_a_change_does_not_count() -> None:
    """The router opens both ports while three members try the closed ones."""
    watch, draw = ReachWatch(), random.Random(1)
    members = {name: Askable(PeerId(name), f"site {name}") for name in "abcd"}
    watch.judge(AT_HOME, {}, {}, 0.0)
    asked, before = watch.choose(members.values(), 0.0, draw), about_now(AT_HOME, None)
    watch.judge(AT_HOME, {}, {}, 2.0, UPNP)
    no = ReachAnswer(HOME, DialOutcome.SILENT, DialOutcome.SILENT)
    for peer in asked:
        watch.note_answer(members[peer], before, no, 5.0)
    watch.judge(AT_HOME, {}, {"site a": 5.0}, 5.0, UPNP)
    assert watch.verdict.reach is Reach.UNKNOWN
    assert len(watch.choose(members.values(), ROUND_AGAIN_S, draw)) == 3


def test_mapped_is_said_only_when_both_ports_were_reached() -> None:
    """The first connection to the data port arrives before any to the control port."""
    watch = ReachWatch()
    found = list[Reach]()
    for control in ({}, {"site a": 2.0}):
        watch.judge(AT_HOME, control, {"site a": 1.0}, 2.0, UPNP)
        found.append(watch.verdict.reach)
    assert found == [Reach.UNKNOWN, Reach.MAPPED]


@pytest.mark.parametrize("busy", [False, True])
def test_verdict_comes_within_a_minute_although_the_first_answers_fail(busy: bool) -> None:
    """There are three other sites. Two of the first three questions fail: the members are too busy,
    or refuse because this node has asked them before it was restarted."""
    watch, draw = ReachWatch(), random.Random(3)
    members = {name: Askable(PeerId(name), f"site {name}") for name in "abc"}
    about, untried, no = about_now(AT_HOME, None), DialOutcome.UNTRIED, DialOutcome.SILENT
    questions = 0
    for now in map(float, range(60)):
        watch.judge(AT_HOME, {}, {}, now)
        for peer in watch.choose(members.values(), now, draw):
            questions += 1
            outcome = untried if questions in (1, 2) else no
            if outcome is untried and not busy:
                watch.note_failure(peer)
            else:
                watch.note_answer(members[peer], about, ReachAnswer(HOME, outcome, outcome), now)
    assert watch.verdict.reach is Reach.CLOSED
    assert questions == 5


def test_node_without_a_verdict_asks_again_after_a_minute() -> None:
    """The members of the first round report different things, for instance since one was slow."""
    watch, draw = ReachWatch(), random.Random(1)
    members = {name: Askable(PeerId(name), f"site {name}") for name in "ab"}
    watch.judge(AT_HOME, {}, {}, 0.0)
    outcomes = iter((DialOutcome.REACHED, DialOutcome.SILENT))
    for peer in watch.choose(members.values(), 0.0, draw):
        answer = ReachAnswer(HOME, *([next(outcomes)] * 2))
        watch.note_answer(members[peer], about_now(AT_HOME, None), answer, 1.0)
    watch.judge(AT_HOME, {}, {}, 1.0)
    assert watch.verdict.reach is Reach.UNKNOWN
    assert watch.choose(members.values(), UNKNOWN_EVERY_S - 1, draw) == []
    assert len(watch.choose(members.values(), UNKNOWN_EVERY_S, draw)) == 2
