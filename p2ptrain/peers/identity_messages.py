"""The messages that a process uses to find other processes with the same identity: questions,
proofs and notices.

Each start of a node has an *incarnation*, a number. The asker draws a nonce. A *challenge* is this
nonce, when it is forwarded to other processes with the same identity. A *proof* is the signature of
such a process over the nonce and its own incarnation. Only a holder of the key can make a proof,
and only after the nonce was drawn. So the proof shows that another process used the key after that
time, no matter which peer forwards the proof. A *mark* is a signature over an incarnation alone. It
proves that this identity took the incarnation at some time.

This module defines the encoding and its limits. It does not know when to ask, nor what a proof
means for the node.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId, RunId
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.peers.incarnations import INCARNATION_MAX, Mark

NONCE_BYTES = 16
SIGNATURE_BYTES = 64

PROOFS_MAX = 8
CHALLENGES_MAX = 8
"""Maximum number of proofs, and of challenges, in one message. By accident, two processes may share
an identity, but hardly ever three. The limit is higher because liars may add invalid entries.
Signing or checking eight entries takes less than a millisecond."""

QUESTION_BYTES_MAX = 2048
REPLY_BYTES_MAX = 2048
NOTICE_BYTES_MAX = 512
"""Maximum sizes of messages in bytes. A proof takes 110 bytes. Eight proofs, eight nonces and a
mark take 1,200 bytes."""

_DOMAIN = b"p2ptrain identity 1\n"


@dataclass(frozen=True, slots=True)
class IdentityProof:
    """A signature over `nonce` by the process that took `incarnation`, and that received the nonce
    from a member. `starting`: the process has not voted yet, and ends if another process with its
    identity is already running."""

    nonce: bytes
    incarnation: int
    starting: bool
    signature: bytes


@dataclass(frozen=True, slots=True)
class IdentityQuestion:
    """Asks a member whether another process has the asker's identity. `proofs` are the asker's
    answers to challenges that this member has forwarded."""

    nonce: bytes
    incarnation: int
    starting: bool
    proofs: tuple[IdentityProof, ...] = ()


@dataclass(frozen=True, slots=True)
class IdentityReply:
    """The answer of a member. `suspected`: the member has recently received messages of a different
    incarnation of the asker, and forwards the nonce. `challenges` and `proofs` come from other
    processes with the asker's identity. `mark` is the newest mark that the member knows."""

    suspected: bool
    challenges: tuple[bytes, ...] = ()
    proofs: tuple[IdentityProof, ...] = ()
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class IdentityNotice:
    """A member's gossip message to all members about `peer`. If `proof` is None, the notice
    announces the challenge `nonce`; otherwise it announces a proof that answers `nonce`."""

    peer: PeerId
    nonce: bytes
    proof: IdentityProof | None = None


def proof_message(run: RunId, nonce: bytes, incarnation: int, *, starting: bool) -> bytes:
    """Return the bytes that are signed in a proof or, if `nonce` is empty, in a mark."""
    return _DOMAIN + pack([run, nonce, incarnation, starting])


def make_proof(
    run: RunId, nonce: bytes, incarnation: int, sign: Sign, *, starting: bool
) -> IdentityProof:
    message = proof_message(run, nonce, incarnation, starting=starting)
    return IdentityProof(nonce, incarnation, starting, sign(message))


def is_genuine(run: RunId, peer: PeerId, proof: IdentityProof, verify: Verify) -> bool:
    """Return whether a process with the key of `peer` made this proof."""
    message = proof_message(run, proof.nonce, proof.incarnation, starting=proof.starting)
    return verify(peer, message, proof.signature)


def make_mark(run: RunId, incarnation: int, sign: Sign) -> Mark:
    return Mark(incarnation, sign(proof_message(run, b"", incarnation, starting=False)))


