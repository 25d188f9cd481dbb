"""A node learns that an organiser's key was replaced, and believes the new key from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from p2ptrain.archive.admission import Admission
from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.node.gossip.hand_over_gossip import offer_hand_overs, take_hand_overs
from p2ptrain.node.joining.hello_server import answer_hellos
from p2ptrain.peers.hello_messages import HelloRequest, decode_reply, encode_request
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL, hand_overs_topic
from p2ptrain.run import (
    Allowlist,
    Amendment,
    HandOver,
    SignedAllowlist,
    SignedAmendment,
    SignedHandOver,
    load_run,
)
from tests.node.rig import ANN, BOB, CAI, NewRig, settled

NEW = CAI


async def test_new_key_signs_lists_and_amendments_after_its_hand_over_has_arrived(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, allowed=[ANN.peer], steps=40)
    admission, old = r.context.admission, r.context.identity
    listed = SignedAllowlist.publish(NEW, Allowlist.of(r.run.id, 2, [ANN.peer, BOB.peer]))
    amended = SignedAmendment.publish(NEW, Amendment(r.run.id, 1, 9, lr=0.05), r.run)
    with pytest.raises(RemoteProtocolError):
        admission.adopt_if_newer(listed.to_bytes())
    said = HandOver(r.run.id, 1, old.peer, NEW.peer, 2, 1, 1)
    forged = pack([SignedHandOver.publish(BOB, said).to_bytes()])
    await take_hand_overs(r.context, BOB.peer, forged)
    assert admission.organisers == (old.peer,)
    genuine = pack([SignedHandOver.publish(old, said).to_bytes()])
    await take_hand_overs(r.context, BOB.peer, genuine)
    await take_hand_overs(r.context, BOB.peer, genuine)
    assert admission.organisers == (NEW.peer,)
    assert len(r.said("organisers")) == 1
    assert admission.may_train(NEW.peer)
    assert admission.adopt_if_newer(listed.to_bytes())
    assert admission.may_train(BOB.peer)
    assert r.context.amendments.adopt_new(pack([amended.to_bytes()]))
    nursery.start_soon(offer_hand_overs, r.context)
    sent = (hand_overs_topic(r.run.id), genuine)
    await settled(lambda: r.network.published.count(sent) == 2)
    answer_hellos(r.context)
    hello = encode_request(HelloRequest(r.run.id, b""))
    reply = decode_reply(await r.network.handlers[HELLO_PROTOCOL](ANN.peer, hello))
    assert reply.hand_overs == genuine
    restarted = Admission(r.context.home, old.peer)
    kept = load_run(r.context.home.manifest)
    assert kept is not None
    restarted.set_run(kept)
    assert restarted.organisers == (NEW.peer,)
    assert not restarted.reload_hand_overs()
