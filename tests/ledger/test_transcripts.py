"""Every story in transcripts/ has the trace that it expects, and the player reports one that does
not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger.transcript_player.__main__ import main
from tests.ledger.transcript_player.blocks import blocks_of, played, rewritten
from tests.ledger.transcript_player.fault import StoryFault

FOLDER = Path(__file__).parent / "transcripts"
STORIES = sorted(FOLDER.glob("*.txt"))
STORIES_MIN = 20

ANEW = "python -m tests.ledger.transcript_player --rewrite FILE, and read the difference"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_has_the_expected_trace(path: Path) -> None:
    text = path.read_text()
    assert rewritten(text) == text, f"if the change is intended, run {ANEW}"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_has_a_claim_and_expectations(path: Path) -> None:
    """The first comment and the `expect` commands of a story say what it shows. Rewriting its trace
    does not change them.
    """
    text = path.read_text()
    first = " ".join(text.partition("\n\n")[0].replace("# ", "").split())
    assert text.startswith("# ")
    assert first[0].isupper()
    assert first.endswith(".")
    assert text.count("\nexpect ") >= 2


def test_there_are_enough_stories() -> None:
    assert len(STORIES) >= STORIES_MIN


SHORT = "members a\n\nready a\nexpect a height 1\n----\nnothing of the kind\n"


def test_wrong_trace_is_noticed_and_can_be_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text(SHORT)
    assert rewritten(SHORT) != SHORT
    assert main(["--rewrite", str(path)]) == 0
    anew = path.read_text()
    assert anew == rewritten(anew)
    assert "a appends e1" in anew


def test_rewrite_cannot_hide_a_failed_expectation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.txt"
    path.write_text(SHORT.replace("height 1", "height 2"))
    assert main(["--rewrite", str(path)]) == 1
    assert "nothing of the kind" in path.read_text()
    assert "line 4: expected a height 2, but a has 1" in capsys.readouterr().err


def test_without_rewrite_the_story_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "story.txt"
    path.write_text(SHORT)
    assert main([str(path)]) == 0
    assert "a appends e1" in capsys.readouterr().out
    assert path.read_text() == SHORT


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("dance a", "there is no command 'dance'"),
        ("deliver a->b propose", "no waiting message matches a->b propose"),
        ("done a u0", "a does not know of a reduce"),
        ("expect a weight 5", "there is no fact 'weight'"),
        ("expect a notes hello", "a noted nothing"),
        ("expect a entry 1 skip 0", "a has nothing"),
    ],
)
def test_error_names_the_line_of_the_story(command: str, fault: str) -> None:
    with pytest.raises(StoryFault, match="line 3") as caught:
        played(blocks_of(f"members a b c\n\n{command}\n"))
    assert fault in str(caught.value)


def test_story_must_begin_with_its_members() -> None:
    with pytest.raises(StoryFault, match="must begin with the command"):
        played(blocks_of("ready a\n"))
