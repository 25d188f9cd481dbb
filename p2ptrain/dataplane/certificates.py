"""TLS certificates that carry a peer id, so that bulk data uses the same identities as libp2p.

The certificates follow libp2p: each process generates a new certificate key at its start. An
extension holds the peer's public key and the peer's signature over the new key. So anyone who knows
the peer id can check a certificate, no matter who sent it. The peer's long-lived secret key never
enters the TLS library.

This module does not use sockets; `tls` does.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from functools import lru_cache

import base58
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id, public_key_of, verify
from p2ptrain.ids import PeerId

CERTIFICATE_BYTES_MAX = 2048
"""Maximum length of a certificate. Our certificates have about 500 bytes, and no valid one is as
long as this."""

_EXTENSION = ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNED_PREFIX = b"libp2p-tls-handshake:"
_KEY_PREFIX = bytes.fromhex("08011220")
"""The bytes before the key in a protobuf message PublicKey {1: Ed25519, 2: 32 bytes}."""

_SEQUENCE = bytes.fromhex("3068")
_KEY_FIELD = bytes.fromhex("0424")
_SIGNATURE_FIELD = bytes.fromhex("0440")
_SIGNED_KEY_BYTES = 2 + 2 + 36 + 2 + 64
"""Length of a key with its signature: DER SEQUENCE {OCTET STRING of 36 bytes, OCTET STRING of 64}.
All keys are Ed25519."""

_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""All exceptions that the parser raises for malformed bytes. A fuzz test checks this list."""

# The dates have no effect: peers' clocks are not trusted, and the key lives as long as the process.
_VALID_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_VALID_TO = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Credentials:
    """This process's certificate and private key for the data plane. `repr` hides the key."""

    peer: PeerId
    certificate_der: bytes
    pem: bytes = field(repr=False)
    """Private key and certificate, in the form that OpenSSL loads."""

    @classmethod
    def create(cls, identity: Identity) -> Credentials:
        """Create new credentials, signed by `identity`. Call this once at start."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name_of(identity.peer)
        signed_key = _signed_key(identity, _spki(key.public_key()))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_VALID_FROM)
            .not_valid_after(_VALID_TO)
            .add_extension(x509.UnrecognizedExtension(_EXTENSION, signed_key), critical=False)
            .sign(key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pem = secret + certificate.public_bytes(serialization.Encoding.PEM)
        return cls(identity.peer, certificate.public_bytes(serialization.Encoding.DER), pem)


@lru_cache(maxsize=1024)
def peer_of_certificate(der: bytes) -> PeerId:
    """Verify every signature in the certificate `der`, and return the peer that created it.

    Raises:
        RemoteProtocolError: it is not a peer's certificate, or one of its signatures is invalid.
    """
    if len(der) > CERTIFICATE_BYTES_MAX:
        raise RemoteProtocolError(f"a certificate of {len(der)} bytes is too long")
    try:
        certificate = x509.load_der_x509_certificate(der)
        certificate.verify_directly_issued_by(certificate)
        _expect_whole_signature(der, certificate)
        extension = certificate.extensions.get_extension_for_oid(_EXTENSION).value
        spki = _spki_of(certificate)
    except InvalidSignature as exc:
        raise RemoteProtocolError("a certificate is not signed by its own key") from exc
    except x509.ExtensionNotFound as exc:
        raise RemoteProtocolError("a certificate does not name a peer") from exc
    except _UNREADABLE as exc:
        raise RemoteProtocolError(f"a certificate cannot be read: {exc}") from exc
    assert isinstance(extension, x509.UnrecognizedExtension)
    peer, signature = _parse_signed_key(extension.value)
    if not verify(peer, _SIGNED_PREFIX + spki, signature):
        raise RemoteProtocolError("a certificate is not signed by the peer it names", peer=peer)
    _expect_no_more_than_ours(certificate, peer)
    return peer


def _expect_no_more_than_ours(certificate: x509.Certificate, peer: PeerId) -> None:
    """Refuse a certificate whose subject is not its peer's id, or that has additional extensions.
    (`verify_directly_issued_by` has already checked that the issuer equals the subject.)

    OpenSSL looks for the issuer of a certificate among all trusted certificates, by name and by the
    key identifiers in some extensions, and tries only one that matches. So a trusted peer could
    make a certificate in another peer's name, and that other peer could no longer connect.
    """
    if certificate.subject != _name_of(peer):
        raise RemoteProtocolError("a certificate's subject is not its peer's id", peer=peer)
    if len(certificate.extensions) != 1:
        raise RemoteProtocolError("a certificate has an unexpected extension", peer=peer)


def _name_of(peer: PeerId) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer)])


def _expect_whole_signature(der: bytes, certificate: x509.Certificate) -> None:
    """Refuse a signature with unused bits, because one certificate would then have several
    encodings. The signature ends the certificate, and the byte before the signature is the number
    of unused bits. OpenSSL accepts any number if those bits are 0."""
    if der[-len(certificate.signature) - 1] != 0:
        raise ValueError("its signature has unused bits")


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _spki_of(certificate: x509.Certificate) -> bytes:
    """Return the public key if it is on P-256, as all our peers' keys are. Raises ValueError if
    not."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("its key is not on the curve P-256")
    return _spki(key)


def _signed_key(identity: Identity, spki: bytes) -> bytes:
    key = _KEY_PREFIX + public_key_of(identity.peer)
    signature = identity.sign(_SIGNED_PREFIX + spki)
    return _SEQUENCE + _KEY_FIELD + key + _SIGNATURE_FIELD + signature


def _parse_signed_key(value: bytes) -> tuple[PeerId, bytes]:
    key, signature = value[4:40], value[42:]
    framed = _SEQUENCE + _KEY_FIELD + key + _SIGNATURE_FIELD + signature
    if len(value) != _SIGNED_KEY_BYTES or value != framed:
        raise RemoteProtocolError("a certificate's peer extension is malformed")
    peer = PeerId(base58.b58encode(b"\x00\x24" + key).decode())
    if not is_peer_id(peer):
        raise RemoteProtocolError("a certificate names a peer whose key is not Ed25519")
    return peer, signature
