"""The file that proves a text is bounded, canonical, and refused if its parts do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import RunId
from p2ptrain.proofs.hidden_states import PROOF_BYTES, Match
from p2ptrain.proofs.text_proof import Agreement, TextProof

ONE = bytes(range(256)) + b"xy"
PROOF = TextProof(RunId("a" * 64), b"certificate", tuple(range(70)), 40, (ONE, ONE, ONE))
GOOD, BAD = Match(1, 0.3), Match(90, 30.0)


def test_proof_survives_its_encoding() -> None:
    assert TextProof.from_bytes(PROOF.to_bytes()) == PROOF


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": "a" * 63},
        {"prompt": 0},
        {"prompt": 70},
        {"tokens": ()},
        {"tokens": (*range(69), -1)},
        {"tokens": (*range(69), 2**24 + 1)},
        {"tokens": (*range(69), True)},
        {"tokens": tuple(range(31)), "prompt": 3, "proofs": ()},
        {"proofs": (ONE, ONE)},
        {"proofs": (ONE, ONE, ONE[1:])},
        {"certificate": bytes(2**21 + 1)},
    ],
)
def test_parts_that_do_not_belong_together_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        replace(PROOF, **wrong)


def encoded(**changes: object) -> bytes:
    parts = {"version": 1, "run": PROOF.run, "certificate": b"", "tokens": list(PROOF.tokens)}
    return pack({**parts, "prompt": 40, "proofs": 3 * ONE, **changes})


def test_foreign_bytes_are_refused() -> None:
    assert TextProof.from_bytes(encoded()) == replace(PROOF, certificate=b"")
    for data in (
        b"",
        encoded()[:-1],
        encoded(version=2),
        encoded(more=1),
        encoded(tokens=["a"] * 70),
        encoded(proofs=3 * ONE + b"z"),
        encoded(prompt=True),
    ):
        with pytest.raises(RemoteProtocolError):
            TextProof.from_bytes(data)


def test_first_chunk_that_does_not_fit_says_where_texts_differ() -> None:
    assert len(ONE) == PROOF_BYTES
    whole = Agreement(70, (GOOD, GOOD, Match(0, 0.9)))
    assert (whole.fits, whole.agreed, whole.worst) == (True, 70, Match(1, 0.9))
    for matches, agreed in (
        ((BAD, GOOD, GOOD), 0),
        ((GOOD, BAD, BAD), 32),
        ((GOOD, GOOD, BAD), 64),
    ):
        found = Agreement(70, matches)
        assert (found.fits, found.agreed) == (False, agreed)
