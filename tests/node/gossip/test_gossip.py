"""The heartbeats that a node sends, and its reactions to the heartbeats and allowlists of other
peers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import P2PTrainError, PeerUnreachable
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.ledger.messages.events import PeerHeight
from p2ptrain.ledger.messages.peer_reports import (
    AllowedPeers,
    Joining,
    Leaving,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    Staying,
)
from p2ptrain.node.gossip.allowlist_gossip import ALLOWLIST_BYTES_MAX
from p2ptrain.node.gossip.allowlist_notices import AllowlistNotices
from p2ptrain.node.gossip.gossip import (
    describe,
    heartbeat_senders,
    interval_s,
    listen,
    report,
    send_heartbeats,
)
from p2ptrain.node.state.timing import USUAL
from p2ptrain.peers.heartbeat import (
    SUSPECTS_MAX,
    ReadyReport,
    ReduceReport,
    SnapshotReport,
    decode,
    encode,
)
from p2ptrain.peers.heartbeat_delta import (
    FULL_AT_FIRST,
    FullHeartbeat,
    HeartbeatDelta,
    HeartbeatSender,
    decode_beat,
)
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.peers.protocol_names import allowlist_topic, heartbeat_topic
from p2ptrain.run import Allowlist, SignedAllowlist
from p2ptrain.sync.trainer_orders import LocalWork
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, opening, rig, settled, somebody

UPDATE = Digest("d" * 64)


def events_of(r: Rig, before: object = None, **changes: object) -> list[object]:
    beat = heartbeat(r.run.id, **changes)
    report(r.context, ANN.peer, beat, before)  # type: ignore[arg-type]
    return list(r.heard())


async def test_each_statement_in_a_heartbeat_becomes_an_event(tmp_path: Path) -> None:
    ann = ANN.peer
    async with rig(tmp_path) as r:
        assert events_of(r) == [PeerHeight(ann, 0, r.run.id)]
        assert events_of(r, joining=True) == [PeerHeight(ann, 0, r.run.id), Joining(ann)]
        assert events_of(r, leaving=True, joining=True) == [
            PeerHeight(ann, 0, r.run.id),
            Leaving(ann),
        ]
        assert events_of(r, ready=ReadyReport(3, 32, 2)) == [
            PeerHeight(ann, 0, r.run.id),
            Ready(ann, 3, 32, 2),
        ]
        said = ClaimStatement(3, 1, 32, 2, UPDATE, bytes(64))
        assert events_of(r, ready=ReadyReport(3, 32, 2, said))[1:] == [Ready.of(ann, said)]
        assert events_of(r, trains=False, step=4, height=9) == [
            PeerHeight(ann, 9, r.run.id),
            Ready(ann, 4, 0, 0),
        ]
        done = ReduceReport(3, 1, UPDATE, ())
        assert events_of(r, reduce=done)[1:] == [ReduceDone(ann, 3, 1, UPDATE)]
        snapshot = SnapshotReport(2, UPDATE)
        assert events_of(r, snapshot=snapshot)[1:] == [SnapshotTaken(ann, 2, UPDATE)]
        failed = ReduceReport(3, 1, None, (BOB.peer,))
        assert events_of(r, reduce=failed)[1:] == [ReduceFailed(ann, 3, 1, (BOB.peer,))]


async def test_heartbeat_after_a_replayed_goodbye_takes_it_back(tmp_path: Path) -> None:
    """Any peer can gossip an old heartbeat again in which another peer says that it is leaving. So
    the other peer's next heartbeat takes that back."""
    async with rig(tmp_path) as r:
        r.context.ledger.core.handle(Leaving(ANN.peer), 0.0)
        assert events_of(r)[1:] == [Staying(ANN.peer)]
        r.context.ledger.core.handle(Staying(ANN.peer), 0.0)
        assert events_of(r)[1:] == []


