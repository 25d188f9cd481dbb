"""The amendments that this node has, and the run as it holds in an outer step by those agreed.

They come from anybody, count by the organiser's signature, and are on disk before the ledger hears
of them. Which of them hold is not decided here: the ledger's chain names them by digest. How they
travel is `amending`'s business.
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
"""What a chain says, in its order: `LedgerState.terms`."""

KEPT_STEPS = 8
"""Who was left out for longer has less than what `policy.influence_max` leaves room for anyway."""


def kept_steps(run: Run) -> int:
    """Over so many outer steps before this one, work in it may have been kept. Of fragments each
    carries the work of as many outer steps as there are fragments.
    """
    return KEPT_STEPS * run.manifest.sync.fragments


class Amendments:
    """`legs` are worked out once for each list that was agreed."""

    def __init__(self, run: Run, path: Path) -> None:
        """Raises ConfigError: the file at `path` is not what it should be."""
        self._run = run
        self._path = path
        self._held = {each.digest: each for each in load_amendments(path, run)}
        self._legs: tuple[Agreed, tuple[Leg, ...]] = ((), (Leg(run.manifest),))

    @classmethod
    def of(cls, home: Home, run: Run) -> Amendments:
        return cls(run, home.amendments)

    @property
    def held(self) -> tuple[SignedAmendment, ...]:
        """All that are here, by number."""
        return tuple(
            sorted(self._held.values(), key=lambda each: (each.amendment.number, each.digest))
        )

    @property
    def terms(self) -> frozenset[Terms]:
        """What the ledger may agree on: this node can show it to whoever asks."""
        return frozenset(each.terms for each in self._held.values())

    def get(self, digest: Digest) -> SignedAmendment | None:
        return self._held.get(digest)

    def to_bytes(self, newest: int = AMENDMENTS_MAX) -> bytes:
        """The last of them, for others; empty if there is none."""
        shown = self.held[-newest:]
        return pack([each.to_bytes() for each in shown]) if shown else b""

    def consider(self, data: bytes, agreed: Agreed = ()) -> bool:
        """Take what is new of a list that somebody sent. Whether there are more than before.

        Raises:
            RemoteProtocolError, RunMismatch: it is no list of amendments of this run.
            StoreError: it cannot be kept; nothing is taken then.
        """
        offered = {each.digest: each for each in amendments_in(data, self._run)}
        if offered.keys() <= self._held.keys():
            return False
        news = self.reload()  # What the organiser's tool has put there must not be lost.
        kept = _most_wanted(self._held | offered, agreed)
        if kept == self._held:
            return news
        with disk_errors("keeping amendments", self._path):
            save_amendments(self._path, kept.values())
        self._held = kept
        return True

    def reload(self) -> bool:
        """Look whether more lie in our home, where the organiser's tool puts them."""
        found = {each.digest: each for each in load_amendments(self._path, self._run)}
        news = not found.keys() <= self._held.keys()
        self._held |= found
        return news

    def missing(self, agreed: Agreed, step: int) -> Terms | None:
        """The first amendment that holds in outer step `step` and is not here."""
        held = in_force(agreed, step)
        return next((each for each in held if each.digest not in self._held), None)

    def leg(self, agreed: Agreed, step: int) -> Leg:
        """The run as it holds in outer step `step`. Ask `missing` first.

        Raises RemoteProtocolError where a quorum certified of an amendment what it does not say.
        """
        if self.missing(agreed, step) is not None:
            raise LocalProtocolError(f"nobody here knows how outer step {step} is to be taken")
        return self.nearest(agreed, step)

    def nearest(self, agreed: Agreed, step: int) -> Leg:
        """The same as far as it is known here: for estimates, and for people."""
        known, legs = self._legs
        if known != agreed or len(legs) <= len(agreed):
            self._legs = agreed, legs = agreed, self._follow(agreed)
        return [each for each in legs if each.step <= step][-1]

    def influence_max(self, agreed: Agreed, step: int) -> float:
        """How far a participant's weights may be from θ in outer step `step`. Work may have been
        kept from outer steps before, in which more was allowed. Ask `missing` first; raises as
        `leg` does.
        """
        steps = range(max(0, step - kept_steps(self._run)), step + 1)
        return max(self.leg(agreed, each).manifest.influence_max for each in steps)

    def _follow(self, agreed: Agreed) -> tuple[Leg, ...]:
        legs = [Leg(self._run.manifest)]
        for terms in agreed:
            found = self._held.get(terms.digest)
            if found is None:
                break
            if found.terms != terms:
                raise RemoteProtocolError(
                    f"the ledger says of amendment {terms.number} what it does not say: "
                    f"agreed was {terms.plain()}, signed {found.terms.plain()}",
                    code="AMEND-DIFFERS",
                )
            legs.append(legs[-1].amended(found.amendment))
        return tuple(legs)


def _most_wanted(
    amendments: dict[Digest, SignedAmendment], agreed: Agreed
) -> dict[Digest, SignedAmendment]:
    """As many as are kept: those that were agreed, then those with the highest numbers."""
    needed = {each.digest for each in agreed}

    def rank(digest: Digest) -> tuple[bool, int, Digest]:
        return digest not in needed, -amendments[digest].amendment.number, digest

    return {digest: amendments[digest] for digest in sorted(amendments, key=rank)[:AMENDMENTS_MAX]}
