"""The node writes what peers did wrong to its journal, at a limited rate, so that peers cannot fill
the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.peers.misbehaviour_log import (
    COMPLAINTS_MAX,
    LINES_BURST,
    NOTES_BURST,
    MisbehaviourLog,
)
from tests.node.swarm import Diary

ANN, BOB = PeerId("ann"), PeerId("bob")


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "journal.jsonl")


def test_first_fault_is_written_at_once_and_repetitions_are_counted(diary: Diary) -> None:
    with diary:
        complaints = MisbehaviourLog(diary)
        for now in (0.0, 1.0, 9.0, 10.0, 11.0):
            complaints.complain("late", ANN, {"by_s": now}, now)
        complaints.complain("late", BOB, {}, 11.0)
        complaints.complain("rude", ANN, {}, 11.0)
    said = [(each["event"], each["peer"], each["kept_back"]) for each in diary.records]
    assert said == [("late", ANN, 0), ("late", ANN, 2), ("late", BOB, 0), ("rude", ANN, 0)]


def test_faults_of_many_peers_cause_only_a_bounded_number_of_lines(diary: Diary) -> None:
    with diary:
        complaints = MisbehaviourLog(diary)
        for number in range(2 * COMPLAINTS_MAX):
            complaints.complain("rude", f"peer {number}", {}, 0.0)
        complaints.complain("late", ANN, {}, 0.0)
    assert len(diary.records) == LINES_BURST + 1
    assert len(complaints) == COMPLAINTS_MAX


def test_notes_about_peers_are_limited_and_those_about_ourselves_are_not(diary: Diary) -> None:
    with diary:
        complaints = MisbehaviourLog(diary)
        for _ in range(2 * NOTES_BURST):
            complaints.note(ANN, "a bad vote", 0.0)
        complaints.note(BOB, "a vote", 0.0)
        for _ in range(2 * LINES_BURST):
            complaints.note(None, "a round is over", 0.0)
    texts = [each.get("text", each["event"]) for each in diary.records]
    told = ["a bad vote"] * NOTES_BURST + ["notes-kept-back", "a vote"]
    assert texts == told + ["a round is over"] * (2 * LINES_BURST)
