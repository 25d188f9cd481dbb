"""A process finds out whether it has a duplicate: another process that uses the same key.

It asks members, and the reply of a member can contain a proof. Each start of a process has a higher
number than the one before, its incarnation; this decides which of two processes ends.
"""

from __future__ import annotations

from random import Random

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import PeerId, RunId
from p2ptrain.peers import duplicate_watch
from p2ptrain.peers.duplicate_watch import (
    ASKED_AT_ONCE,
    FRESH_S,
    QUIET_S,
    Duplicate,
    DuplicateWatch,
    peers_to_ask,
)
from p2ptrain.peers.identity_mailboxes import KEPT_S, QUESTIONS_BURST, IdentityMailboxes
from p2ptrain.peers.identity_messages import (
    CHALLENGES_MAX,
    NONCE_BYTES,
    PROOFS_MAX,
    IdentityNotice,
    IdentityProof,
    IdentityQuestion,
    IdentityReply,
    decode_notice,
    decode_question,
    decode_reply,
    encode_notice,
    encode_question,
    encode_reply,
    make_mark,
    make_proof,
)
from p2ptrain.peers.incarnations import INCARNATION_MAX, Incarnations, Mark, incarnation_of
from tests.node.rig import ANN, BOB, CAI, somebody

RUN = RunId("a" * 64)
OLDER, NEWER = incarnation_of(1, 5), incarnation_of(2, 5)
NONCE = bytes(range(NONCE_BYTES))
OTHER_NONCE = bytes(NONCE_BYTES)


def process(incarnation: int, *, starting: bool = False, seed: int = 0) -> DuplicateWatch:
    """Return the watch of a process with Ann's key."""
    random = Random(f"{incarnation}/{seed}")
    return DuplicateWatch(ANN.peer, RUN, incarnation, ANN.sign, verify, random, starting=starting)


def asked(watch: DuplicateWatch, now: float = 0.0) -> bytes:
    """Let the process ask Bob, and return the nonce of its question."""
    ((peer, question),) = watch.ask({BOB.peer}, (), now)
    assert peer == BOB.peer
    return question.nonce


def proof_by(
    signer: Identity, nonce: bytes, incarnation: int, *, starting: bool = False
) -> IdentityProof:
    return make_proof(RUN, nonce, incarnation, signer.sign, starting=starting)


def told(watch: DuplicateWatch, *proofs: IdentityProof, now: float = 1.0) -> Duplicate | None:
    """Let Bob reply with these proofs. Return the duplicate that the process then knows of."""
    watch.note_reply(BOB.peer, IdentityReply(True, (), proofs), now)
    return watch.duplicate


def test_nonce_that_was_signed_with_our_key_proves_a_duplicate() -> None:
    watch = process(OLDER)
    assert told(watch, proof_by(ANN, asked(watch), NEWER)) == Duplicate(NEWER, BOB.peer, False)
    watch = process(NEWER)
    assert told(watch, proof_by(ANN, asked(watch), OLDER)) == Duplicate(OLDER, BOB.peer, True)


def test_reply_without_a_valid_proof_does_not_prove_a_duplicate() -> None:
    watch = process(OLDER)
    nonce = asked(watch)
    assert told(watch) is None, "a member's claim is not a proof"
    assert told(watch, proof_by(BOB, nonce, NEWER)) is None
    assert told(watch, proof_by(ANN, OTHER_NONCE, NEWER)) is None
    assert told(watch, proof_by(ANN, nonce, OLDER)) is None, "our own process made this proof"
    forged = IdentityProof(
        nonce, NEWER, False, proof_by(ANN, nonce, NEWER, starting=True).signature
    )
    assert told(watch, forged) is None
    of_other_run = make_proof(RunId("b" * 64), nonce, NEWER, ANN.sign, starting=False)
    assert told(watch, of_other_run) is None
    assert told(watch, proof_by(ANN, nonce, NEWER), now=FRESH_S + 1) is None
    assert not watch.lives_elsewhere(1.0)


def test_process_that_is_starting_ends_and_the_running_one_ignores_it() -> None:
    running, starting = process(NEWER), process(OLDER, starting=True)
    assert told(running, proof_by(ANN, asked(running), OLDER, starting=True)) is None
    found = told(starting, proof_by(ANN, asked(starting), NEWER))
    assert found == Duplicate(NEWER, BOB.peer, True)


