"""The amendments (signed changes of the run's terms) that this node has, and the run as amended in
each outer step.

Amendments can come from any peer; the organiser's signature makes them valid. They are stored on
disk before the ledger learns of them. This module does not decide which amendments apply: the
ledger's chain names those by digest. `node/gossip/amendment_gossip.py` sends and receives
amendments.
"""

from __future__ import annotations

from pathlib import Path

from p2ptrain.archive.home import Home
from p2ptrain.encoding import pack
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.terms import in_force
from p2ptrain.ledger.chain.values import Terms
from p2ptrain.run import Leg, Run, SignedAmendment, load_amendments, save_amendments
from p2ptrain.run.files import AMENDMENTS_MAX, amendments_in
from p2ptrain.store.disk import disk_errors

Agreed = tuple[Terms, ...]
"""The amendments that a chain agreed on, in the chain's order: `LedgerState.terms`."""

KEPT_STEPS = 8
"""Number of earlier outer steps whose bounds on influence an outer step accepts besides its own. A
peer that missed one of those steps contributes its work now. Older work must meet the same bounds.
"""


class Amendments:
    """The amendments that this node has. The legs (the run as amended from an outer step on, see
    `run.amendment`) are computed once for each list of agreed amendments.
    """

    def __init__(self, run: Run, path: Path) -> None:
        """Load the amendments at `path`. Raises ConfigError if the file is malformed."""
        self._run = run
        self._path = path
        self._held = {each.digest: each for each in load_amendments(path, run)}
        self._legs: tuple[Agreed, tuple[Leg, ...]] = ((), (Leg(run.manifest),))

    @classmethod
    def of(cls, home: Home, run: Run) -> Amendments:
        return cls(run, home.amendments)

    def use_run(self, run: Run) -> None:
        """Check amendments with the organisers' keys of `run` from now on."""
        self._run = run

    @property
    def held(self) -> tuple[SignedAmendment, ...]:
        """All amendments that this node has, sorted by number."""
        return tuple(
            sorted(self._held.values(), key=lambda each: (each.amendment.number, each.digest))
        )

    @property
    def terms(self) -> frozenset[Terms]:
        """The terms on which this node's ledger may agree: those that it can send to other
        peers."""
        return frozenset(each.terms for each in self._held.values())

    def get(self, digest: Digest) -> SignedAmendment | None:
        return self._held.get(digest)

    def to_bytes(self, newest: int = AMENDMENTS_MAX) -> bytes:
        """Return the last `newest` amendments, encoded for peers; empty if there are none."""
        shown = self.held[-newest:]
        return pack([each.to_bytes() for each in shown]) if shown else b""

    def adopt_new(self, data: bytes, agreed: Agreed = ()) -> bool:
        """Adopt the new amendments of a list that a peer sent. Return whether this node has more
        than before.

        Raises:
            RemoteProtocolError, RunMismatch: `data` is not a list of amendments of this run.
            StoreError: the list cannot be stored, and nothing is adopted.
        """
        offered = {each.digest: each for each in amendments_in(data, self._run)}
        if offered.keys() <= self._held.keys():
            return False
        news = self.reload()  # Do not overwrite what `p2ptrain run amend` wrote.
        kept = _most_wanted(self._held | offered, agreed)
        if kept == self._held:
            return news
        with disk_errors("keeping amendments", self._path):
            save_amendments(self._path, kept.values())
        self._held = kept
        return True

    def reload(self) -> bool:
        """Adopt further amendments from our home, where `p2ptrain run amend` writes them. Return
        whether there were any.
        """
        found = {each.digest: each for each in load_amendments(self._path, self._run)}
        news = not found.keys() <= self._held.keys()
        self._held |= found
        return news

    def missing(self, agreed: Agreed, step: int) -> Terms | None:
        """Return the first amendment that applies in outer step `step` and that this node does not
        have; None if it has all.
        """
        held = in_force(agreed, step)
        return next((each for each in held if each.digest not in self._held), None)

    def leg(self, agreed: Agreed, step: int) -> Leg:
        """Return the run as amended in outer step `step`. Call `missing` first.

        Raises RemoteProtocolError if a quorum certified terms that differ from the signed
        amendment.
        """
        if self.missing(agreed, step) is not None:
            raise LocalProtocolError(f"the amendment for outer step {step} is not known")
        return self.nearest(agreed, step)

    def nearest(self, agreed: Agreed, step: int) -> Leg:
        """Return the run in outer step `step`, with those agreed amendments that this node has. Use
        the result only for estimates and for display.
        """
        known, legs = self._legs
        if known != agreed or len(legs) <= len(agreed):
            self._legs = agreed, legs = agreed, self._follow(agreed)
        return [each for each in legs if each.step <= step][-1]

    def influence_max(self, agreed: Agreed, step: int) -> float:
        """Return how far a participant's weights may be from θ in outer step `step`: the largest of
        the bounds of this and the last KEPT_STEPS outer steps. With P fragments, P times as many
        outer steps count, because a fragment contains the work of P outer steps. Call `missing`
        first; raises as `leg` does.
        """
        kept_steps = KEPT_STEPS * self._run.manifest.sync.fragments
        steps = range(max(0, step - kept_steps), step + 1)
        return max(self.leg(agreed, each).manifest.influence_max for each in steps)

    def _follow(self, agreed: Agreed) -> tuple[Leg, ...]:
        legs = [Leg(self._run.manifest)]
        for terms in agreed:
            found = self._held.get(terms.digest)
            if found is None:
                break
            if found.terms != terms:
                raise RemoteProtocolError(
                    f"amendment {terms.number} in the ledger differs from the signed one: members "
                    f"agreed on {terms.plain()}, the organiser signed {found.terms.plain()}",
                    code="AMEND-DIFFERS",
                )
            legs.append(legs[-1].amended(found.amendment))
        return tuple(legs)


def _most_wanted(
    amendments: dict[Digest, SignedAmendment], agreed: Agreed
) -> dict[Digest, SignedAmendment]:
    """Return the amendments to keep: agreed ones first, then those with the highest numbers."""
    needed = {each.digest for each in agreed}

    def rank(digest: Digest) -> tuple[bool, int, Digest]:
        return digest not in needed, -amendments[digest].amendment.number, digest

    return {digest: amendments[digest] for digest in sorted(amendments, key=rank)[:AMENDMENTS_MAX]}
