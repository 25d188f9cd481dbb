"""The files that a node keeps across restarts, and the lock that prevents a second node.

HOME/identity.key          the peer's secret
HOME/run/manifest.signed   the run, as its organiser signed it
HOME/run/allowlist.signed  the newest allowlist that was received
HOME/run/amendments.signed all amendments to the run that were received
HOME/run/agreed            the run that the user agreed to
HOME/ledger.log            certified entries          HOME/votes.log   our promises and votes
HOME/evidence.log          proofs that a voter lied
HOME/store/                chunks, snapshots, updates
HOME/inner/                the trainer's optimizer state, 8 bytes per parameter
HOME/ranks.secret          for ranks that torchrun starts; copy it to their hosts
HOME/halving.json          how many sequences fit in memory; written if memory ran out
HOME/starts                how many times this identity was started
HOME/peers.json            addresses of peers met before
HOME/journal.jsonl         log of events              HOME/control.sock  for `p2ptrain status`
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from p2ptrain.archive.home_safety import refuse_unsafe_home
from p2ptrain.errors import IdentityInUse
from p2ptrain.suggested_command import to_paste


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one node's files. Constructing a Home creates its folders, which only this user
    can read.
    """

    root: Path

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.run.mkdir(exist_ok=True, mode=0o700)

    def refuse_if_unsafe(self) -> None:
        """Raise ConfigError (HOME-UNSAFE) if another user could write to this home."""
        refuse_unsafe_home(self.root, (self.run, self.store, self.inner))

    @property
    def identity(self) -> Path:
        return self.root / "identity.key"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def manifest(self) -> Path:
        return self.run / "manifest.signed"

    @property
    def allowlist(self) -> Path:
        return self.run / "allowlist.signed"

    @property
    def amendments(self) -> Path:
        return self.run / "amendments.signed"

    @property
    def agreed(self) -> Path:
        return self.run / "agreed"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.log"

    @property
    def inner(self) -> Path:
        return self.root / "inner"

    @property
    def ranks_secret(self) -> Path:
        return self.root / "ranks.secret"

    @property
    def halving(self) -> Path:
        return self.root / "halving.json"

    @property
    def votes(self) -> Path:
        return self.root / "votes.log"

    @property
    def evidence(self) -> Path:
        return self.root / "evidence.log"

    @property
    def peers(self) -> Path:
        return self.root / "peers.json"

    @property
    def starts(self) -> Path:
        return self.root / "starts"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def control(self) -> Path:
        return self.root / "control.sock"


@contextmanager
def sole_use(home: Home) -> Iterator[None]:
    """Lock the home against a second node on this machine.

    Two nodes with the same identity would vote twice. The kernel releases the lock when the process
    ends, so nothing needs to be cleaned up after a crash.

    Raises:
        ConfigError: another user could write to this home.
        IdentityInUse: another process holds the lock; the evidence names its process id.
    """
    home.refuse_if_unsafe()
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(home.root / "lock", flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise IdentityInUse(
                f"a node is already running in {home.root}",
                evidence=[f"its process id is {holder}"],
                likely="it was started earlier and is still running",
                do=f"{to_paste(home.root, 'status')}; or use a different --home for this node",
            ) from exc
        # The process id is only for display. On a full disk, a process that frees space must still
        # be able to start.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
