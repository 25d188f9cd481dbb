"""Decide which peers may take part, according to what this node currently knows.

The run's manifest says whether the run has an allowlist; the newest signed allowlist names the
peers. The organiser and the founders are always admitted, because the run cannot start without
them.
"""

from __future__ import annotations

from collections.abc import Container

from p2ptrain.archive.home import Home
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.run import Run, SignedAllowlist, load_allowlist, save_allowlist
from p2ptrain.store.disk import disk_errors


class _AllPeers:
    """The set of all valid peer ids. Without this check, a malicious proposer could get other texts
    into the ledger as names of members.
    """

    def __contains__(self, name: object) -> bool:
        return is_peer_id(name)


ALL_PEERS: Container[PeerId] = _AllPeers()


class Admission:
    """The admission rules of a node's run. Until `set_run` is called, the run is unknown and nobody
    is admitted.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._run: Run | None = None
        self._always: frozenset[PeerId] = frozenset()
        self._listed: frozenset[PeerId] = frozenset()
        self.allowlist: SignedAllowlist | None = None

    def set_run(self, run: Run) -> None:
        """Admit peers by the rules of `run` and the allowlist in our home (if any) from now on."""
        self._run = run
        self._always = frozenset((run.manifest.organiser, *run.manifest.founders))
        self.reload()

    @property
    def is_open(self) -> bool:
        return self._run is not None and self._run.manifest.admission == "open"

    def admits(self, peer: PeerId) -> bool:
        """Return whether `peer` may take part. May be called from any thread."""
        return self.is_open or self.names(peer)

    def names(self, peer: PeerId) -> bool:
        """Return whether the run's manifest or allowlist names `peer`. In an open run, peers that
        are not named may take part too.
        """
        return peer in self._always or peer in self._listed

    def members_allowed(self) -> Container[PeerId]:
        """Return which peers may be members, for the ledger."""
        return ALL_PEERS if self.is_open else self._always | self._listed

    def adopt_if_newer(self, data: bytes) -> bool:
        """Adopt a list that a peer sent if it is newer than ours. Return whether it was.

        Raises:
            RemoteProtocolError, RunMismatch: `data` is not an allowlist of this run.
            StoreError: the list cannot be stored. It is not adopted, because a restart would return
                to the older list.
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
        """Adopt a newer list from our home, where `p2ptrain allow` writes it. Return whether there
        was one.
        """
        assert self._run is not None
        kept = load_allowlist(self._home.allowlist, self._run)
        if kept is None or not kept.replaces(self.allowlist):
            return False
        self._use(kept)
        return True

    def _use(self, allowlist: SignedAllowlist) -> None:
        self.allowlist = allowlist
        self._listed = frozenset(allowlist.allowlist.peers)
