"""Attacks on the check for a second process with a node's identity, as they once succeeded, on a
node's own tasks.

Before, one stranger stopped a seed without other peers after 18 to 32 s. Twenty strangers with low
ids stopped a voter beside honest voters, and its next start. One member that replayed heartbeats
stopped all three nodes of a run. None of these attacks has an effect now.
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
from p2ptrain.node.gossip.gossip import _take_heartbeat
from p2ptrain.node.joining import duplicate_identity
from p2ptrain.node.joining.duplicate_identity import (
    answer_questions,
    keep_alone,
    start,
    take_notice,
)
from p2ptrain.peers import duplicate_watch
from p2ptrain.peers.duplicate_watch import DuplicateWatch
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
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, opening, settled, somebody

STRANGERS = [somebody(number).peer for number in range(1, 21)]
TURNS = 6

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]


@pytest.fixture(autouse=True)
def very_quick_questions(monkeypatch: pytest.MonkeyPatch, quick_questions: None) -> None:
    monkeypatch.setattr(duplicate_watch, "LOOK_S", 0.05)
    monkeypatch.setattr(duplicate_watch, "ALARM_S", 0.02)


def lying() -> Answer:
    """Everything that a peer without the key can say: a claim that another process lives, a forged
    proof for the nonce, challenges that nobody made, and a forged mark.
    """

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        nonce = decode_question(payload).nonce
        forged = IdentityProof(nonce, 0, False, os.urandom(SIGNATURE_BYTES))
        mark = Mark(INCARNATION_MAX, os.urandom(SIGNATURE_BYTES))
        return encode_reply(IdentityReply(True, (os.urandom(NONCE_BYTES),), (forged,), mark))

    return answer


def honest_but_for(liars: list[PeerId], witness: Rig, me: PeerId) -> Answer:
    """The liars lie. All others answer as the node `witness` does."""
    handler, lie = witness.network.handlers[IDENTITY_PROTOCOL], lying()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        try:
            return await (lie(peer, payload) if peer in liars else handler(me, payload))
        except TryLater as exc:  # As the network tells it.
            raise PeerUnreachable(exc.what) from exc

    return answer


async def goes_on(r: Rig, nursery: trio.Nursery) -> None:
    """It asks `TURNS` more times and keeps voting."""
    nursery.start_soon(keep_alone, r.parts)
    watch = r.parts.identities.watch
    await settled(lambda: len(watch._nonces) >= TURNS)
    assert watch.duplicate is None
    assert not any(isinstance(event, CloneFound) for event in r.heard())


async def test_stranger_cannot_stop_a_seed_without_other_peers(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, seed=True)
    r.network.peers, r.network.answer = {STRANGERS[0]}, lying()
    nursery.start_soon(keep_alone, r.parts)
    ends_s = r.parts.now() + TURNS * duplicate_watch.LOOK_S
    await settled(lambda: r.parts.identities.watch.next_ask_s() > ends_s)
    assert r.network.requested == []
    assert r.heard() == []


async def test_strangers_with_low_ids_cannot_stop_a_voter_or_its_restart(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery
) -> None:
    r, witness = await new_rig(tmp_path / "a"), await new_rig(tmp_path / "b")
    answer_questions(witness.parts)
    r.network.peers = {*STRANGERS, ANN.peer, BOB.peer}
    r.network.answer = honest_but_for(STRANGERS, witness, r.parts.me)
    await goes_on(r, nursery)
    await started_again(r)
    assert {peer for peer, _ in r.network.requested} == {ANN.peer, BOB.peer}


async def test_members_that_lie_together_stop_nobody(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery
) -> None:
    """This holds even if every member that can be asked lies."""
    r = await new_rig(tmp_path)
    r.network.peers, r.network.answer = {ANN.peer, BOB.peer, CAI.peer}, lying()
    await goes_on(r, nursery)
    await started_again(r)


async def started_again(r: Rig) -> None:
    """The next start of this node succeeds within its deadline and accepts no invented count."""
    parts = r.parts

    def count(at_least: int) -> int:
        return start_count.count(parts.home.starts, at_least)

    counted = start_count.counted(parts.home.starts)
    with trio.fail_after(20):
        incarnation, _ = await start(
            parts.network, parts.identity, r.run, count, parts.admission.admits, lambda text: None
        )
    assert starts_of(incarnation) == start_count.counted(parts.home.starts) == counted + 1


async def test_replayed_heartbeats_of_restarted_nodes_stop_nobody(
    new_rig: NewRig, tmp_path: Path
) -> None:
    """Three nodes have all restarted. A member sends their old heartbeats again, each time with
    newer serials, as if the old processes continued. An honest member answers all three.
    """
    witness = await new_rig(tmp_path)
    parts, now = witness.parts, witness.parts.now()
    watches = [
        process(one, incarnation_of(2, number)) for number, one in enumerate((ANN, BOB, CAI))
    ]
    for turn in range(12):
        for watch in watches:
            for incarnation in (watch.incarnation, incarnation_of(1, 9999)):
                beat = heartbeat(witness.run.id, incarnation=incarnation, serial=turn)
                await _take_heartbeat(parts, watch.me, encode(beat))
            ((_, question),) = watch.ask({parts.me}, (), now + turn)
            reply = parts.identities.desk.answer(watch.me, question, now + turn)
            assert reply is not None
            watch.note_reply(parts.me, reply, now + turn)
    assert [watch.duplicate for watch in watches] == [None] * 3
    views = [parts.peers.get(watch.me) for watch in watches]
    heard = [view.heartbeat.incarnation for view in views if view is not None]
    assert heard == [watch.incarnation for watch in watches]


def process(identity: Identity, incarnation: int) -> DuplicateWatch:
    run, random = RunId("a" * 64), Random(incarnation)
    return DuplicateWatch(identity.peer, run, incarnation, identity.sign, verify, random)


# Only a holder of the key can do this.


def signing(r: Rig, incarnation: int) -> Answer:
    """A member that forwards the answers of a process with this node's key."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        nonce = decode_question(payload).nonce
        sign = r.parts.identity.sign
        proof = make_proof(r.run.id, nonce, incarnation, sign, starting=False)
        return encode_reply(IdentityReply(True, (), (proof,)))

    return answer


