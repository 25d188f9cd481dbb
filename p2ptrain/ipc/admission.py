"""How ranks that a node did not start prove that they may serve it, and it that it is their node.

Use it where ranks come from other machines over a private network.  Both ends read the same 32
secret bytes from a file that only its owner can read; they never travel.  Each side sends 32 fresh
random bytes, and proves the secret with an HMAC over both and over what the rank says it is:

    node → rank   magic, nonce of the node
    rank → node   nonce of the rank, claim (rank, ranks, purpose), HMAC("rank", …)
    node → rank   HMAC("node", …)

The node speaks first but proves itself last, so nobody without the secret learns more than that a
node is there.  The two labels keep one side's proof from being played back as the other's.  What
follows on the connection is neither encrypted nor signed: whoever can alter packets between these
machines could alter the gradients that the ranks exchange as well, so it must be a private network.

It knows sockets and no trainer; the messages that follow are in `slices`.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from p2ptrain import private_file
from p2ptrain.errors import ConfigError, RemoteProtocolError

SECRET_BYTES = 32
GREETING_LIMIT_S = 10.0
"""For all three messages: whoever dawdles holds one of the few places for unknown callers."""

_MAGIC = b"p2prank\x01"
_NONCE_BYTES = 32
_MAC_BYTES = 32
_CLAIM = struct.Struct(">HHB")


class Purpose(IntEnum):
    """What a connection is for."""

    SLICES = 1
    """Of θ, weights and data blocks; each rank has one, and is gone when it closes."""
    FRAMES = 2
    """Orders and answers; rank 0 alone."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which rank of how many calls, and what for."""

    rank: int
    ranks: int
    purpose: Purpose

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks < 2**16:
            raise ValueError(f"rank {self.rank} is not one of {self.ranks}")
        if self.purpose is Purpose.FRAMES and self.rank != 0:
            raise ValueError("only rank 0 exchanges frames")


def load_or_create(path: Path) -> bytes:
    """The secret at `path`; where there is none, a new one, in a file that only we can read.

    Raises ConfigError, OSError.
    """
    private_file.write_new(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode())
    return load(path)


def load(path: Path) -> bytes:
    """The secret that was written to `path`, as hexadecimal text.

    Raises:
        ConfigError: it is not there, others can read it, or it is not such a secret.
    """
    try:
        text = private_file.read(
            path, 4 * SECRET_BYTES, what="the ranks' secret", code="RANKS-SECRET"
        )
    except OSError as exc:
        raise ConfigError(
            f"the ranks' secret {path} cannot be read: {exc.strerror}",
            code="RANKS-SECRET",
            do="copy the file that the node made, with its mode: scp -p",
        ) from exc
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"{path} does not hold {SECRET_BYTES} bytes as hexadecimal text",
            code="RANKS-SECRET",
            likely="the file is damaged, or another file than the one that the node made",
            do="copy it again; or remove it at the node, which then makes a new one",
        )
    return secret


def challenge(sock: socket.socket, secret: bytes, limit_s: float = GREETING_LIMIT_S) -> Claim:
    """The node's side: who has called.  The socket blocks without limit afterwards.

    Raises:
        RemoteProtocolError: whoever called does not know the secret, or says what cannot be.
        OSError: the connection broke, or `limit_s` is over.
    """
    ends_s = time.monotonic() + limit_s
    ours = secrets.token_bytes(_NONCE_BYTES)
    sock.settimeout(limit_s)
    sock.sendall(_MAGIC + ours)
    answer = receive_exactly(sock, _NONCE_BYTES + _CLAIM.size + _MAC_BYTES, ends_s)
    nonces, told = ours + answer[:_NONCE_BYTES], answer[_NONCE_BYTES:-_MAC_BYTES]
    if not hmac.compare_digest(_mac(secret, b"rank", nonces, told), answer[-_MAC_BYTES:]):
        raise RemoteProtocolError("it does not know the ranks' secret")
    rank, ranks, purpose = _CLAIM.unpack(told)
    try:
        claim = Claim(rank, ranks, Purpose(purpose))
    except ValueError as exc:
        raise RemoteProtocolError(f"it claims what cannot be: {exc}") from exc
    sock.sendall(_mac(secret, b"node", nonces, told))
    sock.settimeout(None)
    return claim


def prove(
    sock: socket.socket, secret: bytes, claim: Claim, limit_s: float = GREETING_LIMIT_S
) -> None:
    """The rank's side.  The socket blocks without limit afterwards.

    Raises:
        RemoteProtocolError: what listens there is not the node with our secret.
        OSError: the connection broke, or `limit_s` is over.  A node that got the wrong proof
            closes it.
    """
    ends_s = time.monotonic() + limit_s
    sock.settimeout(limit_s)
    greeting = receive_exactly(sock, len(_MAGIC) + _NONCE_BYTES, ends_s)
    if not greeting.startswith(_MAGIC):
        raise RemoteProtocolError("what listens there is not a node's socket for ranks")
    ours = secrets.token_bytes(_NONCE_BYTES)
    nonces = greeting[len(_MAGIC) :] + ours
    told = _CLAIM.pack(claim.rank, claim.ranks, claim.purpose)
    sock.sendall(ours + told + _mac(secret, b"rank", nonces, told))
    answer = receive_exactly(sock, _MAC_BYTES, ends_s)
    if not hmac.compare_digest(_mac(secret, b"node", nonces, told), answer):
        raise RemoteProtocolError("what listens there does not know the ranks' secret")
    sock.settimeout(None)


def receive_exactly(sock: socket.socket, count: int, ends_s: float) -> bytes:
    """So many bytes, by the monotonic time `ends_s`.  Raises OSError."""
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.001, ends_s - time.monotonic()))
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        data += piece
    return data


def _mac(secret: bytes, side: bytes, nonces: bytes, told: bytes) -> bytes:
    return hmac.digest(secret, b"p2ptrain ranks 1 " + side + nonces + told, "sha256")
