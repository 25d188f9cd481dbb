"""Lets ranks in that somebody else started, and serves them until one of them goes.

Use it in a node whose ranks come from torchrun, perhaps on several hosts.  Each rank calls, proves
that it knows the secret (`ipc.admission`), and waits; when all have come, each is welcomed and asks
for slices of θ and for blocks, and hands in slices of its weights (`ipc.slices`).  So no rank needs
to be on the node's host, and all are alike: shared memory for those beside the node would have
saved a copy through loopback, and made two ways of which one is tested.

Rank 0's second connection carries frames; they are passed on between it and one end of a
socketpair, whose other end (`socket`) the node uses as with ranks that it started.

A gathering is over for good when a rank goes, calls again or breaks the protocol: what the others
have would hang in a collective.  All connections are shut then, which ends every rank, and torchrun
starts them anew.  Threads serve connections, one each; shutting its socket ends a thread.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from p2ptrain.data.blocks import BLOCK_BYTES_MAX
from p2ptrain.errors import RemoteProtocolError, TrainerError, TrainerOutOfMemory
from p2ptrain.ipc import slices
from p2ptrain.ipc.admission import Claim, Purpose, challenge
from p2ptrain.ipc.frames import BLOCKS_MAX
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host.micro_batch import OUT_OF_MEMORY_EXIT_CODE, at_once

STRANGERS_MAX = 16
"""Callers at the same time beyond the ranks that are expected."""
PATHS_MAX = 4 * BLOCKS_MAX
"""Of blocks that ranks were told of lately: several leases."""
DEAF_S = 1.0
"""Until callers are listened to again where one could not be: what lacks may be free then."""
_RECEIVE_BYTES = 65_536
_FLOAT_BYTES = 4

Told = Callable[..., None]
"""An event and its fields, as `Journal.write` takes them.  From any thread."""


class Gathering:
    """All ranks of one start of the trainer, from the first call to the end.

    `door` listens and is closed here; `theta` and `local` are the arena's bytes.
    """

    def __init__(
        self,
        door: socket.socket,
        secret: bytes,
        config: TrainerConfig,
        ranks: int,
        theta: memoryview,
        local: memoryview,
        generation: int,
        told: Told,
    ) -> None:
        self.ranks = ranks
        self.micro_batch = at_once(config, ranks)
        """How many sequences each computes at once; it may be less than they were told."""
        self.socket, self._theirs = socket.socketpair()
        self._door, self._secret, self._config = door, secret, config
        self._theta, self._local = theta, local
        self._generation, self._told = generation, told
        self._changed = threading.Condition()
        self._calls: set[socket.socket] = set()
        self._seats: dict[int, socket.socket] = {}
        self._paths: dict[str, None] = {}
        self._frames: socket.socket | None = None
        self._leaving = False
        self._threads: list[threading.Thread] = []
        self.complete_s: float | None = None
        """Since when all ranks are there."""
        self.error: TrainerError | None = None
        """Why it is over."""
        self._start(self._accept)

    @property
    def here(self) -> int:
        return len(self._seats)

    def allow(self, paths: Iterable[str]) -> None:
        """Ranks may ask for these blocks from now on."""
        with self._changed:
            self._paths.update(dict.fromkeys(paths))
            while len(self._paths) > PATHS_MAX:
                del self._paths[next(iter(self._paths))]

    def expect_leaving(self) -> None:
        """From now on a rank that goes does what it was told."""
        with self._changed:
            self._leaving = True

    def wait_empty(self, limit_s: float) -> bool:
        """Whether all ranks have gone within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._seats, limit_s)

    def end(self, error: TrainerError) -> None:
        """Over, because of `error` unless it was before.  Every socket is shut."""
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
            for sock in (self._door, self._theirs, *self._calls):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self, limit_s: float) -> None:
        """After `end`: wait for the threads, so that nobody writes into the arena any more."""
        ends_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        for sock in (self._door, self._theirs, self.socket):
            sock.close()

    # -- who comes ------------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="ranks", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive() or not each.ident]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._door.accept()
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
        """Nobody could be let in: the door was shut; or files ran out, and it must stay open."""
        with self._changed:
            if self.error is None:
                self._told("rank-not-heard", reason=exc.strerror)
            return self._changed.wait_for(lambda: self.error is not None, DEAF_S)

    def _attend(self, sock: socket.socket, host: str) -> None:
        """One caller, from its call to its end."""
        try:
            slices.stay_alert(sock)
            claim = challenge(sock, self._secret)
            if claim.purpose is Purpose.FRAMES:
                self._pass_frames(sock)
            else:
                self._attend_rank(sock, claim, host)
        except RemoteProtocolError as exc:
            self._told("rank-refused", host=host, reason=exc.what)
        except OSError:
            pass  # It went, or we shut it; whoever had a seat has left it.
        finally:
            with self._changed:
                self._calls.discard(sock)
            sock.close()

    def _attend_rank(self, sock: socket.socket, claim: Claim, host: str) -> None:
        if reason := self._seat(sock, claim):
            slices.send(sock, slices.Refused(reason))
            raise RemoteProtocolError(reason)
        self._told("rank-here", rank=claim.rank, ranks=claim.ranks, host=host)
        gone = f"rank {claim.rank} at {host} has gone"
        try:
            while (message := slices.receive(sock)) is not None:
                self._answer(sock, message)
        except RemoteProtocolError as exc:
            gone = f"rank {claim.rank} at {host} broke the protocol: {exc.what}"
        finally:
            self._leave(sock, claim.rank, gone)

    def _seat(self, sock: socket.socket, claim: Claim) -> str:
        """Give the rank its place; the last one's coming is the welcome of all.

        Returns why not, if there is none.
        """
        with self._changed:
            if claim.ranks != self.ranks:
                return f"this node expects {self.ranks} ranks, and torchrun started {claim.ranks}"
            if self.error is not None or self._leaving:
                raise ConnectionError("it is over")
            if self.complete_s is not None:
                # Newer than what we know of it: its host was cut off, or has been started anew.
                self.end(_lost(f"rank {claim.rank} has called again"))
                raise ConnectionError("it must call once more")
            if (before := self._seats.get(claim.rank)) is not None:
                with suppress(OSError):  # Its other end may be gone for good.
                    before.shutdown(socket.SHUT_RDWR)
            self._seats[claim.rank] = sock
            if len(self._seats) == self.ranks:
                self.complete_s = time.monotonic()
                welcome = slices.Welcome(self._generation, self._config.to_json())
                for each in self._seats.values():
                    with suppress(OSError):  # Its own thread hears of it.
                        slices.send(each, welcome)
        return ""

    def _leave(self, sock: socket.socket, rank: int, gone: str) -> None:
        with self._changed:
            if self._seats.get(rank) is sock:
                del self._seats[rank]
                self._changed.notify_all()
                if self.complete_s is not None and not self._leaving:
                    self.end(_lost(gone))

    # -- what it asks for -----------------------------------------------------------------------

    def _answer(self, sock: socket.socket, message: slices.Message) -> None:
        if self.complete_s is None:
            raise RemoteProtocolError(f"{message.kind} before the welcome")
        match message:
            case slices.ReadTheta(ranges):
                for view in _views(self._theta, ranges):
                    sock.sendall(view)
            case slices.WriteLocal(ranges):
                for view in _views(self._local, ranges):
                    slices.receive_into(sock, view)
                sock.sendall(slices.DONE)
            case slices.ReadBlock(path):
                block = self._block(path)
                sock.sendall(slices.LENGTH.pack(len(block)))
                sock.sendall(block)
            case slices.Ending(status) if status == OUT_OF_MEMORY_EXIT_CODE:
                self.end(TrainerOutOfMemory(status, "", self.micro_batch))
            case _:
                raise RemoteProtocolError(f"a {message.kind} message from a rank")

    def _block(self, path: str) -> bytes:
        """What the file holds, if ranks were told of it; nothing, if it cannot be had."""
        with self._changed:
            if path not in self._paths:
                raise RemoteProtocolError("it asks for a file that it was not told of")
        try:
            with Path(path).open("rb") as file:
                data = file.read(BLOCK_BYTES_MAX + 1)
        except OSError:
            return b""
        return data if len(data) <= BLOCK_BYTES_MAX else b""

    def _pass_frames(self, sock: socket.socket) -> None:
        with self._changed:
            if self.complete_s is None or self._frames is not None:
                raise RemoteProtocolError("rank 0 exchanges frames once, and once all are there")
            self._frames = sock
            slices.bear_silence(sock)  # Rank 0 reads frames between inner steps.
            self._start(self._pass, self._theirs, sock)
        self._pass(sock, self._theirs)

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        """All bytes from the one to the other, until one of them ends; that is told by its slices'
        connection."""
        with suppress(OSError):
            while data := source.recv(_RECEIVE_BYTES):
                to.sendall(data)


def _lost(what: str) -> TrainerError:
    return TrainerError(
        what,
        code="TRAINER-RANKS",
        likely="it has failed, or its host, or the network between; see what torchrun prints there",
        do="torchrun starts all ranks again if it was given --max-restarts",
    )


def _views(vector: memoryview, ranges: slices.Ranges) -> list[memoryview]:
    if any(end * _FLOAT_BYTES > len(vector) for _, end in ranges):
        raise RemoteProtocolError("a range ends beyond the layout: another model")
    return [vector[start * _FLOAT_BYTES : end * _FLOAT_BYTES] for start, end in ranges]
