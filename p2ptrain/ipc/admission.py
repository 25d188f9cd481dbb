"""The handshake between a node and a rank (one process of its trainer) that the node did not start.

Use it for ranks that torchrun starts, on this machine or on others in a private network. Both ends
read the same 32 secret bytes from a file that only its owner can read; the secret is never sent.
Each side sends 32 random bytes (a nonce), and proves that it knows the secret with an HMAC over
both nonces and the rank's claim (who the rank says it is):

    node → rank   magic, nonce of the node
    rank → node   nonce of the rank, claim (rank, ranks, purpose), HMAC("rank", …)
    node → rank   HMAC("node", …)

The node speaks first but proves itself last, so a caller without the secret learns only that a node
is there. The labels "rank" and "node" prevent one side's proof from being replayed as the other
side's proof. The data that follow on the connection are neither encrypted nor signed. So the
network must be private: an attacker who can alter packets between these machines could also alter
the gradients that the ranks exchange.

`slices` defines the messages that follow the handshake.
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
"""Time limit for all three messages. It is short because the node serves only a few unknown callers
at a time, and a slow caller keeps others out."""

_MAGIC = b"p2prank\x01"
_NONCE_BYTES = 32
_MAC_BYTES = 32
_CLAIM = struct.Struct(">HHB")


class Purpose(IntEnum):
    """The purpose of a connection."""

    SLICES = 1
    """For slices of θ and of the weights, and for data blocks. Each rank has one such connection;
    when the connection closes, the node treats the rank as gone."""
    FRAMES = 2
    """For the frames of `ipc.frames`: the node's orders and the trainer's answers. Only rank 0 has
    such a connection."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The caller's rank, the number of ranks, and the purpose of the connection."""

    rank: int
    ranks: int
    purpose: Purpose

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks < 2**16:
            raise ValueError(f"rank {self.rank} is not below {self.ranks}, the number of ranks")
        if self.purpose is Purpose.FRAMES and self.rank != 0:
            raise ValueError("only rank 0 exchanges frames")


def load_or_create(path: Path) -> bytes:
    """Return the secret in `path`. If the file does not exist, create it, readable only by us.

    Raises ConfigError, OSError.
    """
    private_file.write_new(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode())
    return load(path)


def load(path: Path) -> bytes:
    """Return the secret that `path` contains as hexadecimal text.

    Raises:
        ConfigError: the file does not exist, others can read it, or it does not contain a secret.
    """
    try:
        text = private_file.read_private_file(
            path, 4 * SECRET_BYTES, what="the ranks' secret", code="RANKS-SECRET"
        )
    except OSError as exc:
        raise ConfigError(
            f"the ranks' secret {path} cannot be read: {exc.strerror}",
            code="RANKS-SECRET",
            do="copy the file that the node created, and keep its mode: scp -p",
        ) from exc
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"{path} does not contain {SECRET_BYTES} bytes as hexadecimal text",
            code="RANKS-SECRET",
            likely="the file is damaged, or it is not the file that the node created",
            do="copy the file again from the node's home; or remove it there, and the node creates "
            "a new one",
        )
    return secret


def challenge(sock: socket.socket, secret: bytes, limit_s: float = GREETING_LIMIT_S) -> Claim:
    """Verify the caller, on the node's side. Afterwards the socket blocks without a timeout.

    Raises:
        RemoteProtocolError: the caller does not know the secret, or its claim is invalid.
        OSError: the connection broke, or took longer than `limit_s`.
    """
    ends_s = time.monotonic() + limit_s
    ours = secrets.token_bytes(_NONCE_BYTES)
    sock.settimeout(limit_s)
    sock.sendall(_MAGIC + ours)
    answer = receive_exactly(sock, _NONCE_BYTES + _CLAIM.size + _MAC_BYTES, ends_s)
    nonces, told = ours + answer[:_NONCE_BYTES], answer[_NONCE_BYTES:-_MAC_BYTES]
    if not hmac.compare_digest(_mac(secret, b"rank", nonces, told), answer[-_MAC_BYTES:]):
        raise RemoteProtocolError("the caller does not know the ranks' secret")
    rank, ranks, purpose = _CLAIM.unpack(told)
    try:
        claim = Claim(rank, ranks, Purpose(purpose))
    except ValueError as exc:
        raise RemoteProtocolError(f"the caller's claim is invalid: {exc}") from exc
    sock.sendall(_mac(secret, b"node", nonces, told))
    sock.settimeout(None)
    return claim


def prove(
    sock: socket.socket, secret: bytes, claim: Claim, limit_s: float = GREETING_LIMIT_S
) -> None:
    """Prove this rank's identity, on the rank's side. Afterwards the socket blocks without a
    timeout.

    Raises:
        RemoteProtocolError: the listener is not a node with our secret.
        OSError: the connection broke, or took longer than `limit_s`. A node that receives a wrong
            proof closes the connection.
    """
    ends_s = time.monotonic() + limit_s
    sock.settimeout(limit_s)
    greeting = receive_exactly(sock, len(_MAGIC) + _NONCE_BYTES, ends_s)
    if not greeting.startswith(_MAGIC):
        raise RemoteProtocolError("the program that listens there is not a node that accepts ranks")
    ours = secrets.token_bytes(_NONCE_BYTES)
    nonces = greeting[len(_MAGIC) :] + ours
    told = _CLAIM.pack(claim.rank, claim.ranks, claim.purpose)
    sock.sendall(ours + told + _mac(secret, b"rank", nonces, told))
    answer = receive_exactly(sock, _MAC_BYTES, ends_s)
    if not hmac.compare_digest(_mac(secret, b"node", nonces, told), answer):
        raise RemoteProtocolError(
            "the node that listens there has a different secret for its ranks"
        )
    sock.settimeout(None)


def receive_exactly(sock: socket.socket, count: int, ends_s: float) -> bytes:
    """Receive exactly `count` bytes before the monotonic time `ends_s`. Raises OSError."""
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
