"""Attacks on the check for a second process with a node's identity (a duplicate).

These attacks succeeded in earlier versions. One stranger stopped a seed without other peers after
18 to 32 s. Twenty strangers with low ids stopped a voter although honest voters were connected, and
also stopped its next start. One member that replayed heartbeats stopped all three nodes of a run.
Here the attacks run against the tasks of a node, and must not have an effect.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from p2ptrain.archive import start_count
from p2ptrain.errors import IdentityInUse, PeerUnreachable, TryLater
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import PeerId, RunId
from p2ptrain.ledger.messages.events import CloneFound
from p2ptrain.node.gossip.gossip import take_heartbeat
from p2ptrain.node.joining.duplicate_identity import (
    answer_questions,
    start,
    take_notice,
    watch_for_duplicates,
)
from p2ptrain.node.state.context import Context
from p2ptrain.peers.duplicate_watch import DuplicateWatch, QuestionTiming
from p2ptrain.peers.heartbeat import encode
from p2ptrain.peers.identity_mailboxes import QUESTIONS_BURST
from p2ptrain.peers.identity_messages import (
    NONCE_BYTES,
    SIGNATURE_BYTES,
    IdentityNotice,
    IdentityProof,
    IdentityQuestion,
    IdentityReply,
    decode_notice,
    decode_question,
    encode_notice,
    encode_question,
    encode_reply,
    make_mark,
    make_proof,
)
from p2ptrain.peers.incarnations import INCARNATION_MAX, Mark, incarnation_of, starts_of
from p2ptrain.peers.protocol_names import IDENTITY_PROTOCOL, identity_topic
from tests.node.rig import ANN, BOB, CAI, QUICK, NewRig, Rig, heartbeat, opening, settled, somebody

STRANGERS = [somebody(number).peer for number in range(1, 21)]
TURNS = 6

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]


QUESTIONS = QuestionTiming(look_s=0.05, alarm_s=0.02, linger_s=0.1, quiet_s=0.3, start_wait_s=0.09)


@pytest.fixture
def new_rig(new_rig: NewRig) -> NewRig:
    """Return a function that opens rigs whose nodes ask for duplicates very often."""
    return partial(new_rig, timing=replace(QUICK, questions=QUESTIONS))


def lying() -> Answer:
    """Return an answer function that sends all lies that a peer without the node's key can send: a
    claim that another process is running, a forged proof for the nonce, an invented nonce to sign,
    and a forged mark."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        nonce = decode_question(payload).nonce
        forged = IdentityProof(nonce, 0, False, os.urandom(SIGNATURE_BYTES))
        mark = Mark(INCARNATION_MAX, os.urandom(SIGNATURE_BYTES))
        return encode_reply(IdentityReply(True, (os.urandom(NONCE_BYTES),), (forged,), mark))

    return answer


def honest_but_for(liars: list[PeerId], witness: Rig, me: PeerId) -> Answer:
    """Return an answer function for peers: those in `liars` lie, and all others answer as the node
    of `witness` does."""
    handler, lie = witness.network.handlers[IDENTITY_PROTOCOL], lying()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        try:
            return await (lie(peer, payload) if peer in liars else handler(me, payload))
        except TryLater as exc:  # The sender as the network reports it.
            raise PeerUnreachable(exc.what) from exc

    return answer


def nonces_of(r: Rig) -> set[bytes]:
    """Return the different nonces with which the node has asked: one for each time that it
    asked."""
    return {decode_question(payload).nonce for _, payload in r.network.requested}


async def goes_on(r: Rig, nursery: trio.Nursery) -> None:
    """Check that the node asks at least `TURNS` times without finding a duplicate, and does not
    stop voting."""
    nursery.start_soon(watch_for_duplicates, r.context)
    watch = r.context.identities.watch
    await settled(lambda: len(nonces_of(r)) >= TURNS)
    assert watch.duplicate is None
    assert not any(isinstance(event, CloneFound) for event in r.heard())


