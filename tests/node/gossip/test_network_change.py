"""A node whose machine changes its network tells its new addresses and dials its peers again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio

from p2ptrain.node.gossip.connections import stay_connected
from p2ptrain.node.gossip.network_change import notice_new_network
from p2ptrain.node.gossip.own_addresses import OwnAddresses
from tests.node.rig import ANN, BOB, NewRig, settled

HOME = OwnAddresses(("127.0.0.1", "192.168.1.5", "2606:1::5"), (), "192.168.1.5", "2606:1::5")
NOWHERE = OwnAddresses(("127.0.0.1",), (), "")
OFFICE = OwnAddresses(("127.0.0.1", "10.0.0.9"), (), "10.0.0.9")


async def test_dead_connections_are_closed_and_the_new_address_is_told(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    now, looks = [HOME], list[OwnAddresses]()

    def look() -> OwnAddresses:
        looks.append(now[0])
        return now[0]

    nursery.start_soon(partial(notice_new_network, r.context, look=look, look_s=0.01))
    await settled(lambda: len(looks) > 2)
    assert (r.network.kept_hosts, r.context.own_heartbeat.moves) == ([], 0)
    now[0] = NOWHERE
    await settled(lambda: r.network.kept_hosts == [NOWHERE.hosts])
    r.context.own_heartbeat.due = trio.Event()
    now[0] = OFFICE
    await r.context.own_heartbeat.due.wait()
    assert r.network.kept_hosts == [NOWHERE.hosts], "nothing was lost this time"
    assert [said["now"] for said in r.said("network-changed")] == [[], ["10.0.0.9"]]


async def test_known_peers_are_dialled_at_once_after_a_change(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """Otherwise a node that was offline for long would wait for up to a minute."""
    r = await new_rig(tmp_path)
    r.wait_for(connection_retry_s=1000.0, others_turn_s=0.0)
    for peer in (ANN.peer, BOB.peer):
        r.network.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
    nursery.start_soon(stay_connected, r.context)
    dialled = r.network.dialled
    await settled(lambda: len(dialled) == 2)
    r.wait_for(others_turn_s=1000.0)
    r.context.own_heartbeat.moves += 1
    await settled(lambda: len(dialled) == 4)
    assert set(dialled[2:]) == {ANN.peer, BOB.peer}
