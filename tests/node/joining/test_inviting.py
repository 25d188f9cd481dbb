"""A node tells its user how other peers can take part, and warns if they cannot reach its
address."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.net.invitation import decode, encode
from p2ptrain.node.control.status import status
from p2ptrain.node.joining.invitation import (
    answer_invitation,
    best_of,
    caution_about,
    for_most_peers,
    invitation_from,
    invite,
)
from tests.node.rig import ANN, BOB, CAI, heartbeat, opening, rig, somebody

LOOP, LAN, PUBLIC = "/ip4/127.0.0.1/tcp/4201", "/ip4/10.0.0.5/tcp/4201", "/ip4/9.9.9.9/tcp/4201"
DAN, SIX = somebody(104), "/ip6/2606:1::5/tcp/4201"
NAME = "/dns/seed.example/tcp/4201"


async def test_seed_in_a_private_network_warns_and_suggests_announce(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.listens = [LAN, LOOP]
        said: list[str] = []
        invite(r.context, said.append)
        first, second = said
        text = first.removeprefix("others can take part with: p2ptrain join ")
        assert decode(text) == invitation_from(r.context)
        assert second.endswith(f"p2ptrain node --bootstrap {LAN}")
        (caution,) = (await status(r.context)).cautions
        assert caution.code == "ADDR-PRIVATE"
        assert LAN in caution.what
        assert "--announce /ip4/PUBLIC-ADDRESS/tcp/4201" in caution.do


async def test_public_ipv6_address_does_not_hide_a_private_ipv4_address(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.listens = [LAN, SIX, LOOP]
        said: list[str] = []
        invite(r.context, said.append)
        assert said[1].endswith(f"p2ptrain node --bootstrap {SIX}")
        (caution,) = r.context.alerts.warnings.values()
        assert LAN in caution.what
        assert LAN in str((await answer_invitation(r.context))["warnings"])
    assert for_most_peers([SIX]) == SIX


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


async def test_invitation_names_seeds_and_founders_but_no_volunteers(tmp_path: Path) -> None:
    """Bob is a founder, Ann is a member that does not train, Cai trains, and Dan does not train but
    is not a member."""
    async with rig(tmp_path, founders=[BOB.peer]) as r:
        r.network.listens = [LOOP, LAN]
        r.decide(opening(r.context.ledger.snapshot, learners=[ANN.peer, CAI.peer]))
        for peer, trains in ((ANN, False), (CAI, True), (DAN, False)):
            beat = heartbeat(r.run.id, trains=trains)
            r.context.peers.table.note_heartbeat(peer.peer, beat, r.context.now())
        for number, peer in enumerate((ANN, BOB, CAI, DAN), 1):
            r.network.remember(
                peer.peer, [f"/ip4/9.9.9.{number}/tcp/1", f"/ip4/8.8.8.{number}/tcp/1"]
            )
        r.network.record_reported(ANN.peer, ["/ip4/7.7.7.7/tcp/1"])
        told = await answer_invitation(r.context)
        invitation = decode(str(told["invitation"]))
        assert (invitation.run, invitation.organiser) == (r.run.id, r.run.manifest.organiser)
        assert [str(each) for each in invitation.addresses] == [
            f"{LAN}/p2p/{r.context.me}",
            f"/ip4/9.9.9.2/tcp/1/p2p/{BOB.peer}",
            f"/ip4/9.9.9.1/tcp/1/p2p/{ANN.peer}",
            f"/ip4/8.8.8.2/tcp/1/p2p/{BOB.peer}",
            f"/ip4/8.8.8.1/tcp/1/p2p/{ANN.peer}",
        ]
        assert "ADDR-PRIVATE" in str(told["warnings"])


async def test_invitation_on_one_machine_has_its_loopback_address(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.network.listens = [LOOP]
        (address,) = invitation_from(r.context).addresses
        assert str(address) == f"{LOOP}/p2p/{r.context.me}"
        r.network.listens = []
        assert await answer_invitation(r.context) == {
            "invitation": encode(invitation_from(r.context)),
            "warnings": [],
        }