def test_newer_of_two_starting_processes_ends() -> None:
    older, newer = process(OLDER, starting=True), process(NEWER, starting=True)
    assert told(older, proof_by(ANN, asked(older), NEWER, starting=True)) is None
    found = told(newer, proof_by(ANN, asked(newer), OLDER, starting=True))
    assert found == Duplicate(OLDER, BOB.peer, True)


def test_nonce_of_a_possible_duplicate_is_signed_once_and_makes_us_ask() -> None:
    watch = process(OLDER)
    own = asked(watch)
    due_s = watch.next_ask_s()
    watch.note_challenges(CAI.peer, [own], 0.5)
    assert watch.next_ask_s() == due_s, "our own nonce is not a challenge"
    watch.note_challenges(CAI.peer, [NONCE], 0.5)
    assert watch.next_ask_s() == 0.5
    questions = dict(watch.ask({BOB.peer}, {CAI.peer}, 0.5))
    assert questions[CAI.peer].proofs == (proof_by(ANN, NONCE, OLDER),)
    assert questions[BOB.peer].proofs == ()
    watch.note_challenges(CAI.peer, [NONCE], 0.6)
    assert watch.next_ask_s() > 0.6, "the challenge has been answered"


def test_flood_of_nonces_causes_only_a_few_questions() -> None:
    watch = process(OLDER)
    random, times = Random(1), 0
    for tick in range(200):
        now = tick / 20
        watch.note_challenges(somebody(tick % 50).peer, [random.randbytes(16)] * 20, now)
        if now >= watch.next_ask_s():
            times += 1
            questions = watch.ask({BOB.peer}, {somebody(each).peer for each in range(50)}, now)
            assert len(questions) <= 3 * ASKED_AT_ONCE
            assert all(len(question.proofs) <= PROOFS_MAX for _, question in questions)
    assert times <= 2 + 10 / duplicate_watch.ALARM_S


def test_voters_are_asked_in_random_order_and_strangers_never() -> None:
    strangers = {somebody(number).peer for number in range(1, 21)}
    voters = {somebody(number).peer for number in range(30, 40)}
    others = {somebody(number).peer for number in range(40, 50)}
    members = voters | others
    found = peers_to_ask(strangers | members, members.__contains__, voters, members)
    assert found == (voters, members)
    watch = process(OLDER)
    seen: set[PeerId] = set()
    for turn in range(40):
        questions = watch.ask(*found, float(turn))
        assert len(questions) == ASKED_AT_ONCE
        seen |= {peer for peer, _ in questions}
    assert seen == voters
    few = dict(watch.ask({BOB.peer}, others, 50.0))
    assert BOB.peer in few
    assert len(few) == ASKED_AT_ONCE


def test_strangers_are_not_asked_even_if_there_is_no_other_peer() -> None:
    strangers = {somebody(number).peer for number in range(1, 21)}
    watch = process(OLDER)
    assert watch.ask(*peers_to_ask(strangers, lambda peer: False, (), ()), 5.0) == []
    assert watch.next_ask_s() == 5.0 + duplicate_watch.ALARM_S
    # A peer that is admitted but not a member yet is asked: it too can forward a proof.
    assert peers_to_ask({CAI.peer}, lambda peer: True, {BOB.peer}, {BOB.peer}) == (
        set(),
        {CAI.peer},
    )


def test_process_raises_a_low_incarnation_once_no_duplicate_is_alive() -> None:
    """A mark proves that the key was once used with that incarnation. Peers ignore heartbeats with
    a lower incarnation, so the process must raise its own."""
    watch, mark = process(OLDER), make_mark(RUN, NEWER, ANN.sign)
    asked(watch)
    watch.note_reply(BOB.peer, IdentityReply(False, mark=Mark(NEWER + 1, mark.signature)), 0.0)
    watch.note_reply(BOB.peer, IdentityReply(False, mark=make_mark(RUN, NEWER, BOB.sign)), 0.0)
    assert watch.incarnation_to_exceed(QUIET_S) == 0, "these marks are not ours"
    watch.note_reply(BOB.peer, IdentityReply(False, mark=mark), 0.0)
    assert watch.incarnation_to_exceed(QUIET_S - 1) == 0
    assert watch.incarnation_to_exceed(QUIET_S) == NEWER
    nonce = asked(watch, QUIET_S)
    told(watch, proof_by(ANN, nonce, NEWER), now=QUIET_S + 1)
    assert watch.incarnation_to_exceed(2 * QUIET_S - 1) == 0, "a duplicate uses this incarnation"
    assert watch.incarnation_to_exceed(2 * QUIET_S) == NEWER
    watch.use_incarnation(incarnation_of(3, 5))
    assert watch.incarnation_to_exceed(9 * QUIET_S) == 0
    assert watch.mark == make_mark(RUN, incarnation_of(3, 5), ANN.sign)


