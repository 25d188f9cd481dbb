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
HOME/halving.json          how many sequences at once fit in memory; written if memory ran out
HOME/starts                how many times this identity was started
HOME/peers.json            addresses of peers met before
HOME/journal.jsonl         log of events              HOME/control.sock  for `p2ptrain status`
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from p2ptrain.archive.home_safety import refuse_unsafe_home
from p2ptrain.errors import IdentityInUse
from p2ptrain.suggested_command import to_paste


class Home:
    """The paths of one node's files. Constructing a Home creates the folders `root` and `run`,
    which only this user can read.
    """

    def __init__(self, root: Path) -> None:
        self.root: Final = root
        self.identity: Final = root / "identity.key"
        self.run: Final = root / "run"
        self.manifest: Final = self.run / "manifest.signed"
        self.allowlist: Final = self.run / "allowlist.signed"
        self.amendments: Final = self.run / "amendments.signed"
        self.agreed: Final = self.run / "agreed"
        self.ledger: Final = root / "ledger.log"
        self.votes: Final = root / "votes.log"
        self.evidence: Final = root / "evidence.log"
        self.store: Final = root / "store"
        self.inner: Final = root / "inner"
        self.ranks_secret: Final = root / "ranks.secret"
        self.halving: Final = root / "halving.json"
        self.starts: Final = root / "starts"
        self.peers: Final = root / "peers.json"
        self.journal: Final = root / "journal.jsonl"
        self.control: Final = root / "control.sock"
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.run.mkdir(exist_ok=True, mode=0o700)

    def refuse_if_unsafe(self) -> None:
        """Raise ConfigError (HOME-UNSAFE) if another user could write to this home."""
        refuse_unsafe_home(self.root, (self.run, self.store, self.inner))


@contextmanager
def sole_use(home: Home) -> Iterator[None]:
    """Lock the home against a second node on this machine: two nodes with the same identity would
    vote twice. The kernel releases the lock when the process ends, even after a crash.

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
        # The process id is only for display. If the disk is full, it cannot be written, but a
        # process that frees space must still be able to start.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
