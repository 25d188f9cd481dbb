"""The order of peers and the schedule that a node proposes for a reduce, and which peer of each
pair dials the other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path as FilePath

import pytest

from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.node.connecting.opening import Opening, Way
from p2ptrain.node.gossip import reachability
from p2ptrain.node.gossip.gossip import describe, take_heartbeat
from p2ptrain.node.gossip.reachability import are_apart, is_dialable, judged_reach
from p2ptrain.node.reduce import edge, ring_order
from p2ptrain.node.reduce.reduce_links import ReduceLinks, connect
from p2ptrain.node.reduce.reduce_request import request_of
from p2ptrain.peers.heartbeat import encode
from p2ptrain.peers.path_table import Path
from p2ptrain.peers.reach_evidence import PortsReached
from p2ptrain.peers.reach_verdict import Reach, Verdict
from p2ptrain.ring import NEIGHBOURS_MAX, ReduceRequest, Relays
from p2ptrain.run.manifest import CodecSpec
from tests.node.rig import ANN, BOB, CAI, Rig, heartbeat, opening, rig, somebody

SLOW, FAST = Path(1_000, 1), Path(100_000, 1)


def hear(r: Rig, peer: PeerId, **changes: object) -> None:
    r.context.peers.table.note_heartbeat(peer, heartbeat(r.run.id, **changes), r.context.now())


def requested(r: Rig, *others: PeerId, step: int = 0) -> ReduceRequest:
    """Return the request for a reduce among this node, which comes first, and `others`."""
    context = [Participant(peer, 16, 1) for peer in (r.context.me, *others)]
    roster = opening(r.context.ledger.snapshot, *context, learners=others)
    request = request_of(r.context, r.context.outer_step(roster.step), roster)
    return replace(request, step=step)


# ── what is proposed ─────────────────────────────────────────────────────────────────────────────


async def test_order_avoids_slow_paths_and_the_status_says_why(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        context, ann, bob, cai = r.context, ANN.peer, BOB.peer, CAI.peer
        me = context.me
        joined = opening(context.ledger.snapshot, learners=(ann, bob, cai))
        r.decide(joined)
        context.peers.paths.mine = {ann: SLOW, bob: FAST, cai: FAST}
        context.peers.paths.note_report(
            ann, [(bob, FAST), (cai, FAST)], context.ledger.snapshot.since
        )
        context.peers.paths.note_report(bob, [(cai, SLOW)], context.ledger.snapshot.since)
        assert ring_order.in_words(context) == ""
        schedule, order = ring_order.arrange(context, (me, ann, bob, cai))
        assert (schedule, ring_order.arrange(context, (me, ann, bob, cai))[1]) == ("ring", order)
        at = order.index(me)
        # The node and Ann are opposite each other in the ring, and so are Bob and Cai, so the slow
        # paths between them are not used.
        assert order[(at + 2) % 4] == ann
        (said,) = r.said("arranged")
        assert (said["schedule"], said["peers"]) == ("ring", order)
        ours = tuple(Participant(peer, 16, 1) for peer in order)
        r.decide(opening(context.ledger.snapshot, *ours, learners=(ann, bob, cai)))
        words = ring_order.in_words(context)
        assert words.startswith("ring, in the order ")
        assert words.endswith(str(said["reason"]))
        context.reduce.arranged = None
        assert words.startswith(ring_order.in_words(context) + "; ")


async def test_int4_run_uses_the_direct_schedule_for_five_peers(tmp_path: FilePath) -> None:
    """Over slow paths, all schedules take nearly the same time, so an int8 run stays with the
    default, the ring. An int4 run does not, since a ring rounds the values again at each hop."""
    members = tuple(somebody(number).peer for number in range(110, 114))
    for name, schedule in (("int4", "direct"), ("int8", "ring")):
        codec = CodecSpec(name, 64)  # type: ignore[arg-type]
        async with rig(tmp_path / name, codec=codec) as r:
            r.decide(opening(r.context.ledger.snapshot, learners=members))
            r.context.peers.paths.mine = dict.fromkeys(members, Path(1, 1))
            others = [(each, Path(1, 1)) for each in members]
            for peer in members:
                r.context.peers.paths.note_report(peer, others, r.context.ledger.snapshot.since)
            assert ring_order.arrange(r.context, (r.context.me, *members))[0] == schedule


async def test_warning_lasts_while_every_order_has_an_unconnectable_pair(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        context, trio = r.context, (r.context.me, ANN.peer, BOB.peer)
        for peer in (ANN.peer, BOB.peer):
            hear(r, peer, dialable=False)
        apart = [pair for pair in combinations(trio, 2) if are_apart(context, *pair)]
        assert apart == [(ANN.peer, BOB.peer)]
        assert ring_order.arrange(context, trio)[0] == "ring"
        warning = context.alerts.warnings["arrangement"]
        assert warning.what.startswith("no order of the peers avoids pairs that cannot connect: ")
        hear(r, BOB.peer, dialable=True, serial=2)
        ring_order.arrange(context, trio)
        assert "arrangement" not in context.alerts
        assert [bool(each["barred"]) for each in r.said("arranged")] == [True, False]


async def test_peers_report_only_their_own_paths(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        context, ann, bob = r.context, ANN.peer, BOB.peer
        r.decide(opening(context.ledger.snapshot, learners=(ann,)))
        context.peers.paths.mine = {ann: FAST}
        context.peers.paths.choose_page(0.0)
        told = describe(context, 1, 1)
        assert (told.paths, told.dialled, told.dialable) == (((ann, FAST),), False, True)
        reports = ((ann, ((context.me, SLOW), (bob, SLOW))), (bob, ((context.me, SLOW),)))
        for peer, paths in reports:
            await take_heartbeat(context, peer, encode(heartbeat(r.run.id, paths=paths)))
        assert context.peers.paths.heard == {ann: {context.me: SLOW}}


# ── which peers can be dialled ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reached", "reported"), [(None, (False, True)), (True, (True, True)), (False, (False, False))]
)
async def test_heartbeats_report_whether_other_sites_reach_the_data_port(
    tmp_path: FilePath, reached: bool | None, reported: tuple[bool, bool]
) -> None:
    async with rig(tmp_path) as r:
        r.context.own_heartbeat.reach.ports = PortsReached(control=True, data=reached)
        assert judged_reach(r.context) == reported
        r.network.listens = []
        assert judged_reach(r.context) == (reported[0], False), "this node does not listen"


async def test_peer_with_ipv6_can_dial_a_peer_that_only_ipv6_reaches(
    tmp_path: FilePath,
) -> None:
    """Ann is behind a NAT, but reached by IPv6. Bob has IPv6 too, and Cai does not."""
    six = ("/ip6/2a00:1450::5/tcp/4202/ipv6-data",)
    async with rig(tmp_path) as r:
        context, (ann, bob, cai) = r.context, (each.peer for each in (ANN, BOB, CAI))
        context.own_heartbeat.dialable = False
        hear(r, ann, dialable=False, dialable_by_ipv6=True, addresses=six)
        hear(r, bob, dialable=False, addresses=six)
        hear(r, cai, dialable=False)
        assert [is_dialable(context, ann, by=it) for it in (bob, cai)] == [True, False]
        assert [is_dialable(context, it, by=ann) for it in (bob, cai)] == [False, False]
        pairs = list(combinations((ann, bob, cai), 2))
        assert [are_apart(context, *pair) for pair in pairs] == [False, True, True]
        context.own_heartbeat.dialable_by_ipv6 = True
        assert [is_dialable(context, context.me, by=it) for it in (bob, cai)] == [True, False]


async def test_user_is_warned_as_long_as_the_node_cannot_be_dialled(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        for dialable, codes in ((True, []), (False, ["NET-OUTBOUND-ONLY"]), (True, [])):
            r.context.own_heartbeat.dialable = dialable
            reachability.warn(r.context)
            assert [each.code for each in r.context.alerts.warnings.values()] == codes


async def test_user_is_not_warned_if_peers_have_another_way(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        r.context.own_heartbeat.dialable = False
        r.context.own_heartbeat.reach.verdict = Verdict(Reach.PUNCHED, "nothing to do")
        reachability.warn(r.context)
        assert r.context.alerts.warnings == {}


@pytest.mark.parametrize(
    ("mine", "theirs", "opener", "other"),
    [
        (True, True, ["dial_persistently", "await_peer"], ["await_peer", "dial_once"]),
        (True, False, ["await_peer", "dial_once"], ["await_peer"]),
        (False, True, ["dial_persistently"], ["dial_persistently", "await_peer"]),
        (False, False, ["dial_once"], []),
    ],
)
async def test_ways_to_a_neighbour_depend_on_who_can_be_dialled(
    tmp_path: FilePath, mine: bool, theirs: bool, opener: list[str], other: list[str]
) -> None:
    """Neither peer is a member, so they do not punch holes."""
    async with rig(tmp_path) as r:
        r.context.own_heartbeat.dialable = mine
        hear(r, ANN.peer, dialable=theirs)
        unopened = Opening(ANN.peer, "", {}, 0.0, lambda number, connection: None)
        assert names(edge.ways_of_opener(r.context, unopened, relayed)) == opener
        assert names(edge.ways_of_other(r.context, unopened, relayed)) == other


async def relayed(opening: Opening) -> None:
    raise AssertionError("only members use relays")


def names(ways: list[Way]) -> list[str]:
    return [(way.func if isinstance(way, partial) else way).__name__ for way in ways]


async def test_peers_that_may_punch_are_neighbours_if_nothing_else_is_possible(
    tmp_path: FilePath,
) -> None:
    members = tuple(each.peer for each in (ANN, BOB, CAI))
    async with rig(tmp_path) as r:
        r.decide(opening(r.context.ledger.snapshot, learners=members))
        for peer in members[:2]:
            hear(r, peer, dialable=False)
        paths = r.context.peers.paths
        paths.mine = dict.fromkeys(members, FAST)
        ann_bob = tuple(sorted(members[:2]))

        def apart(one: PeerId, other: PeerId) -> bool:
            return {one, other} == set(members[:2])

        assert paths.between(members, apart).rates[ann_bob] == 0.0  # type: ignore[index]
        maybe = paths.between(members, apart, unproven_rate=5.0)
        assert maybe.rates[ann_bob] == 5.0  # type: ignore[index]
        paths.note_report(ANN.peer, [(BOB.peer, SLOW)], r.context.ledger.snapshot.since)
        proven = paths.between(members, apart, unproven_rate=5.0)
        assert proven.rates[ann_bob] == 1e6  # type: ignore[index]


async def test_order_has_few_edges_that_need_a_relay(tmp_path: FilePath) -> None:
    """The ports of Ann, Bob and Cai change. Two others can be dialled and relay; so does this node.
    All paths are measured and equally fast, those through relays too."""
    behind, relays = (ANN.peer, BOB.peer, CAI.peer), (somebody(120).peer, somebody(121).peer)
    others = (*behind, *relays)
    async with rig(tmp_path) as r:
        context, me = r.context, r.context.me
        r.decide(opening(context.ledger.snapshot, learners=others))
        context.own_heartbeat.dialled = True
        for peer in others:
            told = {"dialable": False, "changes_ports": True} if peer in behind else {"relays": 3}
            endpoint = Endpoint(peer, "203.0.113.5", 4202, b"certificate")
            hear(r, peer, endpoint=pack(endpoint.to_wire()), **told)
            context.peers.detector.note_arrival(peer, context.now())
        context.peers.paths.mine = dict.fromkeys(others, FAST)
        for peer in others:
            reports = [(each, FAST) for each in (me, *others) if each != peer]
            context.peers.paths.note_report(peer, reports, context.ledger.snapshot.since)
        paths = ring_order.paths_between(context, (me, *others))
        assert paths.relayed == frozenset(combinations(sorted(behind), 2))
        assert paths.relays == Relays(count=3, places=8, uplink=1e8)
        schedule, order = ring_order.arrange(context, (me, *others))
        neighbours = {frozenset(pair) for pair in pairwise([*order, order[0]])}
        assert schedule == "ring"
        assert not neighbours & {frozenset(pair) for pair in paths.relayed}


async def test_node_predicts_relays_for_its_own_pairs_from_the_last_connection(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        context, me, ann = r.context, r.context.me, ANN.peer
        context.own_heartbeat.dialable = False
        hear(r, ann, dialable=False, changes_ports=True)
        hear(r, BOB.peer, dialable=False)
        assert ring_order.needs_relay(context, me, ann), "no connection yet: its ports change"
        assert ring_order.needs_relay(context, ann, BOB.peer)
        assert not ring_order.needs_relay(context, me, BOB.peer)
        context.peers.punching.note_reached(ann, context.now())
        assert not ring_order.needs_relay(context, me, ann), "its router lets everybody in"
        context.peers.relaying.note_reached(BOB.peer, context.now())
        assert ring_order.needs_relay(context, BOB.peer, me)


async def test_peers_that_cannot_connect_to_each_other_are_left_out_in_turn(
    tmp_path: FilePath,
) -> None:
    """In each outer step, one peer of the pair must sit out: the other one accuses it, and it
    accuses nobody. In the next outer step, they swap roles."""
    async with rig(tmp_path) as r:
        me, ann = r.context.me, ANN.peer
        r.context.own_heartbeat.dialable = False
        hear(r, ann, dialable=False)
        named = []
        for step in (0, 1):
            with pytest.raises(
                ReduceAborted, match="can be dialled, and they are neighbours"
            ) as at:
                await connect(r.context, requested(r, ann, step=step), ReduceLinks())
            named.append(at.value.suspects)
        pair = sorted((me, ann))
        assert named == [(ann,) if pair[step] == ann else () for step in (0, 1)]


async def test_number_of_connections_is_bounded(tmp_path: FilePath) -> None:
    others = [somebody(500 + number).peer for number in range(NEIGHBOURS_MAX + 1)]
    async with rig(tmp_path) as r:
        request = replace(requested(r, *others), schedule="direct")
        with pytest.raises(
            ReduceAborted, match="with the direct schedule this node would have 63 neighbours"
        ):
            await connect(r.context, request, ReduceLinks())
