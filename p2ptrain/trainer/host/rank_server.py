"""Accept ranks that the node did not start, and serve them until one of them disconnects.

Use this in a node whose ranks (the processes of its trainer) are started by torchrun, perhaps on
several hosts. Each rank connects, proves that it knows the secret (`ipc.admission`), and waits.
When all ranks are connected, each gets a Welcome. From then on, the rank reads slices of θ and data
blocks, and writes slices of its weights (`ipc.slices`). Ranks on the node's host are treated in the
same way. Shared memory would save them a copy through loopback, but would be a second, less tested
way to transfer vectors.

Rank 0's second connection carries frames. The frames are copied between this connection and one end
of a socketpair. The node uses the other end (`socket`) as with ranks that it started itself.

The `RankGathering` of one start ends when a rank disconnects, connects again or breaks the
protocol, because the other ranks would then hang in a collective. All connections are shut down,
which ends every rank, and torchrun starts the ranks again for the next gathering. Each connection
has its own thread; shutting down its socket ends the thread.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from p2ptrain.data.blocks import BLOCK_BYTES_MAX
from p2ptrain.errors import RemoteProtocolError, TrainerError, TrainerOutOfMemory, counted
from p2ptrain.ipc import slices
from p2ptrain.ipc.admission import Claim, Purpose, challenge
from p2ptrain.ipc.frames import BLOCKS_MAX
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host.micro_batch import OUT_OF_MEMORY_EXIT_CODE, at_once

STRANGERS_MAX = 16
"""Maximum number of connections in addition to those of the expected ranks."""
PATHS_MAX = 4 * BLOCKS_MAX
"""Maximum number of block paths that ranks may read: as many as four frames can name. The most
recently announced ones count."""
DEAF_S = 1.0
"""Pause after a failed accept. Afterwards, file descriptors may be free again."""
_RECEIVE_BYTES = 65_536
_FLOAT_BYTES = 4

WriteEvent = Callable[..., None]
"""Called with an event and its fields, like `Journal.write`, from any thread."""


@dataclass(eq=False, repr=False)
class RankGathering:
    """All ranks of one start of the trainer, from the first connection to the end.

    `door` is the listening socket, closed by `close`. `theta` and `local` are the bytes of the
    node's vectors, which are the same at every start. `generation` is the number of this gathering.
    """

    door: socket.socket
    secret: bytes
    config: TrainerConfig
    ranks: int
    theta: memoryview
    local: memoryview
    generation: int
    write_event: WriteEvent
    _seats: dict[int, socket.socket] = field(default_factory=dict)
    """The connections of the ranks that have connected already, by rank."""

    def __post_init__(self) -> None:
        self.micro_batch = at_once(self.config, self.ranks)
        """Number of sequences that each rank computes at once. Set to a smaller number if the
        ranks' Hello says so."""
        self.socket, self._theirs = socket.socketpair()
        self._changed = threading.Condition()
        self._calls: set[socket.socket] = set()
        self._paths: dict[str, None] = {}
        self._frames: socket.socket | None = None
        self._leaving = False
        self._threads: list[threading.Thread] = []
        self.complete_s: float | None = None
        """Monotonic time at which all ranks were connected; None before."""
        self.error: TrainerError | None = None
        """Why the gathering is over; None while it is not. Written by `end`."""
        self._start(self._accept)

    @property
    def here(self) -> int:
        """The number of ranks that are connected."""
        return len(self._seats)

    def allow(self, paths: Iterable[str]) -> None:
        """Allow ranks to read these files, and with earlier ones at most PATHS_MAX files."""
        with self._changed:
            self._paths.update(dict.fromkeys(paths))
            while len(self._paths) > PATHS_MAX:
                del self._paths[next(iter(self._paths))]

    def expect_leaving(self) -> None:
        """Treat a rank that disconnects from now on as stopped on request, not as lost."""
        with self._changed:
            self._leaving = True

    def wait_empty(self, limit_s: float) -> bool:
        """Wait until all ranks have disconnected. Return False after `limit_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._seats, limit_s)

    def end(self, error: TrainerError) -> None:
        """End the gathering and shut down every socket. `error` is the reason; an earlier reason
        is kept."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
            for sock in (self.door, self._theirs, *self._calls):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self, limit_s: float) -> None:
        """Wait for the threads after `end`, so that none of them still writes into the node's
        vectors."""
        ends_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        for sock in (self.door, self._theirs, self.socket):
            sock.close()

    # -- connections ----------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="ranks", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive() or not each.ident]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self.door.accept()
            except OSError as exc:
                if self._is_over_soon(exc):
                    return
                continue
            with self._changed:
                over = self.error is not None
                full = len(self._calls) >= self.ranks + 1 + STRANGERS_MAX
                if not over and not full:
                    self._calls.add(sock)
                    self._start(self._attend, sock, str(address[0]))
                    continue
            sock.close()

    def _is_over_soon(self, exc: OSError) -> bool:
        """Handle a failed accept. Return True if the gathering is over, or ends within `DEAF_S`.
        Otherwise file descriptors may have run out, and the caller should accept again."""
        with self._changed:
            if self.error is None:
                self.write_event("rank-not-heard", reason=exc.strerror)
            return self._changed.wait_for(lambda: self.error is not None, DEAF_S)

    def _attend(self, sock: socket.socket, host: str) -> None:
        """Serve one connection from its handshake to its end."""
        try:
            slices.stay_alert(sock)
            claim = challenge(sock, self.secret)
            if claim.purpose is Purpose.FRAMES:
                self._pass_frames(sock)
            else:
                self._attend_rank(sock, claim, host)
        except RemoteProtocolError as exc:
            self.write_event("rank-refused", host=host, reason=exc.what)
        except OSError:
            pass  # The rank closed the connection, or the gathering ended.
        finally:
            with self._changed:
                self._calls.discard(sock)
            sock.close()

    def _attend_rank(self, sock: socket.socket, claim: Claim, host: str) -> None:
        if reason := self._seat(sock, claim):
            slices.send(sock, slices.Refused(reason))
            raise RemoteProtocolError(reason)
        self.write_event("rank-here", rank=claim.rank, ranks=claim.ranks, host=host)
        gone = f"rank {claim.rank} at {host} has disconnected"
        try:
            while (message := slices.receive(sock)) is not None:
                self._answer(sock, message)
        except RemoteProtocolError as exc:
            gone = f"rank {claim.rank} at {host} broke the protocol: {exc.what}"
        finally:
            self._leave(sock, claim.rank, gone)

    def _seat(self, sock: socket.socket, claim: Claim) -> str:
        """Register the rank's connection. When the last rank is registered, welcome all of them.

        Return "", or why the rank is refused. Raises ConnectionError: the rank must connect again.
        """
        with self._changed:
            if claim.ranks != self.ranks:
                expected = counted(self.ranks, "rank")
                return f"this node expects {expected}, and torchrun started {claim.ranks}"
            if self.error is not None or self._leaving:
                raise ConnectionError("the node has closed this group of ranks")
            if self.complete_s is not None:
                # The rank's old connection is dead: its host was cut off or has been restarted.
                self.end(_lost(f"rank {claim.rank} has connected again"))
                raise ConnectionError("the rank must connect once more")
            if (before := self._seats.get(claim.rank)) is not None:
                with suppress(OSError):  # The old connection may already be broken.
                    before.shutdown(socket.SHUT_RDWR)
            self._seats[claim.rank] = sock
            if len(self._seats) == self.ranks:
                self.complete_s = time.monotonic()
                welcome = slices.Welcome(self.generation, self.config.to_json())
                for each in self._seats.values():
                    with suppress(OSError):  # That rank's own thread notices the failure.
                        slices.send(each, welcome)
        return ""

    def _leave(self, sock: socket.socket, rank: int, gone: str) -> None:
        with self._changed:
            if self._seats.get(rank) is sock:
                del self._seats[rank]
                self._changed.notify_all()
                if self.complete_s is not None and not self._leaving:
                    self.end(_lost(gone))

    # -- requests -------------------------------------------------------------------------------

    def _answer(self, sock: socket.socket, message: slices.Message) -> None:
        if self.complete_s is None:
            raise RemoteProtocolError(f"a {message.kind} message came before the welcome")
        match message:
            case slices.ReadTheta(ranges):
                for view in _views(self.theta, ranges):
                    sock.sendall(view)
            case slices.WriteLocal(ranges):
                for view in _views(self.local, ranges):
                    slices.receive_into(sock, view)
                sock.sendall(slices.DONE)
            case slices.ReadBlock(path):
                block = self._block(path)
                sock.sendall(slices.LENGTH.pack(len(block)))
                sock.sendall(block)
            case slices.Ending(status) if status == OUT_OF_MEMORY_EXIT_CODE:
                self.end(TrainerOutOfMemory(status, "", self.micro_batch))
            case _:
                raise RemoteProtocolError(f"a rank must not send a {message.kind} message")

    def _block(self, path: str) -> bytes:
        """Return the bytes of an allowed block file, or b"" if it cannot be read.

        Raises RemoteProtocolError: the path was not allowed.
        """
        with self._changed:
            if path not in self._paths:
                raise RemoteProtocolError("it asked for a file that the node did not announce")
        try:
            with Path(path).open("rb") as file:
                data = file.read(BLOCK_BYTES_MAX + 1)
        except OSError:
            return b""
        return data if len(data) <= BLOCK_BYTES_MAX else b""

    def _pass_frames(self, sock: socket.socket) -> None:
        with self._changed:
            if self.complete_s is None or self._frames is not None:
                raise RemoteProtocolError(
                    "rank 0 exchanges frames once, after all ranks are connected"
                )
            self._frames = sock
            slices.bear_silence(sock)  # An inner step, between two reads, may take minutes.
            self._start(self._pass, self._theirs, sock)
        self._pass(sock, self._theirs)

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        """Copy all bytes from `source` to `to` until one of them is closed. A closed connection is
        ignored here, because the end of a rank is noticed on its connection for slices."""
        with suppress(OSError):
            while data := source.recv(_RECEIVE_BYTES):
                to.sendall(data)


def _lost(what: str) -> TrainerError:
    return TrainerError(
        what,
        code="TRAINER-RANKS",
        likely="the rank, its host or the network failed; look at torchrun's output on that host",
        do="torchrun restarts all ranks if you gave it --max-restarts",
    )


def _views(vector: memoryview, ranges: slices.Ranges) -> list[memoryview]:
    if any(end * _FLOAT_BYTES > len(vector) for _, end in ranges):
        raise RemoteProtocolError("a range ends beyond the layout; the rank has a different model")
    return [vector[start * _FLOAT_BYTES : end * _FLOAT_BYTES] for start, end in ranges]
