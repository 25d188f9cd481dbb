"""A signed document with an invalid signature cannot be constructed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.run.envelope import PAYLOAD_BYTES_MAX, Signed

ORGANISER = Identity.from_seed(b"o" * 32)
STRANGER = Identity.from_seed(b"s" * 32)


def altered(signed: Signed, **changes: object) -> bytes:
    value = unpack(signed.to_bytes(), bytes_max=1 << 20)
    assert isinstance(value, dict)
    return pack(value | changes)


@given(payload=st.binary(max_size=300), kind=st.sampled_from(["manifest", "join-request"]))
def test_document_survives_encoding(payload: bytes, kind: str) -> None:
    signed = Signed.by(ORGANISER, kind, payload)
    assert Signed.from_bytes(signed.to_bytes(), kind=kind) == signed
    assert (signed.kind, signed.payload, signed.signer) == (kind, payload, ORGANISER.peer)


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": b"other"},
        {"signer": STRANGER.peer},
        {"signature": b"\0" * 64},
        {"signature": b""},
        {"signature": STRANGER.sign(b"text")},
    ],
)
def test_altered_document_is_refused(changes: dict[str, object]) -> None:
    signed = Signed.by(ORGANISER, "manifest", b"text")
    with pytest.raises(RemoteProtocolError) as caught:
        Signed.from_bytes(altered(signed, **changes), kind="manifest")
    assert caught.value.code == "SIGNATURE"


@pytest.mark.parametrize(
    "changes",
    [
        {"signer": "nobody"},
        {"signer": 3},
        {"payload": "text"},
        {"kind": "Manifest!"},
        {"more": 1},
        {"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)},
    ],
)
def test_malformed_document_is_refused(changes: dict[str, object]) -> None:
    signed = Signed.by(ORGANISER, "manifest", b"text")
    with pytest.raises(RemoteProtocolError):
        Signed.from_bytes(altered(signed, **changes), kind="manifest")


def test_document_of_one_kind_is_not_accepted_as_another() -> None:
    allowlist = Signed.by(ORGANISER, "allowlist", b"text")
    with pytest.raises(RemoteProtocolError, match="expected a document of kind manifest"):
        Signed.from_bytes(allowlist.to_bytes(), kind="manifest")
    with pytest.raises(RemoteProtocolError) as caught:
        Signed.from_bytes(altered(allowlist, kind="manifest"), kind="manifest")
    assert caught.value.code == "SIGNATURE"


@given(cut=st.integers(min_value=0, max_value=200))
def test_truncated_document_is_refused(cut: int) -> None:
    data = Signed.by(ORGANISER, "manifest", b"text" * 10).to_bytes()
    with pytest.raises(RemoteProtocolError):
        Signed.from_bytes(data[: min(cut, len(data) - 1)], kind="manifest")


@given(junk=st.binary(max_size=300))
def test_junk_raises_only_protocol_errors(junk: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Signed.from_bytes(junk, kind="manifest")


def test_signer_that_is_not_a_valid_key_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        Signed("manifest", b"text", PeerId("12D3KooW"), b"\0" * 64)
