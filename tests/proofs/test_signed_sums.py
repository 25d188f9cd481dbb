"""A signed sum names its peer, its reduce and its segments, and two that differ are evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest
from p2ptrain.proofs.signed_sums import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SumSigner,
    SumsRequest,
    SumStatement,
    decode_request,
    decode_runs,
    encode_runs,
    verified,
)
from p2ptrain.ring import SignedRun

SENDER, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
ROSTER, LEAVES = Digest("ab" * 32), bytes(range(64))
SIGNER = SumSigner(ROSTER, SENDER.peer, SENDER.sign, verify)
RUN = SignedRun(SENDER.peer, 256, 512, LEAVES, SIGNER.sign(256, 512, LEAVES))
STATED = SumStatement(ROSTER, SENDER.peer, 256, 512, LEAVES)


def test_signed_run_is_read_and_verified() -> None:
    assert decode_runs(encode_runs([RUN, RUN])) == (RUN, RUN)
    assert verified(RUN, ROSTER, verify) == STATED
    assert (STATED.segments, STATED.leaf(1)) == (2, LEAVES[32:])
    assert SIGNER.is_signed(SENDER.peer, 256, 512, LEAVES, RUN.signature)


def test_largest_request_is_read() -> None:
    largest = SumsRequest(ROSTER, 2**48 - 1, 2**48)
    assert decode_request(largest.encode()) == largest
    assert len(largest.encode()) <= REQUEST_BYTES_MAX


def test_only_as_many_runs_are_shown_as_fit() -> None:
    long = replace(RUN, leaves=bytes(REPLY_BYTES_MAX // 3))
    shown = encode_runs([long] * 4)
    assert decode_runs(shown) == (long, long)
    assert len(shown) <= REPLY_BYTES_MAX


@pytest.mark.parametrize(
    "change",
    [
        {"start": 512},
        {"stop": 2**48 + 1},
        {"leaves": LEAVES[:32]},
        {"leaves": LEAVES[:40]},
        {"leaves": b""},
        {"peer": OTHER.peer},
        {"peer": "nobody"},
        {"signature": bytes(64)},
    ],
    ids=str,
)
def test_run_that_its_peer_did_not_sign_is_refused(change: dict[str, Any]) -> None:
    run = replace(RUN, **change)
    with pytest.raises(RemoteProtocolError):
        verified(run, ROSTER, verify)
    where = (run.peer, run.start, run.stop, run.leaves)
    assert not SIGNER.is_signed(*where, run.signature)
    with pytest.raises(RemoteProtocolError):
        verified(RUN, Digest("cd" * 32), verify)


@pytest.mark.parametrize(
    "change",
    [{"start": "0"}, {"signature": "text"}, {"signature": b"short"}, {"leaves": 1}, {"more": 1}],
    ids=str,
)
def test_malformed_run_is_refused(change: dict[str, Any]) -> None:
    plain = unpack(encode_runs([RUN]), bytes_max=REPLY_BYTES_MAX)
    assert isinstance(plain, dict)
    with pytest.raises(RemoteProtocolError):
        decode_runs(pack({"runs": [{**plain["runs"][0], **change}]}))


@pytest.mark.parametrize("change", [{"start": 512}, {"roster": "AB" * 32}, {"stop": -1}, {"a": 1}])
def test_malformed_request_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(pack({"roster": ROSTER, "start": 256, "stop": 512} | change))


@pytest.mark.parametrize(
    ("change", "is_evidence"),
    [
        ({}, False),
        ({"leaves": bytes(64)}, True),
        ({"stop": 768}, True),
        ({"start": 512, "stop": 768}, False),
        ({"peer": OTHER.peer, "leaves": bytes(64)}, False),
        ({"roster": Digest("cd" * 32), "leaves": bytes(64)}, False),
    ],
)
def test_two_statements_about_the_same_elements_are_evidence(
    change: dict[str, Any], is_evidence: bool
) -> None:
    other = replace(STATED, **change)
    assert STATED.contradicts(other) == other.contradicts(STATED) == is_evidence
