"""The home (the folder with the files) of a simulated process. It survives crashes, but unsynced
writes can be lost.

The real `start_count.count_start` runs on it, so a checker finds any count that a process shows
before the count is durable.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import cast

from p2ptrain.archive import start_count
from p2ptrain.store import Disk

_FILE = Path("/home/starts")


class HomeDisk:
    """The part of `store.Disk` that counting starts needs. Files are small, so a write is either
    complete or lost. A rename becomes durable when its directory is synced, or earlier."""

    def __init__(self, files: dict[Path, bytes] | None = None) -> None:
        self.durable = dict(files or {})
        self._files = dict(self.durable)
        self._synced: set[Path] = set(self.durable)

    def size(self, path: Path) -> int | None:
        return len(self._files[path]) if path in self._files else None

    def read(self, path: Path, offset: int, size: int) -> bytes:
        return self._files[path][offset : offset + size]

    def write(self, path: Path, data: memoryview) -> None:
        self._files[path] = bytes(data)
        self._synced.discard(path)

    def sync(self, path: Path) -> None:
        self._synced.add(path)

    def replace(self, source: Path, target: Path) -> None:
        self._files[target] = self._files.pop(source)
        self._synced.discard(target)
        if source in self._synced:
            self._synced.remove(source)
            self._synced.add(target)

    def sync_directory(self, path: Path) -> None:
        self.durable = {each: self._files[each] for each in self._files if each in self._synced}

    def crashed(self, random: Random) -> HomeDisk:
        """Return the disk after a power cut: everything durable, and perhaps the other writes."""
        return HomeDisk(self._files if random.random() < 0.5 else self.durable)


class SimHome:
    """A home. `kept` lists earlier contents of its disk, which serve as backups."""

    def __init__(self, disk: HomeDisk | None = None) -> None:
        self.disk = disk or HomeDisk()
        self.kept: list[dict[Path, bytes]] = [{}]

    def count(self, at_least: int) -> int:
        counted = start_count.count_start(_FILE, at_least, cast(Disk, self.disk))
        self.kept.append(dict(self.disk.durable))
        return counted

    @property
    def durable_count(self) -> int:
        return int(self.disk.durable.get(_FILE, b"0"))

    def crash(self, random: Random) -> None:
        self.disk = self.disk.crashed(random)

    def restore(self, random: Random) -> None:
        """Restore a random backup; the oldest one has no start count."""
        self.disk = HomeDisk(random.choice(self.kept))

    def copy(self, random: Random) -> SimHome:
        """Return a second home with the same key: a copy of this one, or of a backup."""
        older = random.random() < 0.3
        files = random.choice(self.kept) if older else self.disk.durable
        return SimHome(HomeDisk(files))