def test_process_that_is_starting_raises_a_low_incarnation_at_once() -> None:
    """For example, its home (the node's folder) was restored from an old backup."""
    watch = process(OLDER, starting=True)
    asked(watch)
    watch.note_reply(BOB.peer, IdentityReply(False, mark=make_mark(RUN, NEWER, ANN.sign)), 0.0)
    assert watch.incarnation_to_exceed(0.0) == NEWER


# two processes that find each other through members


def exchange(
    one: DuplicateWatch, other: DuplicateWatch, mailboxes: IdentityMailboxes, turns: int
) -> None:
    """Let two processes in turn ask Bob, who has these mailboxes."""
    for turn in range(turns):
        for watch in (one, other):
            now = float(turn)
            ((_, question),) = watch.ask({BOB.peer}, (), now)
            reply = mailboxes.answer(ANN.peer, decode_question(encode_question(question)), now)
            assert reply is not None
            watch.note_reply(BOB.peer, decode_reply(encode_reply(reply)), now)


def test_two_processes_find_each_other_through_one_member() -> None:
    older, newer = process(OLDER), process(NEWER)
    exchange(older, newer, IdentityMailboxes(Incarnations()), 3)
    assert older.duplicate == Duplicate(NEWER, BOB.peer, False)
    assert newer.duplicate == Duplicate(OLDER, BOB.peer, True)


def test_two_processes_that_ask_different_members_find_each_other_by_notices() -> None:
    """Members that suspect a duplicate send the nonces of its processes to each other."""
    older, newer = process(OLDER), process(NEWER)
    boxes = {
        BOB.peer: IdentityMailboxes(Incarnations()),
        CAI.peer: IdentityMailboxes(Incarnations()),
    }
    # Bob hears the newer process and is asked by the older one, so he suspects a duplicate.
    boxes[BOB.peer].incarnations.note_arrival(ANN.peer, NEWER, 1, 0.0, 2.5)
    for turn in range(12):
        now = float(turn)
        for watch, member in ((older, BOB.peer), (newer, CAI.peer)):
            ((_, question),) = watch.ask({member}, (), now)
            reply = boxes[member].answer(ANN.peer, question, now)
            assert reply is not None
            watch.note_reply(member, reply, now)
        for member, other in ((BOB.peer, CAI.peer), (CAI.peer, BOB.peer)):
            for notice in boxes[member].pop_notices():
                forwarded = decode_notice(encode_notice(notice))
                boxes[other].note_notice(member, forwarded, now)
    assert older.duplicate == Duplicate(NEWER, BOB.peer, False)
    assert newer.duplicate == Duplicate(OLDER, CAI.peer, True)


def test_process_that_was_restarted_has_no_duplicate() -> None:
    """For eight seconds members suspect one, since they have heard two incarnations."""
    mailboxes, before, after = IdentityMailboxes(Incarnations()), process(OLDER), process(NEWER)
    ((_, question),) = before.ask({BOB.peer}, (), 0.0)
    mailboxes.answer(ANN.peer, question, 0.0)
    for turn in range(1, 40):
        ((_, question),) = after.ask({BOB.peer}, (), float(turn))
        reply = mailboxes.answer(ANN.peer, question, float(turn))
        assert reply is not None
        assert reply.suspected is (turn < 8)
        after.note_reply(BOB.peer, reply, float(turn))
    assert after.duplicate is None


def test_many_false_notices_of_one_member_do_not_displace_those_of_others() -> None:
    mailboxes, random = IdentityMailboxes(Incarnations()), Random(1)
    mailboxes.note_notice(BOB.peer, IdentityNotice(ANN.peer, NONCE), 0.0)
    for _ in range(100):
        mailboxes.note_notice(CAI.peer, IdentityNotice(ANN.peer, random.randbytes(16)), 1.0)
    reply = mailboxes.answer(ANN.peer, IdentityQuestion(OTHER_NONCE, OLDER, False), 2.0)
    assert reply is not None
    assert NONCE in reply.challenges
    assert len(reply.challenges) == 3