def is_genuine_mark(run: RunId, peer: PeerId, mark: Mark, verify: Verify) -> bool:
    """Return whether `peer` took the incarnation of this mark."""
    message = proof_message(run, b"", mark.incarnation, starting=False)
    return verify(peer, message, mark.signature)


def encode_question(question: IdentityQuestion) -> bytes:
    return pack(asdict(question) | {"proofs": list(map(astuple, question.proofs))})


def decode_question(data: bytes) -> IdentityQuestion:
    """Decode a question. Raises RemoteProtocolError if `encode_question` cannot have made it."""
    value = unpack(data, bytes_max=QUESTION_BYTES_MAX)
    wire = fields(value, nonce=bytes, incarnation=int, starting=bool, proofs=list)
    return IdentityQuestion(
        _nonce(wire["nonce"]),
        count(wire["incarnation"], INCARNATION_MAX, "a question about an identity"),
        wire["starting"] is True,
        _proofs(wire["proofs"]),
    )


def encode_reply(reply: IdentityReply) -> bytes:
    mark = None if reply.mark is None else astuple(reply.mark)
    return pack(asdict(reply) | {"proofs": list(map(astuple, reply.proofs)), "mark": mark})


def decode_reply(data: bytes) -> IdentityReply:
    """Decode a reply. Raises RemoteProtocolError if `encode_reply` cannot have made it."""
    value, maybe_list = unpack(data, bytes_max=REPLY_BYTES_MAX), (list, type(None))
    wire = fields(value, suspected=bool, challenges=list, proofs=list, mark=maybe_list)
    return IdentityReply(
        wire["suspected"] is True,
        tuple(_nonce(each) for each in _few(wire["challenges"], CHALLENGES_MAX)),
        _proofs(wire["proofs"]),
        _mark(wire["mark"]),
    )


def encode_notice(notice: IdentityNotice) -> bytes:
    proof = None if notice.proof is None else astuple(notice.proof)
    return pack({"peer": notice.peer, "nonce": notice.nonce, "proof": proof})


def decode_notice(data: bytes) -> IdentityNotice:
    """Decode a notice. Raises RemoteProtocolError if `encode_notice` cannot have made it."""
    wire = fields(
        unpack(data, bytes_max=NOTICE_BYTES_MAX), peer=str, nonce=bytes, proof=(list, type(None))
    )
    peer, nonce, plain = wire["peer"], _nonce(wire["nonce"]), wire["proof"]
    if not is_peer_id(peer):
        raise RemoteProtocolError("a notice names an invalid peer id")
    assert isinstance(peer, str)
    proof = None if plain is None else _proof(plain)
    if proof is not None and proof.nonce != nonce:
        raise RemoteProtocolError("a notice's proof is for a different nonce")
    return IdentityNotice(PeerId(peer), nonce, proof)


def _proofs(value: object) -> tuple[IdentityProof, ...]:
    return tuple(_proof(each) for each in _few(value, PROOFS_MAX))


def _proof(value: object) -> IdentityProof:
    if not isinstance(value, list) or len(value) != 4 or not isinstance(value[2], bool):
        raise RemoteProtocolError("a proof of identity must have four parts")
    nonce, incarnation, starting, signature = value
    number = count(incarnation, INCARNATION_MAX, "a proof of an identity")
    return IdentityProof(_nonce(nonce), number, starting, _signature(signature))


def _mark(value: object) -> Mark | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise RemoteProtocolError("a mark must have two parts")
    return Mark(count(value[0], INCARNATION_MAX, "a mark"), _signature(value[1]))


def _few(value: object, most: int) -> list[object]:
    if not isinstance(value, list) or len(value) > most:
        raise RemoteProtocolError(f"a message about an identity lists more than {most} items")
    return value


def _nonce(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != NONCE_BYTES:
        raise RemoteProtocolError(f"a nonce must have {NONCE_BYTES} bytes")
    return value


def _signature(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != SIGNATURE_BYTES:
        raise RemoteProtocolError(f"a signature must have {SIGNATURE_BYTES} bytes")
    return value
