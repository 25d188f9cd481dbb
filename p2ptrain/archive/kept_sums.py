"""The sums that this node and its neighbours signed in the newest reduces, on disk.

If an average turns out to be wrong, the statements of its participants show who made it wrong
(`p2ptrain.proofs.sum_tracing`). A participant that does not show what was signed to it is named
itself, so its statements must survive a restart. They are kept as long as contributions are.

The log keeps the digests of segments, not the sums: about 100 bytes for each MiB of the update.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class SignedReduce:
    """The signed sums of the reduce that the entry `roster` opened, in outer step `step`."""

    step: int
    roster: Digest
    runs: tuple[SignedRun, ...]


class KeptSums:
    """The signed sums of the newest reduces. Any thread may call any method."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        """A damaged log is replaced by an empty one: it only explains the past. Raises
        StoreError."""
        self._lock = threading.Lock()
        """Guards `_reduces`. It is never held while the disk is written: the event loop waits for
        it."""
        self._writing = threading.Lock()
        self._reduces: dict[Digest, SignedReduce] = {}
        self.damage = ""
        """Why the log on disk could not be read; "" if it could."""
        try:
            self._log = RecordLog(path, disk=disk)
            self._reduces = {each.roster: each for each in map(_from_record, self._log)}
        except P2PTrainError as exc:
            self.damage = exc.what
            path.unlink(missing_ok=True)
            self._log = RecordLog(path, disk=disk)

    def note(self, reduce: SignedReduce) -> None:
        """Keep `reduce` in memory. Forget old reduces."""
        with self._lock:
            self._reduces[reduce.roster] = reduce
            kept = [it for it in self._reduces.values() if it.step >= reduce.step - KEPT_STEPS]
            self._reduces = {each.roster: each for each in kept[-REDUCES_KEPT:]}

    def save(self) -> None:
        """Write to disk durably what is kept. Raises StoreError."""
        with self._writing:
            with self._lock:
                kept = tuple(self._reduces.values())
            self._log.rewrite(map(_to_record, kept))

    def shown(self, roster: Digest, start: int, stop: int) -> tuple[SignedRun, ...]:
        """Return what is kept about the elements [start, stop) in the reduce of `roster`."""
        with self._lock:
            known = self._reduces.get(roster)
        if known is None:
            return ()
        return tuple(each for each in known.runs if each.start < stop and start < each.stop)


def _to_record(reduce: SignedReduce) -> bytes:
    runs = encode_runs(reduce.runs, bytes_max=RECORD_BYTES_MAX - 1024)
    return pack({"roster": reduce.roster, "step": reduce.step, "runs": runs})


def _from_record(record: bytes) -> SignedReduce:
    value = unpack(record, bytes_max=RECORD_BYTES_MAX)
    told = fields(value, roster=str, step=int, runs=bytes)
    roster, step, runs = told["roster"], told["step"], told["runs"]
    assert isinstance(step, int)
    assert isinstance(runs, bytes)
    if not is_digest(roster):
        raise RemoteProtocolError("a record of signed sums is malformed")
    return SignedReduce(step, Digest(str(roster)), decode_runs(runs, bytes_max=RECORD_BYTES_MAX))