async def test_restarted_node_withdraws_its_ready(tmp_path: Path) -> None:
    ready = ReadyReport(3, 32, 2)
    async with rig(tmp_path) as r:
        was_ready = heartbeat(r.run.id, step=3, ready=ready)
        restarted = {"incarnation": 2, "step": 3}
        assert events_of(r, was_ready, **restarted)[1:] == [Ready(ANN.peer, 3, 0, 0)]
        # The Ready is not withdrawn by an ordinary heartbeat, by one for a different step, or by
        # one that says that the restarted node is ready again.
        assert events_of(r, was_ready, serial=2, step=3)[1:] == []
        assert events_of(r, was_ready, incarnation=2, step=4)[1:] == []
        assert events_of(r, was_ready, **restarted, ready=ready)[1:] == [Ready(ANN.peer, 3, 32, 2)]


async def test_own_heartbeat_names_a_bounded_number_of_suspects(tmp_path: Path) -> None:
    suspects = tuple(somebody(number).peer for number in range(SUSPECTS_MAX + 9))
    async with rig(tmp_path) as r:
        r.context.trainer.work = LocalWork(0, (4, 5), 32)
        r.context.reduce.report = ReduceReport(0, 1, None, suspects)
        heard = decode(encode(describe(r.context, 7, 9)))
        assert (heard.incarnation, heard.serial, heard.trains) == (7, 9, True)
        assert heard.ready == ReadyReport(0, 32, 2)
        assert heard.reduce == ReduceReport(0, 1, None, suspects[:SUSPECTS_MAX])
        assert heard.head == Digest(r.run.id)


