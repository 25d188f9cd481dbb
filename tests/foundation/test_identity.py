"""A peer is identified by its key, from which its id and its name are computed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import base58
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id, load_or_create, public_key_of, verify
from p2ptrain.ids import PeerId, is_digest
from p2ptrain.names import label, named, peer_name

ALICE = Identity.from_seed(b"\x01" * 32)
BOB = Identity.from_seed(b"\x02" * 32)


def test_peer_id_is_the_one_that_libp2p_gives_this_key() -> None:
    # Made with libp2p 0.8.1: ID.from_pubkey(Ed25519PrivateKey.from_bytes(seed).get_public_key()).
    assert ALICE.peer == "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


def test_signature_is_valid_only_for_its_signer_and_message() -> None:
    signature = ALICE.sign(b"vote")
    assert verify(ALICE.peer, b"vote", signature)
    assert not verify(BOB.peer, b"vote", signature)
    assert not verify(ALICE.peer, b"veto", signature)


@pytest.mark.parametrize("signature", [b"", b"x" * 63, b"x" * 64, b"x" * 65])
def test_malformed_signature_does_not_verify_and_raises_nothing(signature: bytes) -> None:
    assert verify(ALICE.peer, b"vote", signature) is False


@pytest.mark.parametrize(
    "text", ["", "12D3", "0OIl", "Q" * 52, "é" * 52, ALICE.peer + "1", ALICE.peer[:-1], 7, None]
)
def test_malformed_peer_id_is_refused(text: object) -> None:
    assert not is_peer_id(text)
    if isinstance(text, str):
        assert verify(PeerId(text), b"vote", b"x" * 64) is False
        with pytest.raises(RemoteProtocolError, match="not the id of an Ed25519 key"):
            public_key_of(PeerId(text))


def test_new_identity_is_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    first = load_or_create(tmp_path / "identity.key")
    assert load_or_create(tmp_path / "identity.key") == first
    assert stat.S_IMODE(os.stat(tmp_path / "identity.key").st_mode) == 0o600


@pytest.mark.parametrize("length", [0, 31, 33, 4096])
def test_file_of_a_different_length_is_not_accepted_as_a_key(tmp_path: Path, length: int) -> None:
    path = tmp_path / "identity.key"
    load_or_create(path)
    path.write_bytes(bytes(length))
    with pytest.raises(ConfigError, match="does not have 32 bytes") as caught:
        load_or_create(path)
    assert caught.value.code == "ID-BROKEN"


def test_secret_is_not_in_the_repr() -> None:
    assert "seed" not in repr(ALICE)


def test_peer_is_shown_by_its_name_and_the_end_of_its_id() -> None:
    assert peer_name(ALICE.peer) == "sunny-koala"
    assert label(ALICE.peer) == "sunny-koala (…SUKPH5)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0" * 64, True),
        ("af" * 32, True),
        ("AF" * 32, False),
        ("0" * 63, False),
        (b"0" * 64, False),
    ],
)
def test_digest_is_64_lower_case_hexadecimal_characters(text: object, expected: bool) -> None:
    assert is_digest(text) is expected


def test_peer_ids_in_a_text_are_replaced_by_names() -> None:
    ann, bob = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2))
    text = f"{ann} waits for {bob}, not for {bob}x or 12D3Koo"
    assert named(text) == f"{label(ann)} waits for {label(bob)}, not for {bob}x or 12D3Koo"


FIELD = 2**255 - 19
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
NOT_CANONICAL = [
    (y | sign << 255).to_bytes(32, "little").hex() for y in range(FIELD, 2**255) for sign in (0, 1)
] + [
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


def id_of_key(key: str) -> PeerId:
    raw = bytes.fromhex("002408011220" + key)
    return PeerId(base58.b58encode(raw).decode())


@pytest.mark.parametrize("key", SMALL_ORDER + NOT_CANONICAL)
def test_keys_that_anybody_can_sign_for_are_not_valid_peer_ids(key: str) -> None:
    peer = id_of_key(key)
    assert not is_peer_id(peer)
    with pytest.raises(RemoteProtocolError, match="small order"):
        public_key_of(peer)


@pytest.mark.parametrize("message", [b"a vote", b"an allowlist"])
def test_signature_that_is_valid_for_every_message_is_refused(message: bytes) -> None:
    """If the public key is the neutral element of the curve, the signature that consists of the
    neutral element and s = 0 is valid for any message."""
    neutral = bytes.fromhex(SMALL_ORDER[0])
    forged = neutral + bytes(32)
    Ed25519PublicKey.from_public_bytes(neutral).verify(forged, message)  # the library accepts it
    assert not verify(id_of_key(SMALL_ORDER[0]), message, forged)
