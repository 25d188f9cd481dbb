"""The connection between a node and a rank (a process of its trainer) that torchrun started. The
rank has copies of the node's vectors instead of shared memory.

The copies are as long as the node's vectors, but only this rank's part of them is ever used.
`fetch` copies slices of θ from the node before they are read, and `push` copies slices of `local`
(the trained weights) to the node after they are written. Other modules use the
copies as they would use shared memory.

When the node closes the connection, this process ends immediately, with an exit status that makes
torchrun start it again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from p2ptrain.data.blocks import BLOCK_BYTES_MAX, Tokens, decode_block
from p2ptrain.errors import (
    ChunkMissing,
    ConfigError,
    NetworkUnreachable,
    RemoteProtocolError,
    TrainerError,
)
from p2ptrain.ipc import slices
from p2ptrain.ipc.admission import Claim, Purpose, prove
from p2ptrain.ipc.channel import Channel, ChannelClosed
from p2ptrain.ipc.frames import Frame
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.state.layout import Layout

NODE_GONE_EXIT_CODE = 75

CALL_LIMIT_S = 600.0
"""Time for which a rank tries to connect. It is long because a restarted node first verifies its
ledger, and only then listens for ranks."""
CALL_EVERY_S = 1.0
_FLOAT_BYTES = 4
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """The address and secret with which this rank connects to its node."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    rank: int
    ranks: int

    def call(self, purpose: Purpose) -> socket.socket:
        """Return a connection on which both sides have proved that they know the secret.

        Raises RemoteProtocolError, OSError.
        """
        sock = socket.create_connection((self.host, self.port), timeout=10.0)
        try:
            slices.stay_alert(sock)
            prove(sock, self.secret, Claim(self.rank, self.ranks, purpose))
        except (RemoteProtocolError, OSError):
            sock.close()
            raise
        return sock


def join(caller: NodeCredentials, limit_s: float = CALL_LIMIT_S) -> NodeLink:
    """Connect to the node, and wait until all ranks have connected.

    Raises:
        ConfigError: the node does not expect this rank, or has a different secret.
        NetworkUnreachable: the node did not answer for `limit_s`.
    """
    ends_s, trouble, pause = time.monotonic() + limit_s, "", threading.Event()
    while time.monotonic() < ends_s:
        try:
            sock, message = _greeted(caller)
        except OSError as exc:
            trouble = str(exc)
        except RemoteProtocolError as exc:
            do = "copy the secret file from the node's home again"
            raise ConfigError(exc.what, code="RANKS-SECRET", do=do) from exc
        else:
            if isinstance(message, slices.Welcome):
                return NodeLink(caller, sock, message)
            sock.close()
            if isinstance(message, slices.Refused):
                do = "start as many ranks with torchrun as the node's --ranks says"
                raise ConfigError(message.reason, do=do)
            trouble = "the node closed the connection"
        pause.wait(CALL_EVERY_S)
    raise NetworkUnreachable(
        f"cannot connect to a node that accepts ranks at {caller.host}:{caller.port}",
        evidence=[trouble],
        likely="the node is not running, or has a different address (--ranks-listen) or secret",
        do="run p2ptrain status on the node's machine to see what the node waits for",
    )


def _greeted(caller: NodeCredentials) -> tuple[socket.socket, slices.Message | None]:
    """Return a connection, and the node's first message on it.

    Raises RemoteProtocolError, OSError, after closing the connection.
    """
    sock = caller.call(Purpose.SLICES)
    try:
        return sock, slices.receive(sock)
    except (RemoteProtocolError, OSError):
        sock.close()
        raise


