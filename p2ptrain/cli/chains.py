"""The ledger as a file, of a home or exported: read without touching it, checked from where it
begins: at genesis, or at a base where the entries before were pruned.

A node may be appending to the log meanwhile, so it is opened by a disk that only reads: what
follows the last sound record is left where it is, and not looked at.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.identity import verify
from p2ptrain.ledger.base import Checkpoint
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import LedgerState, genesis
from p2ptrain.ledger.values import Certified, Commit
from p2ptrain.ledger.verify import check_certified
from p2ptrain.node.chain_file import ORIGIN_BYTES_MAX, Origin, entry_of, origin_of
from p2ptrain.store import RecordLog
from p2ptrain.store.disk import LocalDisk


@dataclass(frozen=True, slots=True)
class Link:
    """An entry that has been checked, and the states around it."""

    certified: Certified
    before: LedgerState
    after: LedgerState


@dataclass(frozen=True, slots=True)
class Checked:
    """A chain of which all is good, if what its `origin` says is; None for genesis."""

    origin: Origin | None
    links: list[Link]

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest that somebody who trusts this node's user may begin at."""
        for link in reversed(self.links):
            entry = link.certified.entry
            if isinstance(entry.value, Commit) and entry.value.state is not None:
                return Checkpoint(entry.height, entry.digest)
        return None


class ReadingDisk(LocalDisk):
    """The file system of this machine, of which nothing is changed."""

    def truncate(self, path: Path, size: int) -> None:
        """The tail may be a record that is being written."""

    def sync(self, path: Path) -> None:
        """Whoever writes makes durable."""

    def sync_directory(self, path: Path) -> None:
        """Whoever writes makes durable."""

    def write(self, path: Path, data: memoryview) -> None:
        raise _refused(path)

    def append(self, path: Path, data: memoryview) -> None:
        raise _refused(path)

    def replace(self, source: Path, target: Path) -> None:
        raise _refused(target)

    def remove(self, path: Path) -> None:
        raise _refused(path)


def _refused(path: Path) -> OSError:
    return OSError(errno.EROFS, "this file is only read", str(path))


def records_in(log: Path) -> Iterator[bytes]:
    """The records of a node's log, oldest first; none where there is no log yet.

    Raises StoreError with code LOG-CORRUPT: it is damaged in the middle.
    """
    if log.exists():
        yield from RecordLog(log, disk=ReadingDisk())


def lines_in(file: Path) -> Iterator[bytes]:
    """The entries of an exported file, one a line."""
    with file.open("rb") as lines:
        while line := lines.readline(ORIGIN_BYTES_MAX + 2):
            yield line.rstrip(b"\r\n")


def checked(rules: Rules, records: Iterable[bytes], source: Path) -> Checked:
    """The whole chain, each certificate verified, from the run's manifest on, or from its base.

    Raises StoreError with code LEDGER-BROKEN, naming the first entry that is wrong.
    """
    links: list[Link] = []
    origin: Origin | None = None
    state = genesis(rules)
    for number, record in enumerate(records):
        try:
            origin = origin_of(record) if number == 0 else origin
            if number == 0 and origin is not None:
                state, certified = origin.base.state, origin.base.commit
            else:
                certified = entry_of(record)
            after = check_certified(rules, state, certified, verify)
        except RemoteProtocolError as exc:
            raise _broken(source, state.height + 1, len(links), exc) from exc
        links.append(Link(certified, state, after))
        state = after
    return Checked(origin, links)


def _broken(source: Path, height: int, good: int, exc: RemoteProtocolError) -> StoreError:
    return StoreError(
        f"entry {height} of the ledger in {source} does not verify",
        code="LEDGER-BROKEN",
        evidence=[exc.what, f"the {good} entries before it are good"],
        likely="the file is damaged or was altered, or it belongs to another run",
        do="export it anew; in a home, move ledger.log away: the node fetches it from its peers",
    )
