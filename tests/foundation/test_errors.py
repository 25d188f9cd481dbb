"""An error says what happened, with evidence, the likely cause, and what to do."""

from __future__ import annotations

import inspect
import ssl

import pytest

from p2ptrain import errors
from p2ptrain.errors import (
    P2PTrainError,
    ReduceAborted,
    TrainerExited,
    counted,
    readable,
    reason_of,
)
from p2ptrain.ids import PeerId

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, P2PTrainError)
]


def test_error_keeps_all_its_fields() -> None:
    error = P2PTrainError("it broke", code="X-1", evidence=["a", "b"], likely="you", do="mend it")
    assert (error.what, error.code, error.evidence) == ("it broke", "X-1", ("a", "b"))
    assert (error.likely, error.do, str(error)) == ("you", "mend it", "[X-1] it broke")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_class_tree_in_the_module_docstring_names_every_class(
    kind: type[errors.P2PTrainError],
) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


def test_exit_codes_are_the_documented_ones() -> None:
    promised = {2, 3, 4, 5, 6, 7, 8, 75, 1}
    assert {kind.exit_code for kind in CLASSES} == promised


def test_counted_noun_is_plural_except_after_one() -> None:
    assert [counted(count, "vote") for count in (0, 1, 2)] == ["0 votes", "1 vote", "2 votes"]
    assert [counted(count, "entry is", "entries are") for count in (0, 1, 2)] == [
        "0 entries are",
        "1 entry is",
        "2 entries are",
    ]


def test_aborted_reduce_names_step_attempt_and_suspects() -> None:
    error = ReduceAborted(7, 1, [PeerId("a")], "peer a went away")
    assert (error.step, error.attempt, error.suspects) == (7, 1, ("a",))
    assert "outer step 7, attempt 1" in error.what


@pytest.mark.parametrize(
    ("code", "said", "likely"),
    [
        (
            -9,
            "was killed (SIGKILL); the kernel does this when memory runs out",
            "ran out of memory",
        ),
        (-11, "was ended by SIGSEGV", ""),
        (-200, "ended with exit status -200", ""),
        (1, "ended with exit status 1", ""),
    ],
)
def test_exit_of_a_trainer_is_described_in_words(code: int, said: str, likely: str) -> None:
    error = TrainerExited(code, "")
    assert error.what == f"a trainer process {said}"
    assert likely in error.likely
    assert bool(error.likely) == bool(error.do) == bool(likely)


def test_error_for_a_dead_trainer_shows_the_end_of_its_output() -> None:
    error = TrainerExited(-9, "\n".join(f"line {n}" for n in range(50)))
    assert error.returncode == -9
    assert error.evidence[-1] == "line 49"
    assert len(error.evidence) == 12


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", '"HTTP/1.1 400 Bad Request"'),
        (b"\x00\xffSSH-2.0\x1b[2J", '"··SSH-2.0·[2J"'),
        (b"", '""'),
        (b"x" * 99, f'"{"x" * 60}"'),
    ],
)
def test_bytes_of_a_foreign_program_are_shown_as_text(data: bytes, shown: str) -> None:
    assert readable(data) == shown


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (OSError(111, "Connection refused"), "Connection refused"),
        (TimeoutError("timed out"), "timed out"),
        (ssl.SSLError(1, "[SSL: BAD] wrong version (_ssl.c:1006)"), "wrong version"),
        (ValueError("a", ("b", 3, b"c\n")), 'a; b; "c"'),
        (KeyError(), "KeyError"),
        (ValueError("y" * 300), "y" * 200),
    ],
)
def test_reason_of_a_foreign_error_has_no_python_details(exc: Exception, reason: str) -> None:
    assert reason_of(exc) == reason
