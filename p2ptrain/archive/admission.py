"""Decide which peers may take part, and in which role, according to what this node currently knows.

The run's manifest says whether the run has an allowlist. The organisers and the founders may always
train, because the run cannot start without them. The newest signed allowlist decides about the
peers that it admits or revokes. Grants of delegates admit further peers.

    admits      may connect, fetch chunks and read the ledger: trainers and readers
    may_train   may become a member, and everything else

The ledger decides who is a delegate, and this module does not know the ledger: see `set_agreed`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.home import Home
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.run import (
    READER,
    TRAINER,
    Allowlist,
    Role,
    Run,
    SignedAllowlist,
    SignedGrant,
    SignedHandOver,
    load_allowlist,
    load_amendments,
    load_grants,
    load_lists,
    load_run,
    save_allowlist,
    save_grants,
    save_hand_overs,
    save_lists,
)
from p2ptrain.run.amendment import Amendment
from p2ptrain.run.files import LISTS_MAX, hand_overs_in
from p2ptrain.run.grant import Delegations, delegations, granted_roles, grants_in, merged_grants
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
    is admitted. `me` is this node's peer; an organiser's node keeps lists that it has to merge.
    """

    def __init__(self, home: Home, me: PeerId | None = None) -> None:
        self._home = home
        self._me = me
        self._run: Run | None = None
        self._roles: dict[PeerId, Role] = {}
        self.allowlist: SignedAllowlist | None = None
        self.grants: tuple[SignedGrant, ...] = ()
        """All grants that this node has. Some may not count at present."""
        self.delegations: Delegations = {}
        """The delegates, and the amendments under which their grants count."""
        self.to_merge: tuple[SignedAllowlist, ...] = ()
        """Lists with decisions that the newest list lacks. Empty except on organisers' nodes."""

    def set_run(self, run: Run) -> None:
        """Admit peers by the rules of `run` and the documents in our home (if any) from now on.
        Until the ledger is known, all amendments in the home count as agreed."""
        self._run = run
        amendments = load_amendments(self._home.amendments, run)
        self.delegations = delegations(sorted_by_number(each.amendment for each in amendments))
        self.grants = load_grants(self._home.grants, run)
        self.to_merge = load_lists(self._home.to_merge, run) if self._is_organiser else ()
        self.reload()
        self._update()

    @property
    def run(self) -> Run:
        """The run, with the hand-overs of its organisers' keys that this node has."""
        assert self._run is not None
        return self._run

    def adopt_hand_overs(self, data: bytes) -> bool:
        """Adopt the valid hand-overs of a list that a peer sent. Return whether there were new
        ones.

        Raises:
            RemoteProtocolError: `data` is not a list of hand-overs of this run.
            StoreError: they cannot be stored, and are not adopted.
        """
        return self._adopt(hand_overs_in(data, self.run))

    def reload_hand_overs(self) -> bool:
        """Adopt the hand-overs in our home, where `p2ptrain run hand-over` writes them. Return
        whether there were new ones."""
        kept = load_run(self._home.manifest)
        return kept is not None and self._adopt(kept.hand_overs)

    def _adopt(self, offered: Iterable[SignedHandOver]) -> bool:
        after = self.run.with_hand_overs(offered)
        if after == self.run:
            return False
        with disk_errors("keeping hand-overs", self._home.hand_overs):
            save_hand_overs(self._home.hand_overs, after.hand_overs)
        self._run = after
        self._update()
        return True

    @property
    def is_open(self) -> bool:
        return self._run is not None and self._run.manifest.admission == "open"

    @property
    def organisers(self) -> tuple[PeerId, ...]:
        """The organisers of the run, its publisher first; none while the run is unknown."""
        return () if self._run is None else self._run.organisers

    def decides(self, peer: PeerId) -> bool:
        """Return whether `peer` can admit peers: it is an organiser or a delegate."""
        return peer in self.organisers or peer in self.delegations

    def admits(self, peer: PeerId) -> bool:
        """Return whether `peer` may take part, at least as a reader. May be called from any
        thread."""
        return self.is_open or peer in self._roles

    def may_train(self, peer: PeerId) -> bool:
        """Return whether `peer` may become a member. May be called from any thread."""
        return self.is_open or self._roles.get(peer) == TRAINER

    def is_reader(self, peer: PeerId) -> bool:
        """Return whether `peer` is admitted, but may not train."""
        return not self.is_open and self._roles.get(peer) == READER

    def names(self, peer: PeerId) -> bool:
        """Return whether the run's manifest, the allowlist or a grant names `peer`. In an open run,
        peers that are not named may take part too.
        """
        return peer in self._roles

    def is_revoked(self, peer: PeerId) -> bool:
        """Return whether the allowlist says that delegates cannot admit `peer`."""
        return self.allowlist is not None and peer in self.allowlist.allowlist.revoked

    def members_allowed(self) -> Container[PeerId]:
        """Return which peers may be members, for the ledger."""
        if self.is_open:
            return ALL_PEERS
        return frozenset(peer for peer, role in self._roles.items() if role == TRAINER)

    def set_agreed(self, amendments: Iterable[Amendment]) -> bool:
        """Let the delegates be those of `amendments`. Return whether that changes who they are."""
        before, self.delegations = self.delegations, delegations(sorted_by_number(amendments))
        self._update()
        return before != self.delegations

    def adopt_if_newer(self, data: bytes) -> bool:
        """Adopt a list that a peer sent if it is newer than ours. Return whether it was.

        An organiser's node keeps a list that loses, if it contains decisions that the other list
        lacks.

        Raises:
            RemoteProtocolError, RunMismatch: `data` is not an allowlist of this run.
            StoreError: the list cannot be stored. It is not adopted, because a restart would return
                to the older list.
        """
        assert self._run is not None
        offered = SignedAllowlist.from_bytes(data, self._run)
        if self.allowlist is not None and self.allowlist.signed.digest == offered.signed.digest:
            return False
        is_newer = offered.replaces(self.allowlist)
        if not is_newer and not self._is_organiser:
            return False
        winner = offered if is_newer or self.allowlist is None else self.allowlist
        # Store the list that loses before the winner replaces it on disk.
        self._keep_to_merge([self.allowlist, offered], winner.allowlist)
        if not is_newer:
            return False
        with disk_errors("keeping the allowlist", self._home.allowlist):
            save_allowlist(self._home.allowlist, offered)
        self._use(offered)
        return True

    def adopt_grants(self, data: bytes) -> bool:
        """Adopt grants that a peer sent if they count. Return whether this node has more than
        before.

        Raises:
            RemoteProtocolError, RunMismatch: `data` is not a list of grants for this run.
            StoreError: the grants cannot be stored, and are not adopted.
        """
        assert self._run is not None
        offered = [each for each in grants_in(data, self._run) if each.counts(self.delegations)]
        after = merged_grants(self.grants, offered, self.delegations)
        if after == self.grants:
            return False
        # Do not overwrite what `p2ptrain peers approve` wrote.
        kept = load_grants(self._home.grants, self._run)
        after = merged_grants(after, kept, self.delegations)
        with disk_errors("keeping grants", self._home.grants):
            save_grants(self._home.grants, after)
        self.grants = after
        self._update()
        return True

    def adopt_granted(self, grants: bytes, amendments: bytes) -> None:
        """Adopt `grants` and the `amendments` that name their delegates, before the ledger is
        known: all amendments count as agreed. The organisers have signed them; when the ledger is
        current, `set_agreed` corrects a mistake.

        Raises as `adopt_grants` does.
        """
        assert self._run is not None
        known = Amendments.of(self._home, self._run)
        if amendments and known.adopt_new(amendments):
            self.set_agreed(each.amendment for each in known.held)
        self.adopt_grants(grants)

    def reload(self) -> bool:
        """Adopt a newer list from our home, where `p2ptrain peers` writes it. Return whether there
        was one.
        """
        assert self._run is not None
        kept = load_allowlist(self._home.allowlist, self._run)
        if kept is None or not kept.replaces(self.allowlist):
            return False
        self._keep_to_merge([self.allowlist], kept.allowlist)
        self._use(kept)
        return True

    def reload_grants(self) -> bool:
        """Adopt further grants from our home, where `p2ptrain peers approve` writes them. Return
        whether there were any.
        """
        assert self._run is not None
        kept = load_grants(self._home.grants, self._run)
        before, self.grants = self.grants, merged_grants(self.grants, kept, self.delegations)
        self._update()
        return before != self.grants

    @property
    def _is_organiser(self) -> bool:
        """Whether this is the node of one of several organisers."""
        return len(self.organisers) > 1 and self._me in self.organisers

    def _keep_to_merge(self, lists: Iterable[SignedAllowlist | None], winner: Allowlist) -> None:
        """Keep those of `lists`, and of the lists kept before, that `winner` does not cover."""
        if not self._is_organiser:
            return
        known = {each.signed.digest: each for each in (*self.to_merge, *lists) if each is not None}
        lacking = [each for each in known.values() if not winner.covers(each.allowlist)]
        after = tuple(lacking[-LISTS_MAX:])
        if after != self.to_merge:
            with disk_errors("keeping lists to merge", self._home.to_merge):
                save_lists(self._home.to_merge, after)
            self.to_merge = after

    def _use(self, allowlist: SignedAllowlist) -> None:
        self.allowlist = allowlist
        self._update()

    def would_admit(self, peer: PeerId, amendments: Iterable[Amendment]) -> bool:
        """Return whether `peer` would be admitted if the delegates were those of `amendments`."""
        return self.is_open or peer in self._under(delegations(sorted_by_number(amendments)))

    def _update(self) -> None:
        """Compute all peers' roles anew."""
        if self._run is not None:
            self._roles = self._under(self.delegations)

    def _under(self, delegated: Delegations) -> dict[PeerId, Role]:
        """Return the role of each peer. The organisers decide before the delegates."""
        assert self._run is not None
        roles = granted_roles(self.grants, delegated)
        if self.allowlist is not None:
            listed = self.allowlist.allowlist
            roles = {peer: role for peer, role in roles.items() if peer not in listed.revoked}
            roles |= listed.roles
        always = (*self.organisers, *self._run.manifest.founders)
        return roles | dict.fromkeys(always, TRAINER)


def sorted_by_number(amendments: Iterable[Amendment]) -> list[Amendment]:
    """Return `amendments`, the oldest first."""
    return sorted(amendments, key=lambda each: each.number)
