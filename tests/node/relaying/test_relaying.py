"""Members that cannot connect to each other meet at a relay, and the relay keeps to its ledger."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.dataplane import PeerSocket, RingKey, plain_pair
from p2ptrain.dataplane.relaying import (
    EdgeKey,
    FetchKey,
    Refusal,
    RelayLimits,
    RelayRefused,
    RelayTotals,
    RelayView,
)
from p2ptrain.dataplane.sockets import RelayFault
from p2ptrain.encoding import pack
from p2ptrain.errors import NotAuthorised, PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.names import peer_name
from p2ptrain.node.gossip.gossip import describe
from p2ptrain.node.relaying import meetings, own_relay
from p2ptrain.node.relaying.relayed_links import (
    blamable,
    dial_relayed,
    relay_offers,
    routes,
    serve_relayed,
)
from p2ptrain.peers.heartbeat import decode, encode
from p2ptrain.peers.protocol_names import RELAY_PROTOCOL
from p2ptrain.peers.relay_messages import MeetRequest
from tests.node.cable import network_of
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, settled
from tests.node.test_forwarding import three

DEADLINE_S = 30.0


@dataclass
class Members:
    """Two members that can only dial the relay."""

    sender: Rig
    relay: Rig
    receiver: Rig

    def decide(self, **changes: object) -> None:
        for each in (self.sender, self.relay, self.receiver):
            each.set_chain(**changes)

    def begin_attempt(self, *peers: PeerId, step: int = 0, attempt: int = 0) -> None:
        names = tuple(each.context.me for each in (self.sender, self.relay, self.receiver))
        participants = tuple(Participant(peer, 1, 1) for peer in peers)
        roster = Roster(step, attempt, names, (), participants)
        self.decide(phase=Phase.REDUCE, roster=roster, step=step, attempt=attempt + 1)


def echo(connection: PeerSocket, hello: Mapping[str, object]) -> None:
    connection.set_deadline(DEADLINE_S)
    while True:
        connection.send_frame(connection.receive_frame())


@asynccontextmanager
async def members(tmp_path: Path) -> AsyncIterator[Members]:
    async with three(tmp_path) as (sender, relay, receiver, _):
        rigs = (sender, relay, receiver)
        for each in rigs:
            for other in rigs:
                endpoint = other.context.plane.endpoint
                each.context.plane.listener.trust_certificate(endpoint.certificate_der)
                beat = heartbeat(
                    sender.run.id,
                    incarnation=other.context.identities.incarnation,
                    serial=9,
                    endpoint=pack(endpoint.to_wire()),
                    relays=2 if other is relay else 0,
                )
                now = each.context.now()
                each.context.peers.table.note_heartbeat(other.context.me, beat, now)
                each.context.peers.detector.note_arrival(other.context.me, now)
        receiver.context.plane.listener.handle("echo", echo)
        with ExitStack() as stack:
            own_relay.open_relay(stack, relay.context)
            yield Members(*rigs)


async def fetch(found: Members, key: FetchKey | None = None) -> PeerSocket:
    context = found.sender.context
    key = key or meetings.new_fetch_key(context)
    ways = routes(context, found.receiver.context.me, key)[:1]
    await meetings.ask_to_meet(context, ways[0])
    return await dial_relayed(context, ways, {"purpose": "echo"}, deadline_s=DEADLINE_S)


async def test_member_fetches_through_a_relay_after_it_has_asked(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with members(tmp_path) as found:
        nursery.start_soon(meetings.answer_meetings, found.receiver.context)
        await trio.testing.wait_all_tasks_blocked()
        connection = await fetch(found)
        connection.set_deadline(DEADLINE_S)
        await trio.to_thread.run_sync(connection.send_frame, b"chunk")
        assert await trio.to_thread.run_sync(connection.receive_frame) == b"chunk"
        relay = found.relay.context
        assert (connection.peer, connection.via) == (found.receiver.context.me, relay.me)
        connection.close()
        await settled(lambda: bool(found.relay.said("relay-ended")))
        joined, ended = (found.relay.said(name)[0] for name in ("relay-joined", "relay-ended"))
        ends = sorted((found.sender.context.me, found.receiver.context.me))
        assert (joined["peers"], joined["purpose"]) == (ends, "fetch")
        totals = relay.peers.relaying.totals
        assert totals is not None
        assert ended["bytes"] == totals.total_bytes
        assert own_relay.in_words(totals).startswith("0 of 2 pairs now; ")
        nursery.cancel_scope.cancel()


async def test_neighbours_meet_without_a_message(tmp_path: Path) -> None:
    async with members(tmp_path) as found:
        sender, receiver = found.sender.context, found.receiver.context
        found.begin_attempt(sender.me, receiver.me)
        key = EdgeKey(sender.run, 0, 0, 0, sender.me)
        ring = RingKey(sender.run, 0, 0, 0, sender.me)
        ways = routes(sender, receiver.me, key), routes(receiver, sender.me, key)
        assert [[each.relay.peer for each in way] for way in ways] == [[found.relay.context.me]] * 2
        dialled: list[PeerSocket] = []

        async def dial() -> None:
            dialled.append(
                await dial_relayed(sender, ways[0], ring.to_hello(), deadline_s=DEADLINE_S)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            nursery.start_soon(partial(serve_relayed, receiver, ways[1], deadline_s=DEADLINE_S))
        parked = receiver.plane.ring_inbox.wait_for_socket(ring, deadline_s=DEADLINE_S)
        assert (parked.peer, parked.via) == (sender.me, found.relay.context.me)
        direct, other = plain_pair(BOB.peer, sender.me)
        reached = {(sender.me, 0): parked, (BOB.peer, 0): direct}
        assert blamable((sender.me, BOB.peer), reached) == (BOB.peer,)
        for each in (parked, direct, other, dialled[0]):
            each.close()
        joined = found.relay.said("relay-joined")[0]
        assert (joined["purpose"], joined["step"], joined["attempt"]) == ("edge", 0, 0)


async def test_relay_refuses_a_member_that_does_not_take_part(tmp_path: Path) -> None:
    async with members(tmp_path) as found:
        sender, receiver = found.sender.context, found.receiver.context
        found.begin_attempt(sender.me, found.relay.context.me)
        ways = routes(sender, receiver.me, EdgeKey(sender.run, 0, 0, 0, sender.me))
        with pytest.raises(RelayRefused) as caught:
            await dial_relayed(sender, ways, {"purpose": "echo"}, deadline_s=DEADLINE_S)
        assert caught.value.kind is Refusal.NOT_ALLOWED
        refused = found.relay.said("relay-refused")[0]
        assert (refused["peer"], refused["kind"]) == (sender.me, "not-allowed")


async def test_dial_through_a_relay_can_be_cancelled(tmp_path: Path) -> None:
    async with members(tmp_path) as found:
        sender, receiver = found.sender.context, found.receiver.context
        ways = routes(sender, receiver.me, meetings.new_fetch_key(sender))
        before = threading.active_count()
        with trio.move_on_after(0.2) as limit:
            await dial_relayed(sender, ways, {"purpose": "echo"}, deadline_s=DEADLINE_S)
        assert limit.cancelled_caught
        assert threading.active_count() <= before + 2  # The relay's thread notices it soon.


async def test_request_to_meet_is_checked(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with members(tmp_path) as found:
        sender, relay, receiver = (
            each.context for each in (found.sender, found.relay, found.receiver)
        )
        nursery.start_soon(meetings.answer_meetings, receiver)
        await trio.testing.wait_all_tasks_blocked()
        mine, theirs = meetings.new_fetch_key(sender), meetings.new_fetch_key(relay)
        route = routes(sender, receiver.me, mine)[0]

        async def ask(relay_named: PeerId, key: FetchKey | EdgeKey) -> str:
            handler = network_of(found.receiver).handlers[RELAY_PROTOCOL]
            with pytest.raises(NotAuthorised) as caught:
                await handler(sender.me, MeetRequest(relay_named, key).encode())
            return caught.value.what

        assert "from the end that dials" in await ask(relay.me, theirs)
        assert "another member" in await ask(receiver.me, mine)
        found.begin_attempt(relay.me, receiver.me)
        assert "take part" in await ask(relay.me, EdgeKey(sender.run, 0, 0, 0, sender.me))
        receiver.peers.table.forget(relay.me)
        with pytest.raises(PeerUnreachable, match="does not know the relay"):
            await meetings.ask_to_meet(sender, route)
        found.decide(since={relay.me: 0, receiver.me: 0})
        assert "both ends must be members" in await ask(relay.me, mine)
        nursery.cancel_scope.cancel()


async def test_only_members_that_offer_and_can_be_dialled_are_chosen(tmp_path: Path) -> None:
    async with members(tmp_path) as found:
        sender, relay = found.sender.context, found.relay.context
        assert relay_offers(sender).keys() == {relay.me}
        key = meetings.new_fetch_key(sender)
        beat = sender.peers.table.get(relay.me)
        assert beat is not None
        changes: list[dict[str, object]] = [{"dialable": False}, {"relays": 0}]
        for serial, change in enumerate(changes, start=20):
            told = replace(beat.heartbeat, serial=serial, **change)  # type: ignore[arg-type]
            assert sender.peers.table.note_heartbeat(relay.me, told, sender.now())
            assert relay_offers(sender) == {}
        with pytest.raises(RelayFault, match="no member offers"):
            routes(sender, found.receiver.context.me, key)


async def test_node_offers_to_relay_once_others_reach_it(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path)
    assert describe(r.context, 0, 0).relays == 0
    r.context.own_heartbeat.dialled = True
    beat = describe(r.context, 0, 1)
    assert beat.relays == 2
    assert decode(encode(beat)) == beat


@pytest.mark.parametrize(("limit", "relays"), [(None, True), (1_000_000, True), (100_000, False)])
async def test_node_with_a_slow_upload_does_not_relay(
    tmp_path: Path, new_rig: NewRig, limit: int | None, relays: bool
) -> None:
    r = await new_rig(tmp_path)
    r.configure(limit_up_bytes_per_s=limit)
    r.context.peers.relaying.server = None
    with ExitStack() as stack:
        own_relay.open_relay(stack, r.context)
        assert (r.context.peers.relaying.server is not None) == relays


async def test_view_follows_the_ledger(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path)
    state = r.set_chain(step=3, attempt=1)
    run, since = r.context.run, state.since
    assert own_relay.own_view(r.context) == RelayView(run, since, 3, 1)
    roster = Roster(3, 1, (r.context.me, ANN.peer), (), (Participant(ANN.peer, 1, 1),))
    r.set_chain(phase=Phase.REDUCE, roster=roster, attempt=2)
    assert own_relay.own_view(r.context) == RelayView(run, since, 3, 1, (ANN.peer,))


def test_status_names_the_peers() -> None:
    assert own_relay.in_words(None) == ""
    assert (
        own_relay.in_words(RelayTotals(0, 2, 0, 0, ())) == "0 of 2 pairs now; nothing relayed yet"
    )
    by_peer = ((BOB.peer, 2 * 10**9), (CAI.peer, 10**9))
    totals = RelayTotals(1, 2, 10**9, 3 * 10**9, by_peer, ((BOB.peer, 10**9),))
    assert own_relay.in_words(totals).split("; ") == [
        "1 of 2 pairs now",
        "1.0 GB today, 3.0 GB in all",
        f"{peer_name(BOB.peer)} sent 1.0 GB today, 2.0 GB in all",
        f"{peer_name(CAI.peer)} sent 0 bytes today, 1.0 GB in all",
    ]
    assert own_relay.as_json(totals) == {
        "edges_now": 1,
        "edges_most": 2,
        "today_bytes": 10**9,
        "total_bytes": 3 * 10**9,
        "by_peer": dict(by_peer),
        "today_by_peer": {BOB.peer: 10**9},
    }


async def test_usual_limits_are_those_of_the_configuration(tmp_path: Path, new_rig: NewRig) -> None:
    config = (await new_rig(tmp_path)).context.config
    assert RelayLimits() == RelayLimits(config.relay_edges, config.relay_bytes_per_day)