def test_mailboxes_are_bounded_and_forget_old_questions() -> None:
    mailboxes, random = IdentityMailboxes(Incarnations()), Random(1)
    replies = []
    for number in range(200):
        proofs = tuple(proof_by(ANN, random.randbytes(16), NEWER) for _ in range(2))
        question = IdentityQuestion(random.randbytes(16), OLDER + number, False, proofs)
        replies.append(mailboxes.answer(ANN.peer, question, 0.0))
        mailboxes.note_notice(
            somebody(number).peer, IdentityNotice(ANN.peer, random.randbytes(16)), 0.0
        )
    answered = [reply for reply in replies if reply is not None]
    assert len(answered) == QUESTIONS_BURST
    assert all(len(encode_reply(reply)) < 2048 for reply in answered)
    assert max(len(reply.challenges) for reply in answered) == CHALLENGES_MAX
    assert len(mailboxes.pop_notices()) <= 16
    later = mailboxes.answer(ANN.peer, IdentityQuestion(NONCE, OLDER, False), KEPT_S + 1)
    assert later == IdentityReply(False)


# on the wire

PROOF = proof_by(ANN, NONCE, NEWER)
MARK = make_mark(RUN, NEWER, ANN.sign)


def test_messages_survive_encoding() -> None:
    for question in (
        IdentityQuestion(NONCE, INCARNATION_MAX, True),
        IdentityQuestion(NONCE, 0, False, (PROOF,) * PROOFS_MAX),
    ):
        assert decode_question(encode_question(question)) == question
    for reply in (
        IdentityReply(False),
        IdentityReply(True, (NONCE,) * CHALLENGES_MAX, (PROOF,) * PROOFS_MAX, MARK),
    ):
        assert decode_reply(encode_reply(reply)) == reply
    for notice in (IdentityNotice(ANN.peer, NONCE), IdentityNotice(ANN.peer, NONCE, PROOF)):
        assert decode_notice(encode_notice(notice)) == notice


PLAIN_PROOF: list[object] = [NONCE, 5, False, bytes(64)]
"""A proof as it is sent."""


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("nonce", b"short"),
        ("nonce", "text"),
        ("incarnation", -1),
        ("incarnation", True),
        ("starting", 1),
        ("proofs", [PLAIN_PROOF] * (PROOFS_MAX + 1)),
        ("proofs", [[NONCE, 5, False]]),
        ("proofs", [[NONCE, 5, 1, bytes(64)]]),
        ("proofs", [[NONCE, 5, False, bytes(63)]]),
        ("proofs", [[b"", 5, False, bytes(64)]]),
        ("more", 1),
    ],
)
def test_malformed_question_is_refused(changed: str, value: object) -> None:
    good: dict[str, object] = {"nonce": NONCE, "incarnation": 5, "starting": False, "proofs": []}
    decode_question(pack(good))
    with pytest.raises(RemoteProtocolError):
        decode_question(pack(good | {changed: value}))


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("suspected", 1),
        ("challenges", [NONCE] * (CHALLENGES_MAX + 1)),
        ("challenges", [b""]),
        ("proofs", PLAIN_PROOF),
        ("mark", [5]),
        ("mark", [-5, bytes(64)]),
        ("mark", [5, bytes(65)]),
        ("mark", 5),
    ],
)
def test_malformed_reply_is_refused(changed: str, value: object) -> None:
    good: dict[str, object] = {"suspected": True, "challenges": [], "proofs": [], "mark": None}
    decode_reply(pack(good))
    with pytest.raises(RemoteProtocolError):
        decode_reply(pack(good | {changed: value}))


@pytest.mark.parametrize(
    ("changed", "value"),
    [("peer", "nobody"), ("nonce", b"x"), ("proof", [OTHER_NONCE, 5, False, bytes(64)])],
)
def test_malformed_notice_is_refused(changed: str, value: object) -> None:
    good: dict[str, object] = {"peer": ANN.peer, "nonce": NONCE, "proof": None}
    decode_notice(pack(good))
    with pytest.raises(RemoteProtocolError):
        decode_notice(pack(good | {changed: value}))
