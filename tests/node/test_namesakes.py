"""Who was heard under one name, what is told of it, and who is believed."""

from __future__ import annotations

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.node import namesakes as module
from p2ptrain.node.loneliness import in_use, is_younger, spoke_anew
from p2ptrain.node.namesakes import (
    AGAIN_MS_MAX,
    LIVES_MAX,
    Namesake,
    Namesakes,
    Question,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from tests.node.rig import ANN, BOB, CAI, somebody

ONE, TWO = 111, 222
ALIVE = Namesake(ONE, 7, 2500, older=True)


def test_whoever_asks_is_told_who_else_may_live_and_for_how_long_that_is_open() -> None:
    namesakes = Namesakes()
    assert namesakes.other(ANN.peer, TWO, 0.0) is None
    namesakes.hear(ANN.peer, ONE, 10.0, 2.5)
    assert namesakes.other(ANN.peer, ONE, 11.0) is None  # It is itself.
    assert namesakes.other(BOB.peer, TWO, 11.0) is None
    assert namesakes.other(ANN.peer, TWO, 11.0) == Namesake(ONE, 1, 1501, older=True)
    assert namesakes.other(ANN.peer, TWO, 12.5) is None


def test_both_of_two_that_live_are_told_and_agree_who_was_there_first() -> None:
    namesakes = Namesakes()
    for at in (0.0, 2.0, 4.0):
        namesakes.hear(ANN.peer, ONE, at, 2.5)
        namesakes.hear(ANN.peer, TWO, at + 1.0, 2.5)
    assert namesakes.other(ANN.peer, TWO, 5.0) == Namesake(ONE, 3, 1501, older=True)
    assert namesakes.other(ANN.peer, ONE, 5.0) == Namesake(TWO, 3, 2501, older=False)


def test_words_that_are_gossiped_again_let_nobody_live_again() -> None:
    namesakes = Namesakes()
    for serial in (1, 2, 3):
        assert namesakes.take(ANN.peer, ONE, serial)
        assert namesakes.hear(ANN.peer, ONE, 0.0, 2.5, serial)
    assert namesakes.hear(ANN.peer, TWO, 10.0, 2.5, 1)
    for serial in (1, 2, 3):
        assert not namesakes.take(ANN.peer, ONE, serial)
        assert not namesakes.hear(ANN.peer, ONE, 11.0, 2.5, serial)
    assert namesakes.other(ANN.peer, TWO, 11.0) is None
    assert namesakes.hear(ANN.peer, ONE, 11.0, 2.5, 4)
    assert namesakes.other(ANN.peer, TWO, 11.0) == Namesake(ONE, 4, 2501, older=True)


def test_a_heartbeat_that_is_late_is_taken_in_though_one_that_could_not_be_read_was_heard() -> None:
    namesakes = Namesakes()
    assert namesakes.hear(ANN.peer, ONE, 0.0, 2.5, 6)
    assert namesakes.take(ANN.peer, ONE, 5)
    assert not namesakes.hear(ANN.peer, ONE, 0.0, 2.5, 5)


def test_little_is_remembered_of_a_peer_with_many_lives_and_nobody_waits_for_ever() -> None:
    namesakes = Namesakes()
    for life in range(1000):
        namesakes.hear(ANN.peer, life, 0.0, 1e9)
    assert len(namesakes._lives[ANN.peer]) == LIVES_MAX
    other = namesakes.other(ANN.peer, 5, 0.0)
    assert other is not None
    assert other.again_ms == AGAIN_MS_MAX


def test_however_many_speak_nobody_can_say_a_member_s_old_words_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PEERS_MAX", 3)
    namesakes = Namesakes({ANN.peer}.__contains__)
    assert namesakes.take(ANN.peer, ONE, 5)
    assert namesakes.take(BOB.peer, ONE, 5)
    for number in range(10):
        assert namesakes.take(somebody(number).peer, ONE, 1)
        assert namesakes.take(CAI.peer, ONE, number)
    assert list(namesakes._lives) == [ANN.peer, somebody(9).peer, CAI.peer]
    assert not namesakes.take(ANN.peer, ONE, 5)


@pytest.mark.parametrize(
    ("before", "after", "anew"),
    [
        (ALIVE, Namesake(ONE, 8, 100, older=True), True),
        (ALIVE, ALIVE, False),
        (ALIVE, Namesake(TWO, 9, 100, older=True), False),
        (None, ALIVE, False),
    ],
)
def test_only_who_was_heard_again_lives(
    before: Namesake | None, after: Namesake, anew: bool
) -> None:
    assert spoke_anew(before, after) is anew


def test_the_younger_is_who_most_witnesses_heard_last() -> None:
    younger = Namesake(TWO, 7, 2500, older=False)
    verdict = {BOB.peer: ALIVE, CAI.peer: ALIVE, somebody(1).peer: younger}
    assert is_younger(verdict)
    del verdict[CAI.peer]
    assert not is_younger(verdict)


def test_the_error_says_who_heard_the_other_and_what_to_do() -> None:
    error = in_use(ANN.peer, [BOB.peer])
    assert (error.code, error.exit_code) == ("ID-IN-USE", 8)
    assert BOB.peer[-6:] in error.evidence[0]
    assert "copied" in error.likely
    assert "--home" in error.do


def test_questions_and_answers_survive_the_wire() -> None:
    for starting in (True, False):
        question = Question(ONE, starting)
        assert decode_question(encode_question(question)) == question
    for answer in (None, ALIVE):
        assert decode_answer(encode_answer(answer)) == answer


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"\x00" * 500,
        pack({}),
        pack({"namesake": []}),
        pack({"namesake": [1, 2, 3, 4]}),
        pack({"namesake": [1, 2, AGAIN_MS_MAX + 1, True]}),
        pack({"namesake": [1, -2, 3, True]}),
        pack({"namesake": [True, 2, 3, True]}),
        pack({"namesake": ["1", 2, 3, True]}),
    ],
)
def test_a_hostile_answer_is_refused(wire: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_answer(wire)


@pytest.mark.parametrize("plain", [-1, 1 << 60, "1", None, True])
def test_a_hostile_question_is_refused(plain: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_question(pack({"incarnation": plain, "starting": True}))
