"""The ledger as a file, of a home or exported: read without touching it, checked from where it
begins: at genesis, or at a base where the entries before were pruned.

A node may be appending to the log meanwhile, so it is opened by a disk that only reads: what
follows the last sound record is left where it is, and not looked at.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from p2ptrain.archive.chain_log import ORIGIN_BYTES_MAX, Origin, entry_of, origin_of
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.identity import verify
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, genesis
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.ledger.chain.verify import check_certified
from p2ptrain.ledger.history.base import Checkpoint
from p2ptrain.store import OpenFile, RecordLog
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

    def opened(self, path: Path) -> OpenFile:
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


class EntryBroken(StoreError):
    """An entry that does not verify: where it stands and, if it can be read, who signed it."""

    default_code = "LEDGER-BROKEN"

    def __init__(
        self, source: Path, before: LedgerState, good: int, found: Certified | None, reason: str
    ) -> None:
        height = before.height + 1
        super().__init__(
            f"entry {height} of the ledger in {source} does not verify",
            evidence=[reason, f"the {good} entries before it are good"],
            likely="the file is damaged or was altered, or it belongs to another run",
            do="export it anew; in a home, move ledger.log away: the node fetches it from its "
            "peers",
        )
        self.height = height
        self.step = before.step
        self.entry = None if found is None else found.entry.digest
        self.signed_by = () if found is None else tuple(sorted(found.certificate.voters))


@dataclass(slots=True)
class Walk:
    """A chain, one entry after the other, of which nothing is kept: each certificate is verified,
    from the run's manifest on, or from the chain's base.

    Raises StoreError on making, if a base cannot be read; EntryBroken from `links`, for the first
    entry that is wrong.
    """

    rules: Rules
    records: Iterable[bytes]
    source: Path
    origin: Origin | None = field(init=False, default=None)
    begins: LedgerState = field(init=False)
    state: LedgerState = field(init=False)
    """After the `good` entries that were looked at so far."""
    good: int = field(init=False, default=0)
    _first: list[bytes] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.begins = genesis(self.rules)
        self.records = iter(self.records)
        self._first = list(itertools.islice(self.records, 1))
        try:
            self.origin = origin_of(self._first[0]) if self._first else None
        except RemoteProtocolError as exc:
            raise EntryBroken(self.source, self.begins, 0, None, exc.what) from exc
        if self.origin is not None:
            self.begins = self.origin.base.state
        self.state = self.begins

    def links(self) -> Iterator[Link]:
        for record in itertools.chain(self._first, self.records):
            certified: Certified | None = None
            try:
                certified = self._read(record)
                after = check_certified(self.rules, self.state, certified, verify)
            except RemoteProtocolError as exc:
                raise EntryBroken(self.source, self.state, self.good, certified, exc.what) from exc
            before, self.state, self.good = self.state, after, self.good + 1
            yield Link(certified, before, after)

    def _read(self, record: bytes) -> Certified:
        if self.good == 0 and self.origin is not None:
            return self.origin.base.commit
        return entry_of(record)


def checked(rules: Rules, records: Iterable[bytes], source: Path) -> Checked:
    """The whole chain at once. Raises StoreError with code LEDGER-BROKEN, as `Walk` does."""
    walk = Walk(rules, records, source)
    return Checked(walk.origin, list(walk.links()))
