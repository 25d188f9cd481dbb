"""A denial counts only with the organiser's signature, for its own run, and until its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import ConfigError, RemoteProtocolError, RunMismatch
from p2ptrain.identity import Identity
from p2ptrain.ids import RunId
from p2ptrain.run import Denial, Run, Signed, SignedDenial, load_denials, save_denials
from p2ptrain.run.denial import DENIAL_BYTES_MAX, KIND
from p2ptrain.run.reading import plain


@pytest.fixture
def denial(run: Run, stranger: Identity) -> Denial:
    return Denial(run.id, stranger.peer, 1_790_000_000, 1_790_086_400, "θ is full")


def test_denial_survives_encoding(run: Run, organiser: Identity, denial: Denial) -> None:
    signed = SignedDenial.publish(organiser, denial)
    assert SignedDenial.from_bytes(signed.to_bytes(), run) == signed
    assert len(signed.to_bytes()) < DENIAL_BYTES_MAX
    assert denial.end == "2026-09-22 14:13 UTC"
    assert (denial.holds(1_790_086_399.9), denial.holds(1_790_086_400)) == (True, False)


def test_longest_denial_fits(run: Run, organiser: Identity, denial: Denial) -> None:
    longest = replace(denial, reason="\U0001f600" * 200)
    assert len(SignedDenial.publish(organiser, longest).to_bytes()) <= DENIAL_BYTES_MAX


def test_only_the_organiser_can_deny(run: Run, stranger: Identity, denial: Denial) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        SignedDenial.from_bytes(SignedDenial.publish(stranger, denial).to_bytes(), run)
    assert caught.value.code == "DENIAL-SIGNER"


def test_denial_of_another_run_is_a_mismatch(run: Run, organiser: Identity, denial: Denial) -> None:
    other = SignedDenial.publish(organiser, replace(denial, run=RunId("b" * 64)))
    with pytest.raises(RunMismatch):
        SignedDenial.from_bytes(other.to_bytes(), run)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "x"},
        {"peer": "nobody"},
        {"created_unix": -1},
        {"until_unix": 1_790_000_000},
        {"until_unix": 2**41},
        {"reason": "a\nb"},
        {"reason": "x" * 201},
        {"x": 1},
    ],
)
def test_malformed_denial_is_refused(
    changes: dict[str, object], run: Run, organiser: Identity, denial: Denial
) -> None:
    wrong = Signed.by(organiser, KIND, pack(plain(denial) | changes))
    with pytest.raises(RemoteProtocolError):
        SignedDenial.from_bytes(wrong.to_bytes(), run)


def test_denials_survive_storage_and_the_newest_are_kept(
    run: Run, organiser: Identity, denial: Denial, tmp_path: Path
) -> None:
    path = tmp_path / "denials.signed"
    assert load_denials(path, run) == ()
    made = [replace(denial, created_unix=denial.created_unix + second) for second in range(5)]
    signed = [SignedDenial.publish(organiser, each) for each in made]
    save_denials(path, reversed(signed), most=3)
    assert load_denials(path, run) == tuple(signed[2:])


@pytest.mark.parametrize("content", [b"noise", pack({}), pack([1]), pack([b"noise"])])
def test_damaged_denials_are_an_error_that_names_the_file(
    content: bytes, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "denials.signed"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"denials\.signed") as caught:
        load_denials(path, run)
    assert caught.value.code == "RUN-FILE"
