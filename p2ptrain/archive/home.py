"""A node's home: the files that a node keeps across restarts, and the lock that prevents a second
node.
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
    which only this user can read. Without `to_make`, nothing is created.
    """

    def __init__(self, root: Path, *, to_make: bool = True) -> None:
        self.root: Final = root
        self.identity: Final = root / "identity.key"  # the peer's secret
        self.run: Final = root / "run"
        self.manifest: Final = self.run / "manifest.signed"  # the run, as its organiser signed it
        self.allowlist: Final = self.run / "allowlist.signed"  # the newest one that was received
        self.amendments: Final = self.run / "amendments.signed"  # all that were received
        self.denials: Final = self.run / "denials.signed"  # that the organiser signed here
        self.grants: Final = self.run / "grants.signed"  # of delegates, all that were received
        self.hand_overs: Final = self.run / "hand-overs.signed"  # of the organisers' keys
        self.to_merge: Final = self.run / "to-merge.signed"  # allowlists that lost to another one
        self.token_uses: Final = self.run / "token-uses"  # the peers that each token admitted
        self.signing: Final = self.run / "signing.lock"  # held while an allowlist is signed
        self.agreed: Final = self.run / "agreed"  # the run that the user agreed to
        self.ledger: Final = root / "ledger.log"  # certified entries
        self.votes: Final = root / "votes.log"  # the promises and votes of this node
        self.claims: Final = root / "claims.log"  # this node's claims about its contributions
        self.sums: Final = root / "sums.log"  # what was signed in the newest reduces
        self.evidence: Final = root / "evidence.log"  # proofs that a voter lied
        self.store: Final = root / "store"  # chunks, snapshots, updates
        self.inner: Final = root / "inner"  # the trainer's optimizer state, 8 bytes per parameter
        self.ranks_secret: Final = root / "ranks.secret"  # to be copied to the hosts of torchrun
        self.halving: Final = root / "halving.json"  # how many sequences at once fit in memory
        self.availability: Final = root / "availability.json"  # pauses, a schedule and limits
        self.usage: Final = root / "usage.json"  # bytes of bulk data that were moved today
        self.starts: Final = root / "starts"  # how many times this identity was started
        self.peers: Final = root / "peers.json"  # addresses of peers met before
        self.journal: Final = root / "journal.jsonl"  # log of events
        self.series: Final = root / "series.db"  # the history of the run, for charts
        self.control: Final = root / "control.sock"  # the socket of `p2ptrain status`
        self.page: Final = root / "page.json"  # where the node's page is served
        self.page_token: Final = root / "page.token"  # what the page's actions need
        self.notify: Final = root / "notify.json"  # where messages to the owner go
        self.notify_state: Final = root / "notify-state.json"  # what the sender has sent
        self.notify_lock: Final = root / "notify.lock"  # held by the process that sends them
        self.lock: Final = root / "lock"  # held by the process that uses this home
        if to_make:
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
    descriptor = os.open(home.lock, flags, 0o600)
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


def is_in_use(lock: Path) -> bool:
    """Return whether a process has locked the home with this lock file, according to /proc/locks.
    Taking the lock, even briefly, could make a node fail that starts at the same time.
    """
    try:
        inode = lock.stat().st_ino
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return False
    return any("FLOCK" in words and words[-3].endswith(f":{inode}") for words in locks)


@contextmanager
def signing_allowlist(home: Home) -> Iterator[None]:
    """Hold the home's lock for signing allowlists. The organiser's tool and node might otherwise
    sign two lists with the same number at the same time. Both hold it for some milliseconds."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(home.signing, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
