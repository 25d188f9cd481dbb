"""Only a valid certificate proves a peer id."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.dataplane import Credentials, peer_of_certificate
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity

from .conftest import certificate_in_the_name_of, named

# A changed serial number can be negative. The library then warns before the signature is refused.
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")

ANNA = Identity.from_seed(b"a" * 32)
BORIS = Identity.from_seed(b"b" * 32)
CREDENTIALS = Credentials.create(ANNA)
OID = ObjectIdentifier("1.3.6.1.4.1.53594.1.1")


def extension_of(credentials: Credentials) -> bytes:
    certificate = x509.load_der_x509_certificate(credentials.certificate_der)
    value = certificate.extensions.get_extension_for_oid(OID).value
    assert isinstance(value, x509.UnrecognizedExtension)
    return value.value


Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def forged(extension: bytes | None, key: Key | None = None, signer: Key | None = None) -> bytes:
    """Return a certificate in Anna's name with this peer extension, for `key` (default: a new key),
    signed by `signer` (default: `key`)."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ANNA.peer)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    if extension is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(OID, extension), critical=False)
    signer = signer or key
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(signer, algorithm).public_bytes(serialization.Encoding.DER)


def test_certificate_names_the_peer_that_made_it() -> None:
    assert peer_of_certificate(CREDENTIALS.certificate_der) == ANNA.peer
    assert CREDENTIALS.peer == ANNA.peer


def test_every_call_makes_a_new_key_for_the_same_peer() -> None:
    again = Credentials.create(ANNA)
    assert again.certificate_der != CREDENTIALS.certificate_der
    assert peer_of_certificate(again.certificate_der) == ANNA.peer


def test_repr_does_not_contain_the_secret_key() -> None:
    assert "PRIVATE" not in repr(CREDENTIALS)


def test_extension_copied_onto_another_key_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="not signed by the peer"):
        peer_of_certificate(forged(extension_of(CREDENTIALS)))


def test_extension_that_names_another_peer_is_refused() -> None:
    original = extension_of(CREDENTIALS)
    others = extension_of(Credentials.create(BORIS))
    with pytest.raises(RemoteProtocolError, match="not signed by the peer"):
        peer_of_certificate(forged(others[:40] + original[40:]))


def test_certificate_not_signed_by_its_own_key_is_refused() -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(RemoteProtocolError, match="not signed by its own key"):
        peer_of_certificate(forged(extension_of(CREDENTIALS), signer=other))


def test_certificate_without_the_extension_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="does not name a peer"):
        peer_of_certificate(forged(None))


def test_certificate_with_a_key_of_another_type_is_refused() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    with pytest.raises(RemoteProtocolError, match="P-256"):
        peer_of_certificate(forged(extension_of(CREDENTIALS), key=key))


@pytest.mark.parametrize(
    ("subject", "issuer"),
    [
        (named(ANNA.peer), named(ANNA.peer)),
        (named(BORIS.peer), named(ANNA.peer)),
        (named(ANNA.peer), named(BORIS.peer)),
        (x509.Name([]), x509.Name([])),
        (x509.Name([*named(BORIS.peer), *named(ANNA.peer)]), named(BORIS.peer)),
    ],
    ids=["name of another peer", "wrong subject", "wrong issuer", "no name", "two names"],
)
def test_certificate_with_a_wrong_name_is_refused(subject: x509.Name, issuer: x509.Name) -> None:
    with pytest.raises(RemoteProtocolError):
        peer_of_certificate(certificate_in_the_name_of(BORIS, subject, issuer))


@pytest.mark.parametrize(
    "more",
    [
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectKeyIdentifier(b"anna's"),
        x509.AuthorityKeyIdentifier(b"anna's", None, None),
        x509.NameConstraints([x509.DNSName("example.org")], None),
    ],
    ids=lambda extension: type(extension).__name__,
)
def test_certificate_with_an_extra_extension_is_refused(more: x509.ExtensionType) -> None:
    name = named(BORIS.peer)
    assert peer_of_certificate(certificate_in_the_name_of(BORIS, name, name)) == BORIS.peer
    with pytest.raises(RemoteProtocolError, match="unexpected extension"):
        peer_of_certificate(certificate_in_the_name_of(BORIS, name, name, more))


@pytest.mark.parametrize(
    "extension",
    [b"", b"\x30\x00", b"\x00" * 106, bytes.fromhex("3068") + b"\xff" * 104, b"\x30" * 5000],
    ids=["empty", "empty sequence", "zeros", "garbage", "huge"],
)
def test_malformed_extension_is_refused(extension: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        peer_of_certificate(forged(extension))


@given(st.binary(max_size=3000))
@settings(max_examples=100, deadline=None)
def test_arbitrary_bytes_raise_only_remote_protocol_error(der: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        peer_of_certificate(der)


def test_signature_with_unused_bits_is_refused() -> None:
    ends_with_zero_bit = next(
        der
        for der in (Credentials.create(ANNA).certificate_der for _ in range(200))
        if der[-1] % 2 == 0
    )
    signature = x509.load_der_x509_certificate(ends_with_zero_bit).signature
    other = bytearray(ends_with_zero_bit)
    other[-len(signature) - 1] = 1
    with pytest.raises(RemoteProtocolError, match="unused bits"):
        peer_of_certificate(bytes(other))


@given(st.integers(0, len(CREDENTIALS.certificate_der) - 1), st.integers(1, 255))
@settings(max_examples=150, deadline=None)
def test_certificate_with_any_changed_byte_is_refused(position: int, change: int) -> None:
    der = bytearray(CREDENTIALS.certificate_der)
    der[position] ^= change
    with pytest.raises(RemoteProtocolError):
        peer_of_certificate(bytes(der))
