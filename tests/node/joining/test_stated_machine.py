"""A newcomer says which device and which kind of address it has, and only known words are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.config.node import NodeConfig
from p2ptrain.node.gossip.own_addresses import OwnAddresses
from p2ptrain.node.joining.hello_server import answer_requests
from p2ptrain.node.joining.stated_machine import (
    NO_TRAINER,
    StatedReach,
    known_device,
    known_reach,
    stated_device,
    stated_reach,
)
from p2ptrain.run import JoinRequest
from tests.node.joining.test_serving import hello
from tests.node.rig import CAI, rig

HOME_LAN = OwnAddresses(("127.0.0.1", "192.168.1.5", "fe80::1"), (), "192.168.1.5")
SERVER = OwnAddresses(("127.0.0.1", "8.8.4.4"), (), "8.8.4.4")
IPV6 = OwnAddresses(("192.168.1.5", "2a00:1450::5"), (), "192.168.1.5", "2a00:1450::5")
BY_CARRIER = OwnAddresses(("100.64.0.5",), (), "100.64.0.5")
LISTENS = ["/ip4/192.168.1.5/tcp/4201"]


@pytest.mark.parametrize(
    ("options", "device"),
    [
        ({"device": "cuda"}, "cuda"),
        ({"device": "cpu"}, "cpu"),
        ({"seed": True}, NO_TRAINER),
        ({"ranks_host": "127.0.0.1"}, ""),
    ],
    ids=str,
)
def test_device_follows_from_the_options(
    tmp_path: Path, options: dict[str, object], device: str
) -> None:
    config = NodeConfig(tmp_path, **options)  # type: ignore[arg-type]
    assert stated_device(config) == known_device(device) == device


@pytest.mark.parametrize(
    ("own", "reach"),
    [
        (HOME_LAN, StatedReach.PRIVATE),
        (BY_CARRIER, StatedReach.PRIVATE),
        (SERVER, StatedReach.PUBLIC),
        (IPV6, StatedReach.PUBLIC),
    ],
)
def test_reach_follows_from_the_addresses(
    tmp_path: Path, own: OwnAddresses, reach: StatedReach
) -> None:
    announces = NodeConfig(tmp_path, announce=("/ip4/203.0.113.7/tcp/4201",))
    assert stated_reach(NodeConfig(tmp_path), LISTENS, own) == known_reach(reach) == reach
    assert stated_reach(NodeConfig(tmp_path), [], own) is StatedReach.OUTBOUND
    assert stated_reach(announces, LISTENS, own) is StatedReach.ANNOUNCED


async def test_strangers_cannot_show_the_organiser_words_of_their_own(tmp_path: Path) -> None:
    async with rig(tmp_path, allowed=[]) as r:
        lie = JoinRequest(
            r.run.id, CAI.peer, 0, "a volunteer", device="approved", reach="trusted-by-all"
        )
        await hello(r, CAI.peer, lie.to_bytes(CAI))
        answer = await answer_requests(r.context)
    assert answer == {
        "requests": [
            {
                "peer": CAI.peer,
                "note": "a volunteer",
                "age_s": pytest.approx(0.0, abs=600),
                "via": "",
                "device": "other",
                "reach": "",
            }
        ]
    }
