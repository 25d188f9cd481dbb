"""The order and the schedule that a node proposes, and who dials whom."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from p2ptrain.dataplane.listener import ListenerStatistics
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.node.gossip import reachability
from p2ptrain.node.gossip.gossip import _take_in, describe
from p2ptrain.node.gossip.reachability import DOUBT_S, judged_reach, undialable
from p2ptrain.node.reduce import reduce_links, ring_order
from p2ptrain.node.reduce.reduce_links import Edges, connect
from p2ptrain.node.reduce.reduce_task import _request
from p2ptrain.peers.path_table import Path
from p2ptrain.ring import NEIGHBOURS_MAX, ReduceRequest
from tests.node.rig import ANN, BOB, CAI, Rig, heartbeat, opening, rig, somebody

SLOW, FAST = Path(1_000, 1), Path(100_000, 1)


def hear(r: Rig, peer: PeerId, **changes: object) -> None:
    r.context.peers.table.take(peer, heartbeat(r.run.id, **changes), r.context.now())


def requested(r: Rig, *others: PeerId, step: int = 0) -> ReduceRequest:
    """A reduce of these and us, who stand first."""
    context = [Participant(peer, 16, 1) for peer in (r.context.me, *others)]
    roster = opening(r.context.ledger.snapshot, *context, learners=others)
    request = _request(r.context, r.context.outer_step(roster.step), roster)
    return replace(request, step=step)


# ── what is proposed ─────────────────────────────────────────────────────────────────────────────


async def test_what_was_measured_here_and_there_decides_the_order_and_the_status_says_why(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        context, ann, bob, cai = r.context, ANN.peer, BOB.peer, CAI.peer
        me = context.me
        joined = opening(context.ledger.snapshot, learners=(ann, bob, cai))
        r.decide(joined)
        context.peers.paths.mine = {ann: SLOW, bob: FAST, cai: FAST}
        context.peers.paths.hear(ann, [(bob, FAST), (cai, FAST)], context.ledger.snapshot.since)
        context.peers.paths.hear(bob, [(cai, SLOW)], context.ledger.snapshot.since)
        assert ring_order.in_words(context) == ""
        schedule, order = ring_order.arrange(context, (me, ann, bob, cai))
        assert (schedule, ring_order.arrange(context, (me, ann, bob, cai))[1]) == ("ring", order)
        at = order.index(me)
        assert order[(at + 2) % 4] == ann  # The slow paths, to ann and bob to cai, are not used.
        (said,) = r.said("arranged")
        assert (said["schedule"], said["peers"]) == ("ring", order)
        ours = tuple(Participant(peer, 16, 1) for peer in order)
        r.decide(opening(context.ledger.snapshot, *ours, learners=(ann, bob, cai)))
        words = ring_order.in_words(context)
        assert words.startswith("ring, in the order ")
        assert words.endswith(str(said["reason"]))
        context.reduce.arranged = None
        assert words.startswith(ring_order.in_words(context) + "; ")


async def test_that_no_order_will_do_is_a_warning_for_as_long_as_it_is_so(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        context, trio = r.context, (r.context.me, ANN.peer, BOB.peer)
        for peer in (ANN.peer, BOB.peer):
            hear(r, peer, dialable=False)
        assert undialable(context, trio) == {ANN.peer, BOB.peer}
        assert ring_order.arrange(context, trio)[0] == "ring"
        warning = context.alerts.warnings["arrangement"]
        assert warning.what.startswith("no order is without pairs that cannot connect: ")
        hear(r, BOB.peer, dialable=True, serial=2)
        ring_order.arrange(context, trio)
        assert "arrangement" not in context.alerts
        assert [bool(each["barred"]) for each in r.said("arranged")] == [True, False]


async def test_paths_are_heard_of_members_about_themselves(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        context, ann, bob = r.context, ANN.peer, BOB.peer
        r.decide(opening(context.ledger.snapshot, learners=(ann,)))
        context.peers.paths.mine = {ann: FAST}
        context.peers.paths.turn(0.0)
        told = describe(context, 1, 1)
        assert (told.paths, told.dialled, told.dialable) == (((ann, FAST),), False, True)
        _take_in(context, ann, heartbeat(r.run.id, paths=((context.me, SLOW), (bob, SLOW))))
        _take_in(context, bob, heartbeat(r.run.id, paths=((context.me, SLOW),)))
        assert context.peers.paths.heard == {ann: {context.me: SLOW}}


# ── who can be dialled ───────────────────────────────────────────────────────────────────────────


async def test_a_node_doubts_that_it_can_be_dialled_when_nobody_has_for_long(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as r:
        context = r.context
        assert judged_reach(context) == (False, True)
        context.state.started_s = time.monotonic() - DOUBT_S - 1
        assert judged_reach(context) == (False, True)  # Nobody is here who could.
        r.network.peers = {ANN.peer, BOB.peer}
        assert judged_reach(context) == (False, True)  # Only members probe, and these are none.
        r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer, BOB.peer)))
        assert judged_reach(context) == (False, False)
        for counts in (ListenerStatistics(served=1), ListenerStatistics(connections_now=1)):
            monkeypatch.setattr(context.plane.listener, "statistics", lambda counts=counts: counts)
            assert judged_reach(context) == (True, True)
        monkeypatch.setattr(context.plane.listener, "statistics", ListenerStatistics)
        monkeypatch.setattr(r.network, "addresses", list)
        context.state.started_s = time.monotonic()
        assert judged_reach(context) == (False, False)  # It listens nowhere.


async def test_who_cannot_be_dialled_is_warned_for_as_long_as_it_is_so(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        for dialable, codes in ((True, []), (False, ["NET-OUTBOUND-ONLY"]), (True, [])):
            r.context.own_heartbeat.dialable = dialable
            reachability.warn(r.context)
            assert [each.code for each in r.context.alerts.warnings.values()] == codes


async def test_reach_is_told_in_words(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        told = []
        for dialled, dialable in ((True, True), (False, True), (False, False)):
            r.context.own_heartbeat.dialled, r.context.own_heartbeat.dialable = dialled, dialable
            told.append(reachability.in_words(r.context))
        assert told == [
            "others can dial this node",
            "nobody has dialled this node yet",
            "others cannot dial this node: it averages only beside those that it can dial",
        ]


@pytest.mark.parametrize(
    ("mine", "theirs", "we_dial"),
    [(True, True, True), (True, False, False), (False, True, True)],
)
async def test_the_first_dials_unless_only_it_can_be_dialled(
    tmp_path: FilePath, mine: bool, theirs: bool, we_dial: bool
) -> None:
    async with rig(tmp_path) as r:
        r.context.own_heartbeat.dialable = mine
        hear(r, ANN.peer, dialable=theirs)
        opener = reduce_links._opener(r.context, requested(r, ANN.peer), ANN.peer)
        assert (opener is reduce_links._reach) is we_dial


async def test_two_that_cannot_dial_each_other_give_up_at_once_and_take_turns(
    tmp_path: FilePath,
) -> None:
    """The one who is named is left out of the next attempt; the other end names the same one."""
    async with rig(tmp_path) as r:
        me, ann = r.context.me, ANN.peer
        r.context.own_heartbeat.dialable = False
        hear(r, ann, dialable=False)
        named = []
        for step in (0, 1):
            with pytest.raises(
                ReduceAborted, match="can be dialled, and they are neighbours"
            ) as at:
                await connect(r.context, requested(r, ann, step=step), Edges())
            named.append(at.value.suspects)
        pair = sorted((me, ann))
        assert named == [(ann,) if pair[step] == ann else () for step in (0, 1)]


async def test_nobody_connects_to_more_than_it_has_room_for(tmp_path: FilePath) -> None:
    others = [somebody(500 + number).peer for number in range(NEIGHBOURS_MAX + 1)]
    async with rig(tmp_path) as r:
        request = replace(requested(r, *others), schedule="direct")
        with pytest.raises(ReduceAborted, match="by direct this node would have 63 neighbours"):
            await connect(r.context, request, Edges())
