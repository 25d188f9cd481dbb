"""Two members that cannot be dialled connect by calling each other, and only each other.

The nodes are real except for the control plane, which is `Cable`. All addresses are loopback
addresses, so the tests say that members see the nodes there.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import ExternalAddress
from p2ptrain.dataplane.punch_messages import PunchOffer, encode
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerUnreachable, ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Participant, Roster
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.gossip.reach_task import other_ways
from p2ptrain.node.outer_state.fetch import fetch_loose
from p2ptrain.node.punching.agreeing import answer_punches, keep_punching
from p2ptrain.node.reduce.reduce_links import ReduceLinks, connect
from p2ptrain.node.reduce.reduce_request import request_of
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.punching import CHUNKS
from p2ptrain.peers.protocol_names import PUNCH_PROTOCOL
from p2ptrain.peers.reach_verdict import OtherWays
from p2ptrain.ring import Links, ReduceRequest
from tests.node.cable import NOBODY, network_of, three_rigs
from tests.node.rig import Rig, heartbeat, opening, settled

HERE, PUBLIC, GATEWAY = "127.0.0.1", "11.77.0.9", "192.168.77.1"


@dataclass
class Pair:
    """Two members behind NATs, and the member that is connected to both."""

    ann: Rig
    middle: Rig
    bob: Rig

    @property
    def ends(self) -> tuple[Rig, Rig]:
        return self.ann, self.bob

    def observed(self) -> int:
        """Return how many connections the data plane of the middle has accepted."""
        return self.middle.context.plane.listener.statistics().accepted

    def open_reduce(self) -> Roster:
        """Let the ledgers of both ends open a reduce between the two."""
        ours = [Participant(each.context.me, 16, 1) for each in self.ends]
        state = self.ann.context.ledger.snapshot
        learners = [it.peer for it in ours if it.peer not in state.voters]
        roster = opening(state, *ours, learners=learners)
        for each in self.ends:
            each.set_chain(roster=roster)
        return roster

    def request(self, end: Rig, roster: Roster) -> ReduceRequest:
        request = request_of(self.ann.context, self.ann.context.outer_step(0), roster)
        return replace(request, me=roster.peers.index(end.context.me), streams=2)


@asynccontextmanager
async def pair(tmp_path: Path, *, seen_at: str = HERE) -> AsyncIterator[Pair]:
    """Yield two nodes that run the task of hole punching. The middle sees both at `seen_at`."""
    async with three_rigs(tmp_path) as (ann, middle, bob), trio.open_nursery() as nursery:
        for end in (ann, bob):
            end.context.own_heartbeat.dialable = False
            end.context.own_heartbeat.reach.external_host = seen_at
            network_of(middle).hosts[end.context.me] = seen_at
            end.set_chain(line=ann.context.ledger.snapshot.line)
            answer_punches(end.context, gateways=lambda: frozenset([GATEWAY]))
            nursery.start_soon(keep_punching, end.context)
        await settled(lambda: all(end.context.peers.punching.agree for end in (ann, bob)))
        yield Pair(ann, middle, bob)
        nursery.cancel_scope.cancel()


async def connected(p: Pair, roster: Roster) -> tuple[Links | ReduceAborted, ...]:
    """Let both ends connect for the reduce, and return what each of them gets. Links are closed."""
    found: dict[PeerId, Links | ReduceAborted] = {}

    async def one(end: Rig) -> None:
        with closing(ReduceLinks()) as edges:
            try:
                found[end.context.me] = await connect(end.context, p.request(end, roster), edges)
                await said_hello(p, end.context, found)
            except ReduceAborted as exc:
                found[end.context.me] = exc

    async with trio.open_nursery() as nursery:
        for end in p.ends:
            nursery.start_soon(one, end)
    return found[p.ann.context.me], found[p.bob.context.me]


async def said_hello(p: Pair, context: Context, found: dict[PeerId, Links | ReduceAborted]) -> None:
    """Check that what one end sends on stream i arrives on stream i of the other end."""
    links = found[context.me]
    assert not isinstance(links, ReduceAborted)
    ((_, streams),) = links.items()
    for number, stream in enumerate(streams):
        stream.set_deadline(20.0)
        await trio.to_thread.run_sync(stream.send_frame, bytes([number]))
        assert await trio.to_thread.run_sync(stream.receive_frame) == bytes([number])


async def test_neighbours_that_cannot_be_dialled_call_each_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as p:
        links = await connected(p, p.open_reduce())
        assert not any(isinstance(each, ReduceAborted) for each in links), links
        for end, other in (p.ends, p.ends[::-1]):
            (said,) = end.said("punched")
            assert (said["peer"], said["streams"]) == (other.context.me, 2)
            end.set_chain(voters=tuple(end.context.ledger.snapshot.since))
            assert other_ways(end.context) == OtherWays(punched=1, members=2)
        # Each end has observed two ports, and closes them.
        assert p.observed() == 4
        assert [end.context.peers.punching.ports for end in p.ends] == [{}, {}]


async def test_neighbour_that_refuses_to_punch_is_reported_at_once(tmp_path: Path) -> None:
    """Bob's ledger is ahead, so he does not want the connection any more. Nobody is at fault: the
    two sit out in turn."""
    async with pair(tmp_path) as p:
        roster = p.open_reduce()
        p.bob.set_chain(roster=None, attempt=1)
        refused = pytest.raises(ReduceAborted, match="that attempt is over")
        with closing(ReduceLinks()) as edges, trio.fail_after(20.0), refused as caught:
            await connect(p.ann.context, p.request(p.ann, roster), edges)
        first = min(end.context.me for end in p.ends)
        blamed = (first,) if first == p.bob.context.me else ()
        assert caught.value.suspects == blamed


async def test_peer_that_is_wrongly_said_to_be_dialable_is_called(tmp_path: Path) -> None:
    """Bob reports that he can be dialled at an address where nobody listens."""
    async with pair(tmp_path) as p:
        with socket.create_server((HERE, 0)) as gone:
            port = gone.getsockname()[1]
        endpoint = replace(p.bob.context.plane.endpoint, port=port)
        beat = heartbeat(
            p.ann.run.id,
            incarnation=p.bob.context.identities.incarnation,
            serial=2,
            endpoint=pack(endpoint.to_wire()),
        )
        p.ann.context.peers.table.note_heartbeat(p.bob.context.me, beat, p.ann.context.now())
        p.bob.context.own_heartbeat.dialable = True
        links = await connected(p, p.open_reduce())
        assert not any(isinstance(each, ReduceAborted) for each in links), links
        assert len(p.ann.said("punched")) == 1


async def test_neighbours_that_both_connect_use_the_same_connections(tmp_path: Path) -> None:
    """Both say that they can be dialled. Ann, who comes first in the roster, dials Bob in vain.
    0.3 s later Bob dials Ann, and a little later Ann calls him through his NAT."""
    async with pair(tmp_path) as p:
        for end, other in (p.ends, p.ends[::-1]):
            context, theirs = end.context, other.context
            context.own_heartbeat.dialable = True
            endpoint = theirs.plane.endpoint
            if other is p.bob:
                endpoint = replace(endpoint, port=NOBODY)
            beat = heartbeat(
                p.ann.run.id,
                incarnation=theirs.identities.incarnation,
                serial=2,
                endpoint=pack(endpoint.to_wire()),
            )
            context.peers.table.note_heartbeat(theirs.me, beat, context.now())
        links = await connected(p, p.open_reduce())
        assert not any(isinstance(each, ReduceAborted) for each in links), links


# ── whom a node calls ────────────────────────────────────────────────────────────────────────────


async def offer(p: Pair, host: str, port: int = 4000) -> None:
    """Let Ann offer to punch to this address, and wait until Bob has refused."""
    message = PunchOffer(bytes(16), "chunks", 0, (ExternalAddress(host, port),))
    await forwarding.request(
        p.ann.context,
        p.bob.context.me,
        PUNCH_PROTOCOL,
        encode(message),
        deadline_s=5.0,
        bytes_max=0,
    )


@pytest.mark.parametrize(
    ("host", "why"),
    [
        (HERE, "nobody sees that peer"),
        ("224.0.0.1", "not the address of a peer"),
        ("8.8.8.8", "nobody sees that peer"),
        ("192.168.77.2", "nobody sees that peer"),
    ],
)
async def test_node_does_not_call_an_address_where_nobody_sees_the_peer(
    tmp_path: Path, host: str, why: str
) -> None:
    async with pair(tmp_path, seen_at=PUBLIC) as p:
        with socket.create_server((HERE, 0)) as victim:
            await offer(p, host, victim.getsockname()[1])
            await settled(lambda: p.bob.said("punch-failed"))
            victim.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                victim.accept()
        assert why in str(p.bob.said("punch-failed")[0]["reason"])
        assert p.observed() == 0
        assert p.bob.said("punched") == []


@pytest.mark.parametrize("host", [HERE, "169.254.1.1", "192.168.77.2", "224.0.0.1", "10.0.0.1"])
async def test_forwarders_statement_does_not_lead_into_our_own_network(
    tmp_path: Path, host: str
) -> None:
    """The forwarder and the member that offers lie together."""
    async with pair(tmp_path, seen_at=PUBLIC) as p:
        network_of(p.middle).hosts[p.ann.context.me] = host
        await offer(p, host)
        await settled(lambda: p.bob.said("punch-failed"))
        assert (p.observed(), p.bob.said("punched")) == (0, [])


async def test_node_does_not_call_its_own_gateway(tmp_path: Path) -> None:
    """All nodes are in one private network, and Bob himself sees Ann at his gateway's address, for
    instance because the gateway translates addresses."""
    async with pair(tmp_path, seen_at=GATEWAY) as p:
        network_of(p.bob).hosts[p.ann.context.me] = GATEWAY
        await offer(p, GATEWAY)
        await settled(lambda: p.bob.said("punch-failed"))
        assert "not the address of a peer" in str(p.bob.said("punch-failed")[0]["reason"])
        assert (p.observed(), p.bob.said("punched")) == (0, [])


async def test_stranger_may_not_offer(tmp_path: Path) -> None:
    """A stranger that is connected to Bob, and a member that forwards to him."""
    async with pair(tmp_path) as p:
        members = {each.context.me: 0 for each in (p.middle, p.bob)}
        p.bob.set_chain(since=members)
        with pytest.raises(PeerUnreachable) as caught:
            await offer(p, HERE)
        assert "is not a member" in caught.value.evidence[0]
        for network in map(network_of, p.ends):
            network.peers |= {end.context.me for end in p.ends}
        with pytest.raises(PeerUnreachable, match="only members punch holes"):
            await offer(p, HERE)
        assert (p.observed(), len(p.bob.context.peers.punching.sessions)) == (0, 0)


# ── chunks ───────────────────────────────────────────────────────────────────────────────────────


async def test_chunks_are_fetched_from_a_member_that_cannot_be_dialled(tmp_path: Path) -> None:
    async with pair(tmp_path) as p:
        digest = p.bob.context.store.put_chunk(b"only Bob has this")
        with trio.fail_after(60.0):
            report = await fetch_loose(p.ann.context, [digest])
        assert report.bytes_by_peer == {p.bob.context.me: 17}
        assert p.ann.context.store.get_chunk(digest) == b"only Bob has this"
        assert [said["about"] for said in p.ann.said("punched")] == [CHUNKS]