async def test_earlier_duplicate_ends_this_node(
    new_rig: NewRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicate_identity, "LINGER_S", 0.1)
    r = await new_rig(tmp_path)
    r.parts.identities.watch.use_incarnation(incarnation_of(3, 1))
    r.network.peers, r.network.answer = {ANN.peer}, signing(r, incarnation_of(2, 1))
    with pytest.raises(ExceptionGroup) as raised:
        await keep_alone(r.parts)
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


async def test_later_duplicate_takes_this_nodes_vote_until_it_is_gone(
    new_rig: NewRig, tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicate_watch, "QUIET_S", 0.3)
    r = await new_rig(tmp_path)
    watch = r.parts.identities.watch
    watch.use_incarnation(incarnation_of(3, 1))
    r.network.peers, r.network.answer = {ANN.peer}, signing(r, incarnation_of(4, 1))
    nursery.start_soon(keep_alone, r.parts)
    await settled(lambda: bool(r.said("duplicate")))
    assert not r.said("duplicate")[0]["ends"]

    async def gone(peer: PeerId, payload: bytes) -> bytes:
        mark = make_mark(r.run.id, incarnation_of(4, 1), r.parts.identity.sign)
        return encode_reply(IdentityReply(False, mark=mark))

    r.network.answer = gone
    await settled(lambda: bool(r.said("counted-on")))
    assert watch.incarnation == incarnation_of(5, 1)
    assert start_count.counted(r.parts.home.starts) == 5
    assert [type(event) for event in r.heard()] == [CloneFound]


async def test_restored_home_counts_on_above_the_numbers_it_signed(
    new_rig: NewRig, tmp_path: Path
) -> None:
    r = await new_rig(tmp_path)

    async def remembers(peer: PeerId, payload: bytes) -> bytes:
        mark = make_mark(r.run.id, incarnation_of(40, 1), r.parts.identity.sign)
        return encode_reply(IdentityReply(False, mark=mark))

    r.network.peers, r.network.answer = {ANN.peer}, remembers
    count = partial(start_count.count, r.parts.home.starts)
    incarnation, _ = await start(
        r.parts.network, r.parts.identity, r.run, count, r.parts.admission.admits, print
    )
    assert starts_of(incarnation) == start_count.counted(r.parts.home.starts) == 41


async def test_only_members_announce_challenges_and_at_a_limited_rate(
    new_rig: NewRig, tmp_path: Path
) -> None:
    r = await new_rig(tmp_path)
    parts, watch = r.parts, r.parts.identities.watch
    notice = encode_notice(IdentityNotice(parts.me, b"n" * NONCE_BYTES))
    await take_notice(parts, ANN.peer, notice)
    assert watch._challengers == {}, "it is admitted but not a member"
    state = parts.ledger.state
    r.decide(replace(opening(state), learners=(ANN.peer,)))
    await take_notice(parts, ANN.peer, notice)
    assert set(watch._challengers) == {ANN.peer}
    answer_questions(parts)
    handler = r.network.handlers[IDENTITY_PROTOCOL]
    question = encode_question(IdentityQuestion(b"q" * NONCE_BYTES, 5, starting=False))
    with pytest.raises(TryLater):
        for _ in range(QUESTIONS_BURST + 1):
            await handler(BOB.peer, question)


async def test_suspicion_is_announced_to_all_members(new_rig: NewRig, tmp_path: Path) -> None:
    r = await new_rig(tmp_path)
    answer_questions(r.parts)
    handler = r.network.handlers[IDENTITY_PROTOCOL]
    for incarnation in (5, 6):
        nonce = bytes([incarnation]) * NONCE_BYTES
        await handler(
            BOB.peer, encode_question(IdentityQuestion(nonce, incarnation, starting=True))
        )
    ((topic, payload),) = r.network.published
    assert topic == identity_topic(r.run.id)
    assert decode_notice(payload) == IdentityNotice(BOB.peer, b"\x06" * NONCE_BYTES)