class NodeLink:
    """The connections of a rank to its node once the node has accepted it."""

    def __init__(
        self, caller: NodeCredentials, sock: socket.socket, welcome: slices.Welcome
    ) -> None:
        self.config = TrainerConfig.from_json(welcome.config)
        self.generation = welcome.generation
        self._caller = caller
        self._socket = sock
        self._frames: socket.socket | None = None
        self._vectors: tuple[memoryview, memoryview] | None = None

    def die_with_the_node(self) -> None:
        """Start a thread that ends this process when the node closes the connection."""

        def wait() -> None:
            poller = select.poll()
            poller.register(self._socket, select.POLLRDHUP)
            poller.poll()
            os._exit(NODE_GONE_EXIT_CODE)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()

    def channel(self) -> Channel:
        """Open the channel for frames. Only rank 0 calls this, and only once."""
        self._frames = self._caller.call(Purpose.FRAMES)
        slices.bear_silence(self._frames)
        return FrameChannel(self._frames)

    def close(self) -> None:
        """Close the connections. The node then treats this rank as gone."""
        for sock in (self._socket, self._frames):
            if sock is not None:
                sock.close()

    def vectors(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Allocate θ and `local`. Pages that are never used take no memory."""
        size = layout.numel * _FLOAT_BYTES
        theta, local = mmap.mmap(-1, size), mmap.mmap(-1, size)
        self._vectors = memoryview(theta), memoryview(local)
        read, written = (torch.frombuffer(each, dtype=torch.float32) for each in (theta, local))
        return read, written

    def fetch(self, places: Sequence[slice]) -> None:
        """Copy these slices of θ from the node."""
        assert self._vectors is not None
        for ranges in _ranges(places):
            slices.send(self._socket, slices.ReadTheta(ranges))
            for start, end in ranges:
                view = self._vectors[0][start * _FLOAT_BYTES : end * _FLOAT_BYTES]
                slices.receive_into(self._socket, view)

    def push(self, places: Sequence[slice]) -> None:
        """Copy these slices of `local` to the node, and wait until the node has received them."""
        assert self._vectors is not None
        for ranges in _ranges(places):
            slices.send(self._socket, slices.WriteLocal(ranges))
            for start, end in ranges:
                self._socket.sendall(self._vectors[1][start * _FLOAT_BYTES : end * _FLOAT_BYTES])
            slices.receive_bytes(self._socket, len(slices.DONE))

    def read_block(self, path: str, *, vocab: int, sequence: int) -> Tokens:
        """Read a block as `data.blocks.read_block` does, but from a file on the node's machine."""
        slices.send(self._socket, slices.ReadBlock(path))
        (count,) = slices.LENGTH.unpack(slices.receive_bytes(self._socket, slices.LENGTH.size))
        if count > BLOCK_BYTES_MAX:
            raise TrainerError(f"the node sent a block of {count} bytes, which is too long")
        if not (block := slices.receive_bytes(self._socket, count)):
            raise ChunkMissing(f"the node cannot read data block {path}")
        return decode_block(block, vocab=vocab, sequence=sequence, name=path)

    def report_end(self, status: int) -> None:
        """Tell the node that this rank is about to exit with `status`."""
        slices.send(self._socket, slices.Ending(status))

    @property
    def interface(self) -> str | None:
        """The network interface that leads to the node; None if its address is not IPv4."""
        mine = self._socket.getsockname()[0]
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                told = fcntl.ioctl(self._socket.fileno(), _SIOCGIFADDR, asked)
            except OSError:
                continue  # The interface has no IPv4 address.
            if socket.inet_ntoa(told[20:24]) == mine:
                return name
        return None


class FrameChannel(Channel):
    """A channel that raises an error if the node is gone, so that the rank exits non-zero and
    torchrun restarts it. With a plain `Channel`, the loop treats `ChannelClosed` as Stop."""

    def receive(self, timeout_s: float | None = None) -> Frame | None:
        try:
            return super().receive(timeout_s)
        except ChannelClosed as exc:
            raise TrainerError("the node has disconnected", code="TRAINER-CHANNEL") from exc


def _ranges(places: Sequence[slice]) -> list[tuple[tuple[int, int], ...]]:
    """Convert slices to (start, end) ranges in elements, merging adjacent ones, and split the list
    into tuples that each fit one message."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted((place.start, place.stop) for place in places):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    most = slices.RANGES_MAX
    return [tuple(joined[first : first + most]) for first in range(0, len(joined), most)]
