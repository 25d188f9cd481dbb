"""A node answers hellos: newcomers receive the run, admitted peers also receive addresses, and
requests to join are kept for the organiser."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.errors import RemoteProtocolError, TryLater
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId
from p2ptrain.names import label
from p2ptrain.node.control.progress_lines import print_progress
from p2ptrain.node.control.status import status
from p2ptrain.node.joining import hello_server as module
from p2ptrain.node.joining.hello_server import PEER_BURST, SITE_BURST, answer_hellos
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.status import NodeStatus, status_lines
from p2ptrain.peers.hello_messages import (
    HelloReply,
    HelloRequest,
    decode_reply,
    decode_request,
    encode_request,
)
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL
from p2ptrain.peers.reach_verdict import Reach, Verdict
from p2ptrain.run import Allowlist, JoinRequest, Run, SignedAllowlist
from tests.node.rig import ANN, BOB, CAI, OWN_ADDRESS, NewRig, Rig, rig, settled, somebody

DAN = somebody(104)


async def hello(r: Rig, peer: PeerId, join: bytes = b"") -> HelloReply:
    answer_hellos(r.context)
    request = encode_request(HelloRequest(r.run.id, join))
    return decode_reply(await r.network.handlers[HELLO_PROTOCOL](peer, request))


def request_of(identity: Identity, run: RunId, peer: PeerId | None = None) -> bytes:
    assert peer is None or peer == identity.peer
    return JoinRequest(run, identity.peer, 0, "a volunteer").to_bytes(identity)


async def test_stranger_gets_the_run_and_the_allowlist_but_not_addresses(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[ANN.peer]) as r:
        r.network.peers = {ANN.peer}
        r.network.remember(ANN.peer, ["/ip4/127.0.0.1/tcp/1"])
        reply = await hello(r, CAI.peer)
        assert Run.from_bytes(reply.manifest) == r.run
        assert (reply.admitted, reply.peers) == (False, {})
        assert reply.allowlist


async def test_admitted_peer_receives_the_addresses_of_connected_peers(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[ANN.peer, BOB.peer]) as r:
        r.network.peers = {ANN.peer, BOB.peer, CAI.peer}
        for peer in (ANN.peer, CAI.peer):
            r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
        reply = await hello(r, BOB.peer)
        assert reply.admitted
        assert reply.peers == {r.context.me: (OWN_ADDRESS,), ANN.peer: ("/ip4/127.0.0.1/tcp/1",)}


def admit(r: Rig, *peers: PeerId) -> None:
    """Apply a newer allowlist that contains `peers`, as if the organiser had published it."""
    newer = Allowlist.of(r.run.id, 2, peers)
    assert r.context.admission.adopt_if_newer(
        SignedAllowlist.publish(r.context.identity, newer).to_bytes()
    )


async def test_repeated_request_to_join_is_remembered_once(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[]) as r:
        for _ in range(3):
            await hello(r, CAI.peer, request_of(CAI, r.run.id))
        assert list(r.context.join_requests.pending) == [CAI.peer]
        assert [each["note"] for each in r.said("join-request")] == ["a volunteer"]


async def test_member_forwards_a_request_to_join_to_the_organiser(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer, BOB.peer])
    organiser = r.run.manifest.organiser
    r.surround(identity=ANN)
    request = request_of(CAI, r.run.id)
    await hello(r, CAI.peer, request)
    # Bob has already forwarded Dan's request, so this node does not forward it again.
    await hello(r, BOB.peer, request_of(DAN, r.run.id))
    nursery.start_soon(partial(module.pass_requests_on, r.context, pause_s=0.0))
    await trio.testing.wait_all_tasks_blocked()
    assert r.network.requested == [], "the organiser is not connected"
    r.network.peers = {organiser, BOB.peer}
    r.context.changes.notify_all()
    await settled(lambda: bool(r.network.requested))
    await hello(r, CAI.peer, request)  # A repeated request is not forwarded each time.
    ((to, sent),) = r.network.requested
    assert (to, decode_request(sent)) == (organiser, HelloRequest(r.run.id, request))


async def test_organiser_accepts_forwarded_requests_only_from_admitted_peers(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[ANN.peer]) as r:
        request = request_of(CAI, r.run.id)
        await hello(r, BOB.peer, request)
        assert r.context.join_requests.pending == {}
        short = await hello(r, ANN.peer, request)
        assert (
            list(r.context.join_requests.pending) == module.waiting_peers(r.context) == [CAI.peer]
        )
        assert (short.allowlist, short.peers) == (b"", {})
        own = await hello(r, ANN.peer, request_of(ANN, r.run.id))
        assert own.allowlist, "a peer that was just admitted gets the list"
        with pytest.raises(RemoteProtocolError):
            await hello(r, ANN.peer, b"noise")


async def test_requests_forwarded_by_one_member_leave_room_for_others(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[ANN.peer, BOB.peer]) as r:
        r.context.join_requests.pending_max = 3
        many, other = [somebody(number) for number in range(5)], somebody(9)
        for each in many:
            await hello(r, ANN.peer, request_of(each, r.run.id))
        await hello(r, BOB.peer, request_of(other, r.run.id))
        assert other.peer in r.context.join_requests.pending
        assert len(r.context.join_requests.pending) == 3


async def test_organiser_sees_requests_to_join_on_terminal_and_in_status(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    said: list[str] = []
    r = await new_rig(tmp_path, allowed=[])
    admit = f"p2ptrain peers approve {CAI.peer} --home {r.context.home.root}"
    words = f"{label(CAI.peer)} asks to join; to admit it, run: {admit}"
    nursery.start_soon(print_progress, r.context, said.append)
    await settled(lambda: said == ["starting"])
    for _ in range(2):
        await hello(r, CAI.peer, request_of(CAI, r.run.id))
        await settled(lambda: said == ["starting", words])
    told = await status(r.context)
    assert told.asking == (words,)
    assert f"pending   {words}" in status_lines(told)
    assert NodeStatus.from_json(told.to_json()) == told
    r.surround(identity=ANN)
    assert (await status(r.context)).asking == (), "only a node that can admit peers shows them"


async def test_each_warning_is_shown_once_with_its_code(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    said: list[str] = []
    r = await new_rig(tmp_path)
    nursery.start_soon(print_progress, r.context, said.append)
    told = ["starting", "warning: many messages: wait (p2ptrain explain FLOOD)"]
    for _ in range(2):
        r.context.alerts.show("flood", Caution("FLOOD", "many messages", "wait"))
        r.context.changes.notify_all()
        await settled(lambda: said == told)


async def test_each_new_verdict_about_reachability_is_shown_once(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    said: list[str] = []
    r = await new_rig(tmp_path)
    nursery.start_soon(print_progress, r.context, said.append)
    r.context.own_heartbeat.reach.verdict = Verdict(Reach.PUNCHED, "nothing to do")
    for _ in range(2):
        r.context.changes.notify_all()
        await settled(lambda: said == ["starting", "reachability: punched: nothing to do"])


async def test_request_to_join_for_a_different_peer_or_run_is_ignored(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[]) as r:
        await hello(r, BOB.peer, request_of(CAI, r.run.id))
        await hello(r, CAI.peer, request_of(CAI, RunId("b" * 64)))
        assert r.context.join_requests.pending == {}


async def test_forged_request_to_join_is_a_protocol_error(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[]) as r:
        sound = request_of(CAI, r.run.id)
        for join in (b"noise", sound[:-3], sound.replace(b"volunteer", b"volunteeR")):
            with pytest.raises(RemoteProtocolError):
                await hello(r, CAI.peer, join)
        assert r.context.join_requests.pending == {}


def identities() -> Iterator[Identity]:
    return map(somebody, count())


async def test_requests_to_join_are_bounded_and_admitted_peers_make_room(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[]) as r:
        r.context.join_requests.pending_max = 3
        first, second, third, fourth = (next(them) for them in [identities()] for _ in range(4))
        for each in (first, second, third, fourth):
            await hello(r, each.peer, request_of(each, r.run.id))
        assert list(r.context.join_requests.pending) == [first.peer, second.peer, third.peer]
        admit(r, second.peer)
        await hello(r, fourth.peer, request_of(fourth, r.run.id))
        assert list(r.context.join_requests.pending) == [first.peer, third.peer, fourth.peer]


async def test_request_that_is_no_longer_repeated_makes_room(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[]) as r:
        r.context.join_requests.pending_max = 2
        faithful, once, later = (next(them) for them in [identities()] for _ in range(3))
        for each in (faithful, once, later):
            await hello(r, each.peer, request_of(each, r.run.id))
        assert list(r.context.join_requests.pending) == [faithful.peer, once.peer]
        r.context.join_requests.forget_s = 0.0
        await hello(r, faithful.peer, request_of(faithful, r.run.id))
        await hello(r, later.peer, request_of(later, r.run.id))
        assert list(r.context.join_requests.pending) == [faithful.peer, later.peer]


async def test_requests_from_one_address_leave_room_for_others(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[]) as r:
        r.context.join_requests.pending_max = 3
        many, other = [somebody(number) for number in range(5)], somebody(9)
        r.network.sites = {each.peer: "198.51.100.1" for each in many}
        r.network.sites[other.peer] = "203.0.113.7"
        for each in (*many[:4], other, many[4]):
            await hello(r, each.peer, request_of(each, r.run.id))
        assert list(r.context.join_requests.pending) == [many[1].peer, many[2].peer, other.peer]


async def test_hellos_of_one_peer_are_rate_limited(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[ANN.peer]) as r:
        later = count(1_000_000, 15)
        clock = [0.0]
        r.surround(clock=lambda: clock[0])
        answer_hellos(r.context)
        answer, request = r.network.handlers[HELLO_PROTOCOL], encode_request(HelloRequest("", b""))
        for peer in (CAI.peer, ANN.peer):
            for _ in range(PEER_BURST):
                await answer(peer, request)
            with pytest.raises(TryLater):
                await answer(peer, request)
        for _ in range(10 * PEER_BURST):
            clock[0] = next(later)
            await answer(BOB.peer, request)
        await answer(CAI.peer, request)


async def test_hellos_of_strangers_at_one_address_share_a_rate_limit(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, allowed=[ANN.peer]) as r:
        answer_hellos(r.context)
        answer, request = r.network.handlers[HELLO_PROTOCOL], encode_request(HelloRequest("", b""))
        strangers = [somebody(number).peer for number in range(SITE_BURST + 1)]
        r.network.sites = dict.fromkeys((*strangers, ANN.peer), "198.51.100.1")
        for each in strangers[:-1]:
            await answer(each, request)
        with pytest.raises(TryLater):
            await answer(strangers[-1], request)
        await answer(ANN.peer, request)
        await answer(CAI.peer, request)
