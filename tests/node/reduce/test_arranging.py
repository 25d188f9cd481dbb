"""The order and the schedule that a node proposes, and which peer dials which."""

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
from p2ptrain.run.manifest import CodecSpec
from tests.node.rig import ANN, BOB, CAI, Rig, heartbeat, opening, rig, somebody

SLOW, FAST = Path(1_000, 1), Path(100_000, 1)


def hear(r: Rig, peer: PeerId, **changes: object) -> None:
    r.parts.peers.note_heartbeat(peer, heartbeat(r.run.id, **changes), r.parts.now())


def requested(r: Rig, *others: PeerId, step: int = 0) -> ReduceRequest:
    """A reduce of these peers and us. We stand first."""
    parts = [Participant(peer, 16, 1) for peer in (r.parts.me, *others)]
    roster = opening(r.parts.ledger.state, *parts, learners=others)
    request = _request(r.parts, r.parts.outer_step(roster.step), roster)
    return replace(request, step=step)


# ── what is proposed ─────────────────────────────────────────────────────────────────────────────


async def test_measured_rates_decide_the_order_and_status_says_why(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        parts, ann, bob, cai = r.parts, ANN.peer, BOB.peer, CAI.peer
        me = parts.me
        joined = opening(parts.ledger.state, learners=(ann, bob, cai))
        r.decide(joined)
        parts.paths.mine = {ann: SLOW, bob: FAST, cai: FAST}
        parts.paths.note_report(ann, [(bob, FAST), (cai, FAST)], parts.ledger.state.since)
        parts.paths.note_report(bob, [(cai, SLOW)], parts.ledger.state.since)
        assert ring_order.in_words(parts) == ""
        schedule, order = ring_order.arrange(parts, (me, ann, bob, cai))
        assert (schedule, ring_order.arrange(parts, (me, ann, bob, cai))[1]) == ("ring", order)
        at = order.index(me)
        # The slow paths, to ann and from bob to cai, are not used.
        assert order[(at + 2) % 4] == ann
        (said,) = r.said("arranged")
        assert (said["schedule"], said["peers"]) == ("ring", order)
        ours = tuple(Participant(peer, 16, 1) for peer in order)
        r.decide(opening(parts.ledger.state, *ours, learners=(ann, bob, cai)))
        words = ring_order.in_words(parts)
        assert words.startswith("ring, in the order ")
        assert words.endswith(str(said["reason"]))
        parts.standing.arranged = None
        assert words.startswith(ring_order.in_words(parts) + "; ")


async def test_run_of_four_bits_is_not_averaged_in_a_long_ring(tmp_path: FilePath) -> None:
    """Over slow paths all schedules take nearly the same time, and the ring stands."""
    members = tuple(somebody(number).peer for number in range(110, 114))
    for name, schedule in (("int4", "direct"), ("int8", "ring")):
        codec = CodecSpec(name, 64)  # type: ignore[arg-type]
        async with rig(tmp_path / name, codec=codec) as r:
            r.decide(opening(r.parts.ledger.state, learners=members))
            r.parts.paths.mine = dict.fromkeys(members, Path(1, 1))
            others = [(each, Path(1, 1)) for each in members]
            for peer in members:
                r.parts.paths.note_report(peer, others, r.parts.ledger.state.since)
            assert ring_order.arrange(r.parts, (r.parts.me, *members))[0] == schedule


async def test_impossible_order_is_a_warning_while_it_lasts(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        parts, trio = r.parts, (r.parts.me, ANN.peer, BOB.peer)
        for peer in (ANN.peer, BOB.peer):
            hear(r, peer, dialable=False)
        assert undialable(parts, trio) == {ANN.peer, BOB.peer}
        assert ring_order.arrange(parts, trio)[0] == "ring"
        warning = parts.standing.warnings["arrangement"]
        assert warning.what.startswith("in every order some neighbours cannot connect: ")
        hear(r, BOB.peer, dialable=True, serial=2)
        ring_order.arrange(parts, trio)
        assert "arrangement" not in parts.standing.warnings
        assert [bool(each["barred"]) for each in r.said("arranged")] == [True, False]


async def test_peers_report_only_their_own_paths(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        parts, ann, bob = r.parts, ANN.peer, BOB.peer
        r.decide(opening(parts.ledger.state, learners=(ann,)))
        parts.paths.mine = {ann: FAST}
        parts.paths.choose_page(0.0)
        told = describe(parts, 1, 1)
        assert (told.paths, told.dialled, told.dialable) == (((ann, FAST),), False, True)
        _take_in(parts, ann, heartbeat(r.run.id, paths=((parts.me, SLOW), (bob, SLOW))))
        _take_in(parts, bob, heartbeat(r.run.id, paths=((parts.me, SLOW),)))
        assert parts.paths.heard == {ann: {parts.me: SLOW}}


# ── who can be dialled ───────────────────────────────────────────────────────────────────────────


async def test_node_not_dialled_for_long_doubts_that_it_can_be(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as r:
        parts = r.parts
        assert judged_reach(parts) == (False, True)
        parts.started_s = time.monotonic() - DOUBT_S - 1
        assert judged_reach(parts) == (False, True)  # No peer is here that could dial.
        r.network.peers = {ANN.peer, BOB.peer}
        # Only members probe, and these are not members.
        assert judged_reach(parts) == (False, True)
        r.decide(replace(opening(parts.ledger.state), learners=(ANN.peer, BOB.peer)))
        assert judged_reach(parts) == (False, False)
        for counts in (ListenerStatistics(served=1), ListenerStatistics(connections_now=1)):
            monkeypatch.setattr(parts.listener, "statistics", lambda counts=counts: counts)
            assert judged_reach(parts) == (True, True)
        monkeypatch.setattr(parts.listener, "statistics", ListenerStatistics)
        monkeypatch.setattr(r.network, "addresses", list)
        parts.started_s = time.monotonic()
        assert judged_reach(parts) == (False, False)  # It does not listen.


async def test_node_that_cannot_be_dialled_is_warned_while_it_lasts(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        for dialable, codes in ((True, []), (False, ["NET-OUTBOUND-ONLY"]), (True, [])):
            r.parts.standing.dialable = dialable
            reachability.warn(r.parts)
            assert [each.code for each in r.parts.standing.warnings.values()] == codes


async def test_reachability_is_described_in_words(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        told = []
        for dialled, dialable in ((True, True), (False, True), (False, False)):
            r.parts.standing.dialled, r.parts.standing.dialable = dialled, dialable
            told.append(reachability.in_words(r.parts))
        assert told == [
            "other peers can dial this node",
            "no peer has dialled this node yet",
            "other peers cannot dial this node, so its neighbours in an exchange must be peers "
            "that it can dial",
        ]


@pytest.mark.parametrize(
    ("mine", "theirs", "we_dial"),
    [(True, True, True), (True, False, False), (False, True, True)],
)
async def test_first_peer_dials_unless_only_it_can_be_dialled(
    tmp_path: FilePath, mine: bool, theirs: bool, we_dial: bool
) -> None:
    async with rig(tmp_path) as r:
        r.parts.standing.dialable = mine
        hear(r, ANN.peer, dialable=theirs)
        opener = reduce_links._opener(r.parts, requested(r, ANN.peer), ANN.peer)
        assert (opener is reduce_links._reach) is we_dial


async def test_pair_that_cannot_connect_gives_up_and_sits_out_in_turn(
    tmp_path: FilePath,
) -> None:
    """The named peer is left out of the next attempt. The other end names the same peer."""
    async with rig(tmp_path) as r:
        me, ann = r.parts.me, ANN.peer
        r.parts.standing.dialable = False
        hear(r, ann, dialable=False)
        named = []
        for step in (0, 1):
            with pytest.raises(
                ReduceAborted, match="can be dialled, and they are neighbours"
            ) as at:
                await connect(r.parts, requested(r, ann, step=step), Edges())
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
            await connect(r.parts, request, Edges())
