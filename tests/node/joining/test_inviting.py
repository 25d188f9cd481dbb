"""A node tells its user how other peers can take part, and warns if they cannot reach its
address."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.node.control.status import status
from p2ptrain.node.joining.invitation import best_of, caution_about, invite
from tests.node.rig import rig

LOOP, LAN, PUBLIC = "/ip4/127.0.0.1/tcp/4201", "/ip4/10.0.0.5/tcp/4201", "/ip4/9.9.9.9/tcp/4201"
NAME = "/dns/seed.example/tcp/4201"


async def test_seed_in_a_private_network_warns_and_suggests_announce(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.listens = [LAN, LOOP]
        said: list[str] = []
        invite(r.context, said.append)
        assert said == [f"others can take part with: p2ptrain node --bootstrap {LAN}"]
        (caution,) = (await status(r.context)).cautions
        assert caution.code == "ADDR-PRIVATE"
        assert LAN in caution.what
        assert "--announce /ip4/PUBLIC-ADDRESS/tcp/4201" in caution.do


async def test_node_that_does_not_listen_shows_no_invitation(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.listens = []
        said: list[str] = []
        invite(r.context, said.append)
        assert (said, r.context.alerts.warnings) == ([], {})


@pytest.mark.parametrize(
    ("addresses", "best", "code"),
    [
        ([LAN, LOOP], LAN, "ADDR-PRIVATE"),
        ([LOOP, LAN], LAN, "ADDR-PRIVATE"),
        ([LOOP], LOOP, "ADDR-LOOPBACK"),
        ([LAN, PUBLIC, NAME], PUBLIC, None),
        ([LAN, NAME], NAME, None),
    ],
)
def test_invitation_shows_the_address_that_most_peers_can_dial(
    addresses: list[str], best: str, code: str | None
) -> None:
    assert best_of(addresses) == best
    caution = caution_about(best)
    assert (caution.code if caution else None) == code
