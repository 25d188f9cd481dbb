"""How many times this identity was started, stored in the home (the folder with a node's files).

The count is the upper half of an *incarnation*, the number that orders the starts of one identity.
It is durable before the first heartbeat that contains it, so a node never uses a count twice, even
after a crash. A home may have no count (the home is new, or older than this feature), an old count
(it was restored from a backup), or the same count as another home (it was copied). None of this
does harm: members send a starting node the newest incarnation that its identity signed, and
`node/joining/duplicate_identity.py` continues the count from there.
"""

from __future__ import annotations

from pathlib import Path

from p2ptrain.peers.incarnations import STARTS_MAX
from p2ptrain.store.disk import Disk, LocalDisk, disk_errors

STARTS_BYTES_MAX = 16


def read_start_count(path: Path, disk: Disk | None = None) -> int:
    """Return the count in the file; 0 if there is no file, or if it does not contain a count."""
    disk = disk or LocalDisk()
    with disk_errors("reading the count of starts", path):
        if disk.size(path) is None:
            return 0
        text = disk.read(path, 0, STARTS_BYTES_MAX).decode("ascii", "replace").strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) <= STARTS_MAX else 0


def count_start(path: Path, at_least: int = 0, disk: Disk | None = None) -> int:
    """Return one more than the larger of the file's count and `at_least`, after making the new
    count durable in the file. Raises StoreError: the disk cannot be written to.
    """
    disk = disk or LocalDisk()
    starts = min(max(read_start_count(path, disk), at_least) + 1, STARTS_MAX)
    new = path.with_suffix(".new")
    with disk_errors("counting this start", path):
        disk.write(new, memoryview(f"{starts}\n".encode()))
        disk.sync(new)
        disk.replace(new, path)
        disk.sync_directory(path.parent)
    return starts
