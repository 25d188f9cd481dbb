"""A node that was removed from the allowlist learns this, even if no peer sends it messages any
more."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from p2ptrain.errors import NotAuthorised, PeerUnreachable
from p2ptrain.identity import load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.revocation import is_alone, notice_revocation
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.run import Allowlist, SignedAllowlist
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, rig, settled


def as_volunteer(r: Rig, sequence: int, *listed: PeerId) -> bytes:
    """Give this node the identity of Cai, who is not a founder. Return an allowlist with this
    sequence number that contains `listed`."""
    organiser = load_or_create(r.context.home.identity)
    r.surround(identity=CAI)
    newer = Allowlist.of(r.run.id, sequence, listed)
    return SignedAllowlist.publish(organiser, newer).to_bytes()


async def test_isolated_node_asks_for_the_allowlist_and_learns_of_its_removal(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        newer = as_volunteer(r, 2, ANN.peer, BOB.peer)

        async def hello(peer: PeerId, payload: bytes) -> bytes:
            if peer == ANN.peer:
                raise PeerUnreachable("gone", peer=peer)
            return encode_reply(HelloReply(r.run.to_bytes(), newer, b"", False, {}))

        r.network.peers, r.network.answer = {ANN.peer, BOB.peer}, hello
        assert is_alone(r.context)
        with pytest.raises(NotAuthorised) as caught:
            await notice_revocation(r.context)
        error = caught.value
        assert (error.code, error.exit_code) == ("AUTH-REVOKED", 6)
        assert CAI.peer in error.evidence[0]
        assert "organiser" in error.do


async def test_node_that_hears_from_peers_and_is_not_refused_does_not_ask(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    as_volunteer(r, 2)
    r.network.peers = {ANN.peer}
    r.context.peers.table.note_heartbeat(ANN.peer, heartbeat(r.run.id), r.context.now())
    r.context.peers.detector.note_arrival(ANN.peer, r.context.now())
    nursery.start_soon(notice_revocation, r.context)
    for _ in range(20):
        await r.context.changes.wait(at_most_s=0.01)
    assert r.network.requested == []
    r.context.ledger.refusals += 1
    await settled(lambda: len(r.network.requested) == 1)
    for _ in range(20):
        await r.context.changes.wait(at_most_s=0.01)
    assert len(r.network.requested) == 1


async def test_older_or_forged_list_does_not_remove_this_node(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    current = as_volunteer(r, 2, ANN.peer, BOB.peer, CAI.peer)
    assert r.context.admission.adopt_if_newer(current)
    older = as_volunteer(r, 1, ANN.peer)
    forged = SignedAllowlist.publish(BOB, Allowlist.of(r.run.id, 9, [BOB.peer])).to_bytes()
    lists = {ANN.peer: older, BOB.peer: forged}

    async def hello(peer: PeerId, payload: bytes) -> bytes:
        return encode_reply(HelloReply(r.run.to_bytes(), lists[peer], b"", False, {}))

    r.network.peers, r.network.answer = {ANN.peer, BOB.peer}, hello
    nursery.start_soon(notice_revocation, r.context)
    await settled(lambda: len(r.network.requested) >= 6)
    assert r.context.admission.admits(CAI.peer)
    assert len(r.said("bad-hello")) == 1
