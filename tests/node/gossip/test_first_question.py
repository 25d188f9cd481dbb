"""A node that could not ask any peer for a duplicate (another process with its identity) when it
started holds back its first vote until members have answered. But members cannot delay the vote
for long."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.archive import start_count
from p2ptrain.errors import PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.node.consensus.outbox import Outboxes
from p2ptrain.node.joining.duplicate_identity import start, watch_for_duplicates
from p2ptrain.node.state.first_question import FirstQuestion
from p2ptrain.node.state.timing import USUAL
from p2ptrain.peers.duplicate_watch import QuestionTiming
from p2ptrain.peers.identity_messages import (
    IdentityReply,
    decode_question,
    encode_reply,
    make_proof,
)
from p2ptrain.peers.incarnations import incarnation_of
from tests.node.rig import ANN, BOB, NewRig, Rig, settled

VOTE, SECOND = b"a vote", b"another vote"

QUICK = QuestionTiming(look_s=0.05, alarm_s=0.02, start_wait_s=0.09)
PATIENT = QuestionTiming(start_wait_s=1000.0)


@pytest.fixture
def timing() -> QuestionTiming:
    return QuestionTiming()


@pytest.fixture
async def r(new_rig: NewRig, tmp_path: Path, timing: QuestionTiming) -> Rig:
    """Return the rig of a node that could not ask any peer when it started. Ann is connected
    now."""
    r = await new_rig(tmp_path, timing=replace(USUAL, questions=timing))
    question = FirstQuestion(answered=False, limit_s=timing.start_wait_s)
    r.context.identities.first_question = question
    r.network.peers = {ANN.peer}
    return r


def sent(r: Rig) -> list[bytes]:
    return [payload for _, payload in r.network.requested if payload in (VOTE, SECOND)]


def asked(r: Rig) -> int:
    return len(r.network.requested) - len(sent(r))


@pytest.mark.parametrize("timing", [PATIENT], ids=["patient"])
async def test_first_vote_waits_until_members_have_answered(r: Rig, nursery: trio.Nursery) -> None:
    answers = trio.Event()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        if payload in (VOTE, SECOND):
            return b""
        await answers.wait()
        return encode_reply(IdentityReply(False))

    r.network.answer = answer
    boxes = Outboxes(r.context, nursery)
    boxes.post(ANN.peer, VOTE)
    nursery.start_soon(watch_for_duplicates, r.context)
    await settled(lambda: asked(r) > 0)
    assert sent(r) == []
    answers.set()
    await settled(lambda: sent(r) == [VOTE])


@pytest.mark.parametrize("timing", [QUICK], ids=["quick"])
@pytest.mark.parametrize("lies", [False, True], ids=["silent", "claims a duplicate"])
async def test_members_cannot_delay_the_first_vote_for_long(
    r: Rig, nursery: trio.Nursery, lies: bool
) -> None:

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        if payload in (VOTE, SECOND):
            return b""
        if not lies:
            await trio.sleep_forever()
        return encode_reply(IdentityReply(True))

    r.network.answer = answer
    boxes, began_s = Outboxes(r.context, nursery), r.context.now()
    nursery.start_soon(watch_for_duplicates, r.context)
    boxes.post(ANN.peer, VOTE)
    await settled(lambda: sent(r) == [VOTE])
    assert r.context.now() >= began_s + QUICK.start_wait_s
    assert asked(r) > 0
    assert r.context.identities.first_question.is_over, "votes are held only once for each start"


async def test_held_vote_is_never_sent_if_a_duplicate_is_found(
    r: Rig, nursery: trio.Nursery
) -> None:
    r.context.identities.watch.use_incarnation(incarnation_of(3, 1))
    fetched = trio.Event()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        await fetched.wait()
        nonce, sign = decode_question(payload).nonce, r.context.identity.sign
        proof = make_proof(r.run.id, nonce, incarnation_of(4, 1), sign, starting=False)
        return encode_reply(IdentityReply(True, (), (proof,)))

    r.network.answer = answer
    boxes = Outboxes(r.context, nursery)
    boxes.post(ANN.peer, VOTE)
    nursery.start_soon(watch_for_duplicates, r.context)
    await settled(lambda: asked(r) > 0)
    fetched.set()
    await settled(lambda: bool(r.said("duplicate")))
    await settled(lambda: boxes.count == 0)
    assert sent(r) == []


async def test_peer_is_dialled_before_the_wait_for_answers_begins(
    r: Rig, nursery: trio.Nursery
) -> None:
    """The wait begins only once the peer is connected. Otherwise it could end before any member
    could be asked."""
    dialled: list[PeerId] = []

    async def connect_peer(peer: PeerId, *, deadline_s: float) -> None:
        dialled.append(peer)
        raise PeerUnreachable("no peer answers", peer=peer)

    r.network.connect_peer = connect_peer  # type: ignore[method-assign]
    boxes = Outboxes(r.context, nursery)
    boxes.post(BOB.peer, VOTE)
    await settled(lambda: boxes.count == 0)
    assert dialled == [BOB.peer]
    assert sent(r) == []
    assert not r.context.identities.first_question.is_over


async def test_start_returns_whether_a_member_could_be_asked(r: Rig) -> None:
    async def alone(peer: PeerId, payload: bytes) -> bytes:
        return encode_reply(IdentityReply(False))

    r.network.answer = alone
    context = r.context
    count = partial(start_count.count_start, context.home.starts)
    begin = partial(
        start, context.network, context.identity, r.run, count, context.admission.admits
    )
    assert (await begin(print)).members_answered
    r.network.peers = set()
    assert not (await begin(print)).members_answered