async def test_heartbeat_is_sent_at_once_when_something_changed(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    r.wait_for(heartbeat_s=1000.0)
    nursery.start_soon(send_heartbeats, r.context)
    await settled(lambda: len(r.network.published) == 1)
    r.context.own_heartbeat.send_now()
    await settled(lambda: len(r.network.published) == 2)
    serials = [decode(payload).serial for _, payload in r.network.published]
    assert serials == [0, 1]


@pytest.mark.parametrize(("peers", "seconds"), [(0, 2.0), (20, 2.0), (40, 4.0), (100, 10.0)])
def test_heartbeats_are_less_frequent_in_a_large_run(peers: int, seconds: float) -> None:
    assert interval_s(peers, 2.0) == seconds


@pytest.mark.parametrize("admission", ["open", "allowlist"])
async def test_at_most_twenty_nonmembers_of_an_open_run_lengthen_the_interval(
    tmp_path: Path,
    admission: str,
    new_rig: NewRig,
    nursery: trio.Nursery,
) -> None:
    many = [somebody(number).peer for number in range(201, 301)]
    r = await new_rig(tmp_path, admission=admission)
    context, now = r.context, r.context.now()
    for peer in many:
        context.peers.table.note_heartbeat(peer, heartbeat(r.run.id), now)
    topics = Topics(r)
    nursery.start_soon(listen, context)
    await topics.say(ANN.peer, heartbeat_topic(r.run.id), encode(heartbeat(r.run.id)))
    await settled(lambda: len(context.peers.table) == 101)
    expected = {"open": len(context.ledger.snapshot.members) + 20, "allowlist": 101}[admission]
    assert heartbeat_senders(context) == expected
    incarnations, again_s = (
        context.identities.incarnations,
        1.25 * interval_s(expected, USUAL.heartbeat_s),
    )
    assert incarnations.is_other_due(ANN.peer, 2, context.now() + 0.8 * again_s)
    assert not incarnations.is_other_due(ANN.peer, 2, context.now() + again_s)


async def test_all_members_of_an_open_run_lengthen_the_interval(tmp_path: Path) -> None:
    async with rig(tmp_path, admission="open") as r:
        context, many = r.context, [somebody(number).peer for number in range(1, 60)]
        for peer in many[:30]:
            context.peers.table.note_heartbeat(peer, heartbeat(r.run.id), context.now())
        assert heartbeat_senders(context) == 21
        r.decide(replace(opening(context.ledger.snapshot), learners=tuple(sorted(many))))
        assert heartbeat_senders(context) == 30


async def test_peer_that_floods_gossip_is_named_in_the_journal(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    Topics(r)
    r.network.floods = {ANN.peer: 700}
    nursery.start_soon(listen, r.context)
    await settled(lambda: bool(r.said("gossip-flood")))
    (said,) = r.said("gossip-flood")
    assert (said["peer"], said["unread"]) == (ANN.peer, 700)


class Topics:
    """Replaces gossip with channels. `say` publishes a payload in the name of a peer."""

    def __init__(self, r: Rig) -> None:
        self._rig = r
        self._ways_in: dict[str, trio.MemorySendChannel[tuple[PeerId, bytes]]] = {}
        r.network.subscribe = self._subscribe  # type: ignore[attr-defined]

    def _subscribe(self, topic: str) -> trio.MemoryReceiveChannel[tuple[PeerId, bytes]]:
        way_in, out = trio.open_memory_channel[tuple[PeerId, bytes]](64)
        self._ways_in[topic] = way_in
        return out

    async def say(self, peer: PeerId, topic: str, payload: bytes) -> None:
        await settled(lambda: topic in self._ways_in)
        await self._ways_in[topic].send((peer, payload))


async def test_unadmitted_peers_are_ignored_and_bad_messages_journaled_once(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer])
    topics, topic = Topics(r), heartbeat_topic(r.run.id)
    nursery.start_soon(listen, r.context)
    await topics.say(BOB.peer, topic, encode(heartbeat(r.run.id)))
    for _ in range(50):
        await topics.say(ANN.peer, topic, b"nonsense")
    await topics.say(ANN.peer, topic, encode(heartbeat(r.run.id)))
    await settled(lambda: len(r.context.peers.table) == 1)
    assert r.context.peers.table.get(ANN.peer) is not None
    assert len(r.said("bad-gossip")) == 1
    assert r.heard() == [PeerHeight(ANN.peer, 0, r.run.id)]


def beats_of(r: Rig, serial: int, *changes: dict[str, object]) -> list[bytes]:
    """Return encoded heartbeats of a peer: a full one with `serial`, and then a small one for each
    of `changes`."""
    saying = HeartbeatSender()
    told = heartbeat(r.run.id, serial=serial)
    later = [replace(told, serial=serial + 1 + n, **each) for n, each in enumerate(changes)]  # type: ignore[arg-type]
    return [saying.encode_next(each) for each in (told, *later)]


async def test_small_heartbeats_cause_the_same_events_as_full_ones(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    topics, topic = Topics(r), heartbeat_topic(r.run.id)
    nursery.start_soon(listen, r.context)
    for payload in beats_of(r, FULL_AT_FIRST, {}, {"ready": ReadyReport(0, 32, 2)}):
        await topics.say(ANN.peer, topic, payload)
    await settled(lambda: r.context.ledger.queue.waiting == 4)
    ann = ANN.peer
    assert r.heard() == [
        PeerHeight(ann, 0, r.run.id),
        PeerHeight(ann, 0, r.run.id),
        PeerHeight(ann, 0, r.run.id),
        Ready(ann, 0, 32, 2),
    ]


async def test_small_heartbeat_that_cannot_be_decoded_is_a_sign_of_life(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    r.wait_for(heartbeat_s=1000.0)
    context, topics, topic = r.context, Topics(r), heartbeat_topic(r.run.id)
    nursery.start_soon(listen, context)
    _, unknown, again = beats_of(r, 20, {}, {})
    await topics.say(ANN.peer, topic, encode(heartbeat(r.run.id)))
    await settled(lambda: len(context.peers.table) == 1)
    context.peers.detector.hint_lost(ANN.peer, context.now() - USUAL.heartbeat_s)
    assert context.peers.is_down(ANN.peer)
    r.heard()
    await topics.say(BOB.peer, topic, unknown)
    await topics.say(ANN.peer, topic, unknown)
    await settled(lambda: not context.peers.is_down(ANN.peer))
    assert context.own_heartbeat.due.is_set()
    assert context.identities.incarnations.is_other_due(ANN.peer, 7, context.now())
    assert (len(context.peers.table), r.heard()) == (1, [])
    assert context.peers.table.pop_lacking() == (BOB.peer, ANN.peer)
    # The node sends early at most once per interval, however many such heartbeats arrive.
    context.own_heartbeat.due = trio.Event()
    await topics.say(ANN.peer, topic, again)
    await settled(lambda: context.peers.table.pop_lacking() == (ANN.peer,))
    assert not context.own_heartbeat.due.is_set()


async def test_heartbeats_from_before_a_restart_cannot_be_replayed(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    context, topics, topic = r.context, Topics(r), heartbeat_topic(r.run.id)
    nursery.start_soon(listen, context)
    before = heartbeat(r.run.id, incarnation=1, serial=5, ready=ReadyReport(0, 32, 2))
    after = heartbeat(r.run.id, incarnation=2, serial=1)
    for beat in (before, after):
        await topics.say(ANN.peer, topic, encode(beat))
    await settled(lambda: r.context.ledger.queue.waiting == 4)
    r.heard()
    await topics.say(ANN.peer, topic, encode(before))
    await topics.say(BOB.peer, topic, encode(heartbeat(r.run.id)))
    await settled(lambda: len(context.peers.table) == 2)
    assert r.heard() == [PeerHeight(BOB.peer, 0, r.run.id)]
    record = context.peers.table.get(ANN.peer)
    assert record is not None
    assert record.heartbeat == after


async def test_full_heartbeat_is_sent_to_a_peer_that_asks_for_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        r.wait_for(heartbeat_s=1000.0)
        context, topics, topic = r.context, Topics(r), heartbeat_topic(r.run.id)
        nursery.start_soon(listen, context)

        async def told(serial: int, *lacks: PeerId) -> tuple[bool, bool]:
            """Receive a heartbeat of Ann with this serial that asks the peers `lacks` for full
            heartbeats. Return whether our next heartbeat is full, and whether it is sent at
            once."""
            context.own_heartbeat.saying.full_next, context.own_heartbeat.due = False, trio.Event()
            beat = heartbeat(r.run.id, serial=serial, lacks=lacks)
            await topics.say(ANN.peer, topic, encode(beat))
            await settled(lambda: len(r.heard()) > 0)
            return context.own_heartbeat.saying.full_next, context.own_heartbeat.due.is_set()

        assert await told(1) == (True, False)  # for a newcomer, at the next interval
        assert await told(2) == (False, False)
        assert await told(3, BOB.peer) == (False, False)
        assert await told(4, BOB.peer, context.me) == (True, True)
        # If Ann asks again too soon, the full heartbeat is sent at the next interval.
        assert await told(5, context.me) == (True, False)
        nursery.cancel_scope.cancel()


async def test_next_heartbeat_asks_for_full_ones_and_small_ones_follow(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    assert r.context.peers.table.restore(ANN.peer, HeartbeatDelta(1, 2, 1, {})) is None
    nursery.start_soon(send_heartbeats, r.context)
    for count in range(1, FULL_AT_FIRST + 2):
        await settled(lambda count=count: len(r.network.published) == count)  # type: ignore[misc]
        r.context.own_heartbeat.send_now()
    beats = [decode_beat(payload) for _, payload in r.network.published[: FULL_AT_FIRST + 1]]
    full = [beat for beat in beats if isinstance(beat, FullHeartbeat)]
    assert [beat.heartbeat.lacks for beat in full] == [(ANN.peer,), *[()] * (FULL_AT_FIRST - 1)]
    incarnation = r.context.identities.incarnation
    assert beats[-1] == HeartbeatDelta(incarnation, FULL_AT_FIRST, FULL_AT_FIRST - 1, {})


async def test_heartbeats_of_a_different_run_are_ignored(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    topics, topic = Topics(r), heartbeat_topic(r.run.id)
    nursery.start_soon(listen, r.context)
    other = replace(heartbeat(r.run.id), run=RunId("b" * 64))
    await topics.say(ANN.peer, topic, encode(other))
    await topics.say(BOB.peer, topic, encode(heartbeat(r.run.id)))
    await settled(lambda: len(r.context.peers.table) == 1)
    assert r.context.peers.table.get(ANN.peer) is None


def newer(r: Rig, sequence: int, *peers: PeerId) -> SignedAllowlist:
    organiser = load_or_create(r.context.home.identity)
    return SignedAllowlist.publish(organiser, Allowlist.of(r.run.id, sequence, peers))


async def test_newer_allowlist_is_applied_and_forwarded(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    topics, topic = Topics(r), allowlist_topic(r.run.id)
    nursery.start_soon(listen, r.context)
    await settled(lambda: len(r.network.published) == 1)
    await topics.say(ANN.peer, topic, newer(r, 2, ANN.peer, CAI.peer).to_bytes())
    await settled(lambda: len(r.network.published) == 2)
    assert r.network.refreshed == 1
    assert r.heard() == [AllowedPeers(frozenset({r.context.me, ANN.peer, CAI.peer}))]
    passed_on = SignedAllowlist.from_bytes(r.network.published[1][1], r.run)
    assert passed_on.allowlist.sequence == 2


async def test_allowlist_too_long_for_gossip_is_announced_and_requested(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    many = [somebody(3000 + number).peer for number in range(ALLOWLIST_BYTES_MAX // 50)]
    r = await new_rig(tmp_path, allowed=[*many, ANN.peer, BOB.peer, CAI.peer])
    topics, topic = Topics(r), allowlist_topic(r.run.id)
    list_ = newer(r, 7, *many, ANN.peer, CAI.peer).to_bytes()

    async def hello(peer: PeerId, payload: bytes) -> bytes:
        return encode_reply(HelloReply(b"", list_, b"", True, {}))

    r.network.answer = hello
    nursery.start_soon(listen, r.context)
    await settled(lambda: len(r.network.published) == 1)
    assert unpack(r.network.published[0][1], bytes_max=100) == {"sequence": 1}
    await topics.say(ANN.peer, topic, pack({"sequence": 7}))
    await topics.say(ANN.peer, topic, pack({"sequence": 7}))
    await topics.say(ANN.peer, topic, pack({"sequence": -1}))
    await settled(lambda: len(r.network.published) == 2)
    assert r.context.admission.admits(CAI.peer)
    assert not r.context.admission.admits(BOB.peer)
    assert [peer for peer, _ in r.network.requested] == [ANN.peer]


async def test_false_announcements_do_not_delay_a_real_allowlist(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    topics, topic = Topics(r), allowlist_topic(r.run.id)

    async def hello(peer: PeerId, payload: bytes) -> bytes:
        if peer == BOB.peer:
            await trio.sleep_forever()
        list_ = newer(r, 7, ANN.peer, CAI.peer).to_bytes()
        return encode_reply(HelloReply(b"", list_, b"", True, {}))

    r.network.answer = hello
    nursery.start_soon(listen, r.context, None, AllowlistNotices(next_s=0.01))
    for sequence in (2**40, 2**41, 2**42):
        await topics.say(BOB.peer, topic, pack({"sequence": sequence}))
    await topics.say(CAI.peer, topic, newer(r, 2, ANN.peer, CAI.peer).to_bytes())
    await settled(lambda: not r.context.admission.admits(BOB.peer))
    await topics.say(CAI.peer, topic, pack({"sequence": 7}))
    await settled(lambda: len(r.network.published) == 3)
    assert [peer for peer, _ in r.network.requested] == [BOB.peer, CAI.peer]


@pytest.mark.parametrize("fault", [PeerUnreachable("gone"), None])
async def test_peer_that_did_not_send_its_announced_list_is_not_asked_soon(
    tmp_path: Path, fault: P2PTrainError | None, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    topics, topic = Topics(r), allowlist_topic(r.run.id)

    async def hello(peer: PeerId, payload: bytes) -> bytes:
        if fault is not None:
            raise fault
        return b"nonsense"

    r.network.answer = hello
    nursery.start_soon(listen, r.context)
    await topics.say(ANN.peer, topic, pack({"sequence": 7}))
    await topics.say(ANN.peer, topic, b"\x81")
    await settled(lambda: bool(r.said("list-not-shown")) and bool(r.said("bad-gossip")))
    await topics.say(ANN.peer, topic, pack({"sequence": 8}))
    await topics.say(BOB.peer, topic, pack({"sequence": 7}))
    await settled(lambda: len(r.said("list-not-shown")) == 2)
    assert [peer for peer, _ in r.network.requested] == [ANN.peer, BOB.peer]
    assert r.context.admission.admits(BOB.peer)
    assert r.heard() == []
