"""A store in processes that are killed with SIGKILL: `python -m tests.store.killed FOLDER`.

This is a separate program because it forks one child for each write. A child runs the story of
`test_crash` on the real disk with real threads, and is killed at its write. The disk does not sync,
since the kernel keeps the writes of a killed process. The program prints its results as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from p2ptrain.store import LocalDisk, Store
from tests.store.test_crash import STEPS, check_whole, story


class KillingDisk(LocalDisk):
    """Kills its process at change number `fatal`, counted from 1: halfway through a write, or
    before any other change. If `fatal` is 0, it kills no process.
    """

    def __init__(self, fatal: int = 0) -> None:
        self.fatal, self.count = fatal, 0
        self._counting = threading.Lock()

    def _is_fatal(self) -> bool:
        with self._counting:
            self.count += 1
            return self.count == self.fatal

    def _pass(self) -> None:
        if self._is_fatal():
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, path: Path, data: memoryview) -> None:
        if self._is_fatal():
            super().write(path, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self._pass()

    def sync_directory(self, path: Path) -> None:
        self._pass()

    def replace(self, source: Path, target: Path) -> None:
        self._pass()
        super().replace(source, target)

    def remove(self, path: Path) -> None:
        self._pass()
        super().remove(path)


class Told(list[int]):
    """A list of the finished steps. The last finished step is also written to a file, which
    survives SIGKILL.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, step: int) -> None:
        super().append(step)
        self._path.write_text(str(step))


def tell(folder: Path, disk: LocalDisk) -> None:
    with Store(folder / "store", disk=disk, chunk_bytes=1024) as store:
        story(store, Told(folder / "finished"))


def killed_at(folder: Path, point: int) -> tuple[bool, int]:
    """Run a child that is killed at this write. Return whether SIGKILL ended it, and the last step
    that it had finished.
    """
    child = os.fork()
    if child == 0:
        tell(folder, KillingDisk(point))
        os.kill(
            os.getpid(), signal.SIGTERM
        )  # End the child without running the parent's exit code.
    _, status = os.waitpid(child, 0)
    told = folder / "finished"
    return os.WTERMSIG(status) == signal.SIGKILL, int(told.read_text()) if told.exists() else 0


def main(folder: Path) -> None:
    counting = KillingDisk()
    tell(folder / "whole", counting)
    found = []
    for point in range(1, counting.count + 1):
        (folder / "killed").mkdir()
        was_killed, finished = killed_at(folder / "killed", point)
        after = KillingDisk()  # kills no process
        with Store(folder / "killed" / "store", disk=after, chunk_bytes=1024) as store:
            found.append([was_killed, finished, check_whole(store, finished)])
        shutil.rmtree(folder / "killed")
    json.dump({"points": counting.count, "steps": STEPS, "found": found}, sys.stdout)


if __name__ == "__main__":
    (Path(sys.argv[1]) / "whole").mkdir()
    main(Path(sys.argv[1]))
