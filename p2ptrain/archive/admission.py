"""Who may take part, as this node knows it now.

The run's manifest says whether there is a list at all; the newest signed list says who is on it.
The organiser and the founders belong always: a run cannot lock out those who must begin it.
"""

from __future__ import annotations

from collections.abc import Container

from p2ptrain.archive.home import Home
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.run import Run, SignedAllowlist, load_allowlist, save_allowlist
from p2ptrain.store.disk import disk_errors


class _AllPeers:
    """Whoever has a key: a lying proposer could have other names agreed on."""

    def __contains__(self, name: object) -> bool:
        return is_peer_id(name)


ALL_PEERS: Container[PeerId] = _AllPeers()


class Admission:
    """`run` is None until this node has learned which run it serves; then nobody is admitted."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._run: Run | None = None
        self._always: frozenset[PeerId] = frozenset()
        self._listed: frozenset[PeerId] = frozenset()
        self.allowlist: SignedAllowlist | None = None

    def enter(self, run: Run) -> None:
        """From now on admit by this run, with the list that our home has, if it has one."""
        self._run = run
        self._always = frozenset((run.manifest.organiser, *run.manifest.founders))
        kept = load_allowlist(self._home.allowlist, run)
        if kept is not None:
            self._use(kept)

    @property
    def is_open(self) -> bool:
        return self._run is not None and self._run.manifest.admission == "open"

    def admits(self, peer: PeerId) -> bool:
        """Whether `peer` may take part. May be asked from any thread."""
        return self.is_open or self.names(peer)

    def names(self, peer: PeerId) -> bool:
        """Whether the run's manifest or its list names `peer`. In an open run few are named."""
        return peer in self._always or peer in self._listed

    def members_allowed(self) -> Container[PeerId]:
        """What the ledger is told: who may be a member."""
        return ALL_PEERS if self.is_open else self._always | self._listed

    def consider(self, data: bytes) -> bool:
        """Take a list that somebody sent, if it is newer than ours. Whether it was.

        Raises:
            RemoteProtocolError, RunMismatch: it is no list of this run.
            StoreError: it cannot be kept, and a restart would go back to an older one.
        """
        assert self._run is not None
        offered = SignedAllowlist.from_bytes(data, self._run)
        if not offered.replaces(self.allowlist):
            return False
        with disk_errors("keeping the allowlist", self._home.allowlist):
            save_allowlist(self._home.allowlist, offered)
        self._use(offered)
        return True

    def reload(self) -> bool:
        """Look whether a newer list lies in our home, where the organiser's tool puts it."""
        assert self._run is not None
        kept = load_allowlist(self._home.allowlist, self._run)
        if kept is None or not kept.replaces(self.allowlist):
            return False
        self._use(kept)
        return True

    def _use(self, allowlist: SignedAllowlist) -> None:
        self.allowlist = allowlist
        self._listed = frozenset(allowlist.allowlist.peers)
