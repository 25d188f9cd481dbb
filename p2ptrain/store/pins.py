"""Lasting pins: blobs that the owner of a store wants to keep even if the run no longer needs them.

A file in the store holds one digest per line. It has its own lock, so that a command can pin while
a node is running. A garbage collection holds the lock from reading the pins until it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2ptrain.errors import StoreError, TryLater
from p2ptrain.ids import Digest, is_digest
from p2ptrain.store.disk import Disk, Lock, disk_errors

PINS_MAX = 10_000
_LINE_BYTES = 65
_WAIT_S = 0.05
TRIES = 200
"""Maximum number of attempts to take the lock: ten seconds in total. Commands hold the lock for
milliseconds; a garbage collection holds it until it ends."""


class Pins:
    """The pins of the store under `root`: `pins_max` at most. A caller that finds them locked tries
    again, up to `tries` times, every 50 ms.
    """

    def __init__(
        self, root: Path, disk: Disk, pins_max: int = PINS_MAX, tries: int = TRIES
    ) -> None:
        self._pins_max = pins_max
        self._tries = tries
        self._root = root
        self._path = root / "pins"
        self._disk = disk

    def load(self) -> frozenset[Digest]:
        """Return the pins. Raises StoreError with code STORE-PINS if the file is damaged."""
        with disk_errors("reading the pins", self._root):
            if self._disk.size(self._path) is None:
                return frozenset()
            data = self._disk.read(self._path, 0, self._pins_max * _LINE_BYTES + 1)
        lines = data.decode("ascii", errors="replace").splitlines()
        if len(lines) > self._pins_max or not all(is_digest(line) for line in lines):
            raise StoreError(
                "the list of pins is damaged",
                code="STORE-PINS",
                evidence=[f"file {self._path}"],
                likely="the disk is faulty, or another program wrote into the store",
                do=(
                    "replace its content with the digests of the blobs to keep, one per line, or "
                    "remove the file"
                ),
            )
        return frozenset(map(Digest, lines))

    @contextmanager
    def held(self) -> Iterator[frozenset[Digest]]:
        """Lock the pins within the block, and yield them.

        Raises TryLater with code PINS-BUSY if they stay locked for ten seconds.
        """
        lock = self._taken()
        try:
            yield self.load()
        finally:
            lock.close()

    def change(self, *, add: Digest | None = None, remove: Digest | None = None) -> bool:
        """Add or remove a pin, durably. Return False if nothing had to change.

        Raises TryLater and StoreError as `held` and `load` do, or if the file cannot be written.
        """
        with self.held() as pinned:
            wanted = (pinned | {add} if add else pinned) - {remove}
            if wanted == pinned:
                return False
            if len(wanted) > self._pins_max:
                raise StoreError(f"a store has at most {self._pins_max} pins", code="STORE-PINS")
            self._write("".join(f"{digest}\n" for digest in sorted(wanted)))
            return True

    def _write(self, text: str) -> None:
        beside = self._path.with_name("pins.new")
        with disk_errors("writing the pins", self._root):
            self._disk.write(beside, memoryview(text.encode()))
            self._disk.sync(beside)
            self._disk.replace(beside, self._path)
            self._disk.sync_directory(self._root)

    def _taken(self) -> Lock:
        never = threading.Event()
        for _ in range(self._tries):
            with disk_errors("locking the pins", self._root):
                lock = self._disk.lock(self._root / "pins.lock")
            if lock is not None:
                return lock
            never.wait(_WAIT_S)
        raise TryLater(
            "another process has kept this store's pins locked for ten seconds",
            code="PINS-BUSY",
            likely="the node in this home is removing chunks that it no longer needs",
            do="try again in a minute",
        )