async def test_stranger_cannot_stop_a_seed_without_other_peers(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, seed=True)
    r.network.peers, r.network.answer = {STRANGERS[0]}, lying()
    nursery.start_soon(watch_for_duplicates, r.context)
    ends_s = r.context.now() + TURNS * QUESTIONS.look_s
    await settled(lambda: r.context.identities.watch.next_ask_s() > ends_s)
    assert r.network.requested == []
    assert r.heard() == []


async def test_strangers_with_low_ids_cannot_stop_a_voter_or_its_next_start(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery
) -> None:
    r, witness = await new_rig(tmp_path / "a"), await new_rig(tmp_path / "b")
    answer_questions(witness.context)
    r.network.peers = {*STRANGERS, ANN.peer, BOB.peer}
    r.network.answer = honest_but_for(STRANGERS, witness, r.context.me)
    await goes_on(r, nursery)
    await started_again(r)
    assert {peer for peer, _ in r.network.requested} == {ANN.peer, BOB.peer}


async def test_lying_members_cannot_stop_a_node(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Here all members that the node can ask lie."""
    r = await new_rig(tmp_path)
    r.network.peers, r.network.answer = {ANN.peer, BOB.peer, CAI.peer}, lying()
    await goes_on(r, nursery)
    await started_again(r)


async def started_again(r: Rig) -> None:
    """Check that the next start of this node succeeds, and that it ignores the start count in a
    forged mark."""
    context = r.context

    def count(at_least: int) -> int:
        return start_count.count_start(context.home.starts, at_least)

    counted = start_count.read_start_count(context.home.starts)
    with trio.fail_after(20):
        incarnation, _ = await start(
            context.network,
            context.identity,
            r.run,
            count,
            context.admission.admits,
            lambda text: None,
        )
    assert (
        starts_of(incarnation) == start_count.read_start_count(context.home.starts) == counted + 1
    )


async def test_replayed_heartbeats_do_not_stop_restarted_nodes(
    new_rig: NewRig, tmp_path: Path
) -> None:
    """Three nodes have restarted. A member sends their old heartbeats again, with newer serials
    each time, as if the old processes were still running. An honest member answers the questions of
    all three."""
    witness = await new_rig(tmp_path)
    context, now = witness.context, witness.context.now()
    watches = [
        process(one, incarnation_of(2, number)) for number, one in enumerate((ANN, BOB, CAI))
    ]
    for turn in range(12):
        for watch in watches:
            for incarnation in (watch.incarnation, incarnation_of(1, 9999)):
                beat = heartbeat(witness.run.id, incarnation=incarnation, serial=turn)
                await take_heartbeat(context, watch.me, encode(beat))
            ((_, question),) = watch.ask({context.me}, (), now + turn)
            reply = context.identities.mailboxes.answer(watch.me, question, now + turn)
            assert reply is not None
            watch.note_reply(context.me, reply, now + turn)
    assert [watch.duplicate for watch in watches] == [None] * 3
    records = [context.peers.table.get(watch.me) for watch in watches]
    heard = [record.heartbeat.incarnation for record in records if record is not None]
    assert heard == [watch.incarnation for watch in watches]


def process(identity: Identity, incarnation: int) -> DuplicateWatch:
    run, random = RunId("a" * 64), Random(incarnation)
    return DuplicateWatch(identity.peer, run, incarnation, identity.sign, verify, random)


# ── a second process that really has the node's key ─────────────────────────────────────────────


def signing(r: Rig, incarnation: int) -> Answer:
    """Return the answer function of a member that forwards proofs of a second process with this
    node's key."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        nonce = decode_question(payload).nonce
        sign = r.context.identity.sign
        proof = make_proof(r.run.id, nonce, incarnation, sign, starting=False)
        return encode_reply(IdentityReply(True, (), (proof,)))

    return answer


async def test_duplicate_that_started_earlier_ends_this_node(
    new_rig: NewRig, tmp_path: Path
) -> None:
    r = await new_rig(tmp_path)
    r.context.identities.watch.use_incarnation(incarnation_of(3, 1))
    r.network.peers, r.network.answer = {ANN.peer}, signing(r, incarnation_of(2, 1))
    with pytest.raises(ExceptionGroup) as raised:
        await watch_for_duplicates(r.context)
    (error,) = raised.value.exceptions
    assert isinstance(error, IdentityInUse)
    assert (error.code, error.exit_code) == ("ID-IN-USE", 8)
    assert ANN.peer[-6:] in error.evidence[1]
    assert "copied" in error.likely
    assert "--home" in error.do
    (event,) = r.heard()
    assert isinstance(event, CloneFound)
    (said,) = r.said("duplicate")
    assert (said["start"], said["other_start"], said["ends"]) == (3, 2, True)


async def test_duplicate_that_started_later_ends_only_this_nodes_voting(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    watch = r.context.identities.watch
    watch.use_incarnation(incarnation_of(3, 1))
    r.network.peers, r.network.answer = {ANN.peer}, signing(r, incarnation_of(4, 1))
    nursery.start_soon(watch_for_duplicates, r.context)
    await settled(lambda: bool(r.said("duplicate")))
    assert not r.said("duplicate")[0]["ends"]

    async def gone(peer: PeerId, payload: bytes) -> bytes:
        mark = make_mark(r.run.id, incarnation_of(4, 1), r.context.identity.sign)
        return encode_reply(IdentityReply(False, mark=mark))

    r.network.answer = gone
    await settled(lambda: bool(r.said("counted-on")))
    assert watch.incarnation == incarnation_of(5, 1)
    assert start_count.read_start_count(r.context.home.starts) == 5
    assert [type(event) for event in r.heard()] == [CloneFound]


async def test_restored_home_counts_on_from_the_highest_start_that_it_signed(
    new_rig: NewRig, tmp_path: Path
) -> None:
    r = await new_rig(tmp_path)

    async def remembers(peer: PeerId, payload: bytes) -> bytes:
        mark = make_mark(r.run.id, incarnation_of(40, 1), r.context.identity.sign)
        return encode_reply(IdentityReply(False, mark=mark))

    r.network.peers, r.network.answer = {ANN.peer}, remembers
    count = partial(start_count.count_start, r.context.home.starts)
    incarnation, _ = await start(
        r.context.network, r.context.identity, r.run, count, r.context.admission.admits, print
    )
    assert starts_of(incarnation) == start_count.read_start_count(r.context.home.starts) == 41


def proofs(context: Context) -> dict[PeerId, tuple[IdentityProof, ...]]:
    """Let the node ask Ann and Bob, and return the proofs that it sends to them with its
    questions."""
    questions = context.identities.watch.ask((ANN.peer, BOB.peer), (), context.now())
    return {peer: question.proofs for peer, question in questions if question.proofs}


async def test_only_members_may_announce_nonces_and_questions_are_rate_limited(
    new_rig: NewRig, tmp_path: Path
) -> None:
    r = await new_rig(tmp_path)
    context = r.context
    notice = encode_notice(IdentityNotice(context.me, b"n" * NONCE_BYTES))
    await take_notice(context, ANN.peer, notice)
    assert proofs(context) == {}, "the stranger is admitted but is not a member"
    state = context.ledger.snapshot
    r.decide(replace(opening(state), learners=(ANN.peer,)))
    await take_notice(context, ANN.peer, notice)
    assert len(proofs(context)[ANN.peer]) == 1
    answer_questions(context)
    handler = r.network.handlers[IDENTITY_PROTOCOL]
    question = encode_question(IdentityQuestion(b"q" * NONCE_BYTES, 5, starting=False))
    with pytest.raises(TryLater):
        for _ in range(QUESTIONS_BURST + 1):
            await handler(BOB.peer, question)


async def test_nonce_is_announced_if_two_processes_with_one_identity_ask(
    new_rig: NewRig, tmp_path: Path
) -> None:
    r = await new_rig(tmp_path)
    answer_questions(r.context)
    handler = r.network.handlers[IDENTITY_PROTOCOL]
    for incarnation in (5, 6):
        nonce = bytes([incarnation]) * NONCE_BYTES
        await handler(
            BOB.peer, encode_question(IdentityQuestion(nonce, incarnation, starting=True))
        )
    ((topic, payload),) = r.network.published
    assert topic == identity_topic(r.run.id)
    assert decode_notice(payload) == IdentityNotice(BOB.peer, b"\x06" * NONCE_BYTES)
