"""What this node and its neighbours signed in the newest reduces, on disk.

If an average turns out to be wrong, the statements of its participants show who made it wrong
(`p2ptrain.proofs.sum_tracing`). A participant that does not show what was signed to it is named
itself, so its statements must survive a restart. They are kept as long as contributions are.

The log keeps the digests of segments, not the sums: about 100 bytes for each MiB of the update.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from p2ptrain.archive.own_claims import KEPT_STEPS
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import P2PTrainError, RemoteProtocolError
from p2ptrain.ids import Digest, is_digest
from p2ptrain.proofs.signed_sums import decode_runs, encode_runs
from p2ptrain.ring import SignedRun
from p2ptrain.store import Disk, RecordLog

REDUCES_KEPT = 8
"""Maximum number of reduces that are kept. Only complete reduces count, and an outer step seldom
has more than one of them."""

RECORD_BYTES_MAX = 1 << 26
"""Maximum size of a record: enough for an update of 500 GB."""


class KeptSums:
    """The signed sums of the newest reduces. Any thread may call any method."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        """A damaged log is replaced by an empty one: it only explains the past. Raises
        StoreError."""
        self._lock = threading.Lock()
        self._reduces: dict[Digest, tuple[int, tuple[SignedRun, ...]]] = {}
        self._path, self._disk = path, disk
        self._log: RecordLog | None = None
        try:
            self._log = RecordLog(path, disk=disk)
            self._reduces = dict(map(_from_record, self._log))
        except P2PTrainError:
            self._reduces = {}

    def note(self, step: int, roster: Digest, runs: Sequence[SignedRun]) -> None:
        """Keep what was signed in the reduce of `roster`, in memory. Forget old reduces."""
        with self._lock:
            self._reduces[roster] = step, tuple(runs)
            old = [each for each, (at, _) in self._reduces.items() if at < step - KEPT_STEPS]
            for each in [*old, *list(self._reduces)[:-REDUCES_KEPT]]:
                self._reduces.pop(each, None)

    def save(self) -> None:
        """Write to disk durably what is kept. Raises StoreError."""
        with self._lock:
            if self._log is not None:
                self._log.rewrite([_to_record(*each) for each in self._reduces.items()])

    def shown(self, roster: Digest, start: int, stop: int) -> tuple[SignedRun, ...]:
        """Return what is kept about the elements [start, stop) in the reduce of `roster`."""
        with self._lock:
            _, runs = self._reduces.get(roster, (0, ()))
        return tuple(each for each in runs if each.start < stop and start < each.stop)


def _to_record(roster: Digest, kept: tuple[int, tuple[SignedRun, ...]]) -> bytes:
    step, runs = kept
    told = encode_runs(runs, bytes_max=RECORD_BYTES_MAX - 1024)
    return pack({"roster": roster, "step": step, "runs": told})


def _from_record(record: bytes) -> tuple[Digest, tuple[int, tuple[SignedRun, ...]]]:
    value = unpack(record, bytes_max=RECORD_BYTES_MAX)
    told = fields(value, roster=str, step=int, runs=bytes)
    roster, step, runs = told["roster"], told["step"], told["runs"]
    assert isinstance(step, int)
    assert isinstance(runs, bytes)
    if not is_digest(roster):
        raise RemoteProtocolError("a record of signed sums is malformed")
    return Digest(str(roster)), (step, decode_runs(runs, bytes_max=RECORD_BYTES_MAX))
