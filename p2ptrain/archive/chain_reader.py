"""Read and verify a ledger file, in a home or exported, without changing it. Verification starts at
genesis, or at a base (see `chain_log`) if earlier entries were pruned.

A node may be appending to the log at the same time, so the log is opened read-only: anything after
the last intact record is ignored and not truncated.
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
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.ledger.chain.verify import check_certified
from p2ptrain.ledger.history.base import Checkpoint
from p2ptrain.store import OpenFile, RecordLog
from p2ptrain.store.disk import LocalDisk


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """A verified entry, and the ledger's states before and after it."""

    certified: Certified
    before: LedgerState
    after: LedgerState


@dataclass(frozen=True, slots=True)
class CheckedChain:
    """A verified chain, which starts at its `origin` (None for genesis). Whether the origin belongs
    to the run was not verified.
    """

    origin: Origin | None
    links: list[CheckedEntry]

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest Commit at which a newcomer can start if it trusts the user of this node."""
        for link in reversed(self.links):
            entry = link.certified.entry
            if isinstance(entry.value, Commit) and entry.value.state is not None:
                return Checkpoint(entry.height, entry.digest)
        return None


class ReadOnlyDisk(LocalDisk):
    """The file system of this machine, read-only."""

    def truncate(self, path: Path, size: int) -> None:
        """Do nothing, because the tail may be a record that is being written."""

    def sync(self, path: Path) -> None:
        """Do nothing, because nothing was written here. A node makes its own data durable."""

    sync_directory = sync

    def write(self, path: Path, data: memoryview) -> None:
        raise _refused(path)

    def opened(self, path: Path) -> OpenFile:
        raise _refused(path)

    def replace(self, source: Path, target: Path) -> None:
        raise _refused(target)

    def remove(self, path: Path) -> None:
        raise _refused(path)


def _refused(path: Path) -> OSError:
    return OSError(errno.EROFS, "this file is opened read-only", str(path))


def records_in(log: Path) -> Iterator[bytes]:
    """Yield the records of a node's log, oldest first. If there is no log yet, yield nothing.

    Raises StoreError with code LOG-CORRUPT if the log is damaged in the middle.
    """
    if log.exists():
        yield from RecordLog(log, disk=ReadOnlyDisk())


def lines_in(file: Path) -> Iterator[bytes]:
    """Yield the records of an exported file, which has one record per line."""
    with file.open("rb") as lines:
        while line := lines.readline(ORIGIN_BYTES_MAX + 2):
            yield line.rstrip(b"\r\n")


class EntryBroken(StoreError):
    """An entry is invalid. `height` and `step` are its position; `entry` is its digest and
    `signed_by` are its signers, if it can be decoded.
    """

    default_code = "LEDGER-BROKEN"

    def __init__(
        self, source: Path, before: LedgerState, good: int, found: Certified | None, reason: str
    ) -> None:
        height = before.height + 1
        super().__init__(
            f"entry {height} of the ledger in {source} does not verify",
            evidence=[reason, f"valid entries before it: {good}"],
            likely="the file is damaged, was altered, or belongs to a different run",
            do=(
                "export the ledger again; in a home, move ledger.log away, and the node fetches "
                "it from its peers"
            ),
        )
        self.height = height
        self.step = before.step
        self.entry = None if found is None else found.entry.digest
        self.signed_by = () if found is None else tuple(sorted(found.certificate.voters))


@dataclass(slots=True)
class ChainVerifier:
    """Verifies a chain one entry after another, starting from the run's manifest or the chain's
    base, without keeping the entries in memory.

    The constructor raises EntryBroken if the base cannot be read. `links` raises EntryBroken for
    the first invalid entry. Both raise StoreError if `records` does.
    """

    rules: Rules
    records: Iterable[bytes]
    source: Path
    origin: Origin | None = field(init=False, default=None)
    begins: LedgerState = field(init=False)
    state: LedgerState = field(init=False)
    """The state after the `good` entries verified so far."""
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

    def links(self) -> Iterator[CheckedEntry]:
        for record in itertools.chain(self._first, self.records):
            certified: Certified | None = None
            try:
                certified = self._read(record)
                after = check_certified(self.rules, self.state, certified, verify)
            except RemoteProtocolError as exc:
                raise EntryBroken(self.source, self.state, self.good, certified, exc.what) from exc
            before, self.state, self.good = self.state, after, self.good + 1
            yield CheckedEntry(certified, before, after)

    def _read(self, record: bytes) -> Certified:
        if self.good == 0 and self.origin is not None:
            return self.origin.base.commit
        return entry_of(record)


def checked(rules: Rules, records: Iterable[bytes], source: Path) -> CheckedChain:
    """Verify the whole chain. Raises EntryBroken as `ChainVerifier` does, and StoreError."""
    walk = ChainVerifier(rules, records, source)
    return CheckedChain(walk.origin, list(walk.links()))
