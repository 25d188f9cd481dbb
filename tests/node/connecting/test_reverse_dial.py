"""A node that can be dialled asks a source behind a NAT to dial it, and the source dials nobody but
the node that asks.

The rigs are those of the relays: two members behind NATs, and members that can be dialled.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane.relaying import Route
from p2ptrain.encoding import pack
from p2ptrain.errors import PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.node.connecting.single import ends_of
from p2ptrain.node.outer_state.fetch import fetch_loose
from p2ptrain.node.punching.agreeing import keep_punching
from p2ptrain.node.relaying.meetings import ask_to_meet, new_fetch_key
from tests.node.cable import invite, network_of
from tests.node.punching.test_punched_connections import HERE
from tests.node.relaying.test_relayed_reduce import PUBLIC, Neighbours, neighbours, sees
from tests.node.rig import Rig, heartbeat, settled

DEADLINE_S = 60.0


async def fetched(found: Neighbours, fetcher: Rig, nursery: trio.Nursery) -> dict[PeerId, int]:
    """Let `fetcher`, which others have dialled, fetch from Bob."""
    bob = found.ends[1].context
    fetcher.context.own_heartbeat.dialled = True
    nursery.start_soon(keep_punching, fetcher.context)
    await settled(lambda: fetcher.context.peers.punching.agree is not None)
    digest = bob.store.put_chunk(b"only Bob has this")
    with trio.fail_after(DEADLINE_S):
        report = await fetch_loose(fetcher.context, [digest])
    nursery.cancel_scope.cancel()
    return dict(report.bytes_by_peer)


async def test_source_behind_a_nat_dials_a_member_that_does_not_relay(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """No other member could observe its ports or relay."""
    async with neighbours(tmp_path, relays=1) as found:
        fetcher, bob = found.relays[0], found.ends[1]
        announce(found, fetcher, relays=0)
        sees(bob, fetcher)
        assert await fetched(found, fetcher, nursery) == {bob.context.me: 17}
        assert [said["peer"] for said in fetcher.said("reverse-dialled")] == [bob.context.me]
        assert (fetcher.said("punched"), fetcher.said("relay-joined")) == ([], [])


async def test_source_dials_a_visitor(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with neighbours(tmp_path, relays=1) as found:
        fetcher, bob = found.relays[0], found.ends[1]
        invite(fetcher, *found.ends)
        sees(bob, fetcher)
        assert await fetched(found, fetcher, nursery) == {bob.context.me: 17}
        assert [said["peer"] for said in fetcher.said("reverse-dialled")] == [bob.context.me]


async def test_node_that_nobody_has_dialled_does_not_ask_for_a_call(tmp_path: Path) -> None:
    async with neighbours(tmp_path, relays=1) as found:
        fetcher, bob = found.relays[0].context, found.ends[1].context.me
        for dialled in (False, True):
            fetcher.own_heartbeat.dialled = dialled
            assert ends_of(fetcher, bob).client_is_dialable == dialled


# ── whose word is it? ────────────────────────────────────────────────────────────────────────────


def announce(found: Neighbours, member: Rig, serial: int = 9, **changes: object) -> None:
    """Let everybody hear a new heartbeat of `member`, which is at the address `host`."""
    here = member.context.plane.endpoint
    endpoint = replace(here, host=str(changes.pop("host", here.host)))
    beat = heartbeat(
        found.ends[0].run.id,
        incarnation=member.context.identities.incarnation,
        serial=serial,
        endpoint=pack(endpoint.to_wire()),
        **changes,
    )
    for each in (*found.ends, *found.relays):
        each.context.peers.table.note_heartbeat(member.context.me, beat, each.context.now())


async def test_source_dials_only_where_it_sees_the_asker(tmp_path: Path) -> None:
    """Nobody sees the asker at the address that it announces. At the address where the source sees
    it, it does not listen by its own word."""
    async with neighbours(tmp_path, relays=1) as found:
        (asker,), bob = found.relays, found.ends[1].context
        bob.own_heartbeat.reach.external_host = HERE
        there = asker.context.peers.table.endpoint(bob.me)
        assert there is not None
        route = Route(asker.context.plane.endpoint, there, new_fetch_key(asker.context))
        cases = (("203.0.113.9", PUBLIC), ("203.0.113.9", HERE), (PUBLIC, ""))
        for serial, (announced, seen) in enumerate(cases, start=9):
            announce(found, asker, serial, host=announced)
            network_of(found.ends[1]).hosts[asker.context.me] = seen
            with pytest.raises(PeerUnreachable, match="does not see you at an address that you"):
                await ask_to_meet(asker.context, route)
        assert asker.context.plane.listener.statistics().accepted == 0
