"""The organiser's signed answer to a request to join: no, until a date, for a reason.

Only the organiser can make a denial, so any peer may deliver one. A denial does not outrank the
allowlist: a peer on the newest list is admitted, whatever denials exist. So a liar that delivers an
old denial again cannot keep out a peer that has been admitted since, as long as that peer receives
the list. The end date is compared with the wall clock of the machine that reads the denial.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from p2ptrain.encoding import pack
from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.run.envelope import Signed
from p2ptrain.run.organiser import said_by_organiser
from p2ptrain.run.published_run import Run
from p2ptrain.run.reading import plain

KIND = "denial"
DENIAL_BYTES_MAX = 2048
REASON_CHARACTERS_MAX = 200
UNIX_MAX = 2**40


@dataclass(frozen=True, slots=True)
class Denial:
    """`reason` is one line for the volunteer, or "". Times are seconds since 1970."""

    run: RunId
    peer: PeerId
    created_unix: int
    until_unix: int
    reason: str = ""

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if not is_peer_id(self.peer):
            raise ValueError(f"{str(self.peer)[:80]!r} is not a peer id")
        if not 0 <= self.created_unix < self.until_unix <= UNIX_MAX:
            raise ValueError("the denial does not end after it was made")
        if len(self.reason) > REASON_CHARACTERS_MAX or not self.reason.isprintable():
            most = f"{REASON_CHARACTERS_MAX} printable characters"
            raise ValueError(f"the reason must be one line of at most {most}")

    def holds(self, now_unix: float) -> bool:
        """Return whether the denial has not ended yet."""
        return now_unix < self.until_unix

    @property
    def end(self) -> str:
        """The end as a date and time in words, in UTC."""
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.until_unix))


@dataclass(frozen=True, slots=True)
class SignedDenial:
    """A denial with the organiser's signature, as sent to peers and stored in the organiser's home
    (the folder with a node's files)."""

    denial: Denial
    signed: Signed

    @classmethod
    def publish(cls, identity: Identity, denial: Denial) -> SignedDenial:
        return cls(denial, Signed.by(identity, KIND, pack(plain(denial))))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, run: Run) -> SignedDenial:
        """Return the denial for `run` in `data`, which may come from any peer.

        Raises:
            RunMismatch: it is a valid denial for another run.
            RemoteProtocolError: it is too long, malformed, altered, or not signed by the run's
                organiser.
        """
        denial, signed = said_by_organiser(
            Denial, data, run, kind=KIND, bytes_max=DENIAL_BYTES_MAX, code="DENIAL-SIGNER"
        )
        return cls(denial, signed)

    def to_bytes(self) -> bytes:
        return self.signed.to_bytes()
