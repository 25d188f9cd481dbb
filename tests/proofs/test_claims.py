"""A claim has one encoding, is bounded, and matches what its peer signed, or proves a lie."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.canonical import INTEGER_MAX, NAME_CHARACTERS_MAX, canonical
from p2ptrain.ledger.messages.claim_statement import claims_contradict
from p2ptrain.proofs.claims import (
    CLAIM_BYTES_MAX,
    Claim,
    decode_claim,
    document_fault,
    encode_claim,
    signed_statement,
)
from p2ptrain.simulation.disk import signer, verify
from p2ptrain.testing.ledgers import digest, peers

ANN, BOB = peers("ann bob")
RUN = digest("a run")
CLAIM = Claim(ANN, RUN, 3, 7, digest("base"), 200, 2, digest("bytes"), digest("proof"))
SAID = signed_statement(CLAIM, signer(ANN))

DIGESTS = st.text("ab", max_size=3).map(digest)
NUMBERS = st.integers(1, INTEGER_MAX)
FIRST = st.sampled_from((ANN, BOB)), DIGESTS, NUMBERS, NUMBERS
CLAIMS = st.builds(Claim, *FIRST, st.none(), NUMBERS, NUMBERS, DIGESTS) | st.builds(
    Claim, *FIRST, DIGESTS, NUMBERS, NUMBERS, DIGESTS, st.none() | DIGESTS
)
"""A claim that did not begin at a certified θ has neither a base nor a proof."""


@settings(max_examples=50, deadline=None)
@given(CLAIMS, CLAIMS)
def test_claim_survives_encoding_and_equal_digests_mean_equality(one: Claim, other: Claim) -> None:
    assert decode_claim(encode_claim(one)) == one
    assert (
        (one.digest == other.digest) == (one == other) == (encode_claim(one) == encode_claim(other))
    )


def test_largest_claim_is_within_the_bound() -> None:
    name = PeerId("p" * NAME_CHARACTERS_MAX)
    most = INTEGER_MAX
    largest = replace(CLAIM, peer=name, step=most, serial=most, tokens=most, blocks=most)
    assert len(encode_claim(largest)) <= CLAIM_BYTES_MAX


PLAIN = CLAIM.plain()

HOSTILE = {
    "not JSON": b"\xff\x00",
    "too long": b" " * (CLAIM_BYTES_MAX + 1),
    "deep": b"[" * CLAIM_BYTES_MAX,
    "a list": canonical([PLAIN]),
    "a missing field": canonical({k: v for k, v in PLAIN.items() if k != "base"}),
    "another field": canonical({**PLAIN, "colour": "green"}),
    "spaces": json.dumps(PLAIN).encode(),
    "a field twice": encode_claim(CLAIM).replace(b'{"base"', b'{"step":9,"base"'),
    "a negative number": canonical({**PLAIN, "step": -1}),
    "a number that is too large": canonical({**PLAIN, "tokens": INTEGER_MAX + 1}),
    "a fraction": canonical({**PLAIN, "tokens": 2}).replace(b'"tokens":2', b'"tokens":2.5'),
    "a boolean": canonical({**PLAIN, "blocks": True}),
    "serial number 0": canonical({**PLAIN, "serial": 0}),
    "no tokens": canonical({**PLAIN, "tokens": 0}),
    "a proof without a base": canonical({**PLAIN, "base": None}),
    "no contribution": canonical({**PLAIN, "contribution": None}),
    "upper case": canonical({**PLAIN, "line": "A" * 64}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_claim(HOSTILE[name])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_claim(data)


def test_document_matches_the_statement_of_its_peer() -> None:
    assert document_fault(CLAIM, ANN, RUN, SAID, verify) == ""


def test_statement_for_another_document_is_a_lie() -> None:
    """Bob copies the digest of Ann's claim and signs it as his own, or lies about its numbers."""
    copied = replace(SAID, signature=signer(BOB)(CLAIM.message))
    more = replace(SAID, tokens=400)
    more = replace(more, signature=signer(ANN)(more.message(RUN, 0)))
    elsewhere = digest("a branch")
    moved = replace(SAID, signature=signer(ANN)(SAID.message(elsewhere, 0)))
    assert [
        document_fault(CLAIM, BOB, RUN, copied, verify),
        document_fault(CLAIM, ANN, RUN, more, verify),
        document_fault(CLAIM, ANN, elsewhere, moved, verify),
        document_fault(replace(CLAIM, tokens=201), ANN, RUN, SAID, verify),
    ] == [
        "it is a claim of ann",
        "its numbers are not those that the peer stated",
        "it is about a different run or branch",
        "it is a different document",
    ]


def test_unsigned_statement_says_nothing() -> None:
    with pytest.raises(RemoteProtocolError, match="not signed by bob"):
        document_fault(CLAIM, BOB, RUN, SAID, verify)


def test_two_claims_with_one_serial_number_contradict_each_other() -> None:
    sign = signer(ANN)
    others = {
        "the same": CLAIM,
        "other bytes": replace(CLAIM, contribution=digest("other")),
        "another step": replace(CLAIM, step=4),
        "a newer claim": replace(CLAIM, serial=8, contribution=digest("other")),
    }
    said = {
        name: claims_contradict(SAID, signed_statement(it, sign)) for name, it in others.items()
    }
    assert said == {
        "the same": False,
        "other bytes": True,
        "another step": True,
        "a newer claim": False,
    }


def test_old_claim_under_a_new_number_contradicts_the_first_statement() -> None:
    assert claims_contradict(SAID, replace(SAID, serial=8, step=4))
    assert claims_contradict(SAID, replace(SAID, tokens=100))
