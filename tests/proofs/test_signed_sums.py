"""A signed sum names its peer, its reduce and its bytes, and two that differ are evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest
from p2ptrain.proofs.signed_sums import STATEMENT_BYTES_MAX, SumStatement, read_statement

SENDER, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
ROSTER = Digest("ab" * 32)
STATED = SumStatement.of(ROSTER, SENDER.peer, 256, 512, b"sum")


def test_signed_statement_is_read() -> None:
    data = STATED.signed(SENDER.sign)
    assert read_statement(data, verify) == STATED
    assert len(data) <= STATEMENT_BYTES_MAX
    assert STATED.is_about(b"sum")
    assert not STATED.is_about(b"other sum")


def test_largest_statement_is_read() -> None:
    largest = replace(STATED, start=2**48 - 1, stop=2**48)
    assert read_statement(largest.signed(SENDER.sign), verify) == largest


def test_statement_that_its_peer_did_not_sign_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="signature"):
        read_statement(STATED.signed(OTHER.sign), verify)


@pytest.mark.parametrize(
    "change",
    [
        {"start": 512},
        {"start": -1},
        {"stop": 2**48 + 1},
        {"digest": "ab"},
        {"roster": "AB" * 32},
        {"peer": "nobody"},
        {"start": "0"},
        {"signature": "text"},
        {"more": 1},
    ],
    ids=str,
)
def test_malformed_statement_is_refused(change: dict[str, Any]) -> None:
    plain = unpack(STATED.signed(SENDER.sign), bytes_max=STATEMENT_BYTES_MAX)
    assert isinstance(plain, dict)
    with pytest.raises(RemoteProtocolError):
        read_statement(pack({**plain, **change}), verify)


def test_statement_that_is_too_long_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        read_statement(bytes(STATEMENT_BYTES_MAX + 1), verify)


@pytest.mark.parametrize(
    ("other", "is_evidence"),
    [
        (STATED, False),
        (SumStatement.of(ROSTER, SENDER.peer, 256, 512, b"other sum"), True),
        (SumStatement.of(ROSTER, SENDER.peer, 256, 768, b"longer sum"), True),
        (SumStatement.of(ROSTER, SENDER.peer, 512, 768, b"next sum"), False),
        (SumStatement.of(ROSTER, OTHER.peer, 256, 512, b"other sum"), False),
        (SumStatement.of(Digest("cd" * 32), SENDER.peer, 256, 512, b"other sum"), False),
    ],
)
def test_two_statements_about_the_same_elements_are_evidence(
    other: SumStatement, is_evidence: bool
) -> None:
    assert STATED.contradicts(other) == other.contradicts(STATED) == is_evidence
