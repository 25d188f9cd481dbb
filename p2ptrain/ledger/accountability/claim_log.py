"""Remember the claims that peers made recently, to detect a peer that contradicts itself (SPEC.md,
C2 and C5).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.bounded_table import make_room
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.values import LineId
from p2ptrain.ledger.messages.claim_statement import ClaimStatement, claims_contradict
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.peer_reports import Ready

CLAIMS_KEPT = 8
"""Number of claims remembered for a peer. An honest peer makes one for each outer step, and another
one whenever it loses its work. A peer that makes more can hide an old contradiction, which no
longer matters.
"""


@dataclass(slots=True)
class ClaimLog:
    """The newest claims of members on one line (the run, or a branch)."""

    line: LineId
    verify: Verify
    _memory: dict[PeerId, list[ClaimStatement]] = field(default_factory=dict)

    def fault(self, report: Ready) -> str:
        """Return the reason why `report` does not count; empty if its peer signed its numbers and
        its claim, or if the peer does not contribute.
        """
        said = report.claim
        if said is None:
            return "" if report.blocks == 0 else "it has no claim"
        if (said.step, said.tokens, said.blocks) != (report.step, report.tokens, report.blocks):
            return "its numbers are not those of its claim"
        if said in self._memory.get(report.peer, ()):
            return ""
        genuine = self.verify(report.peer, said.message(self.line, 0), said.signature)
        return "" if genuine else "the signature of its claim is not valid"

    def note(
        self, peer: PeerId, said: ClaimStatement, members: Container[PeerId]
    ) -> Evidence | None:
        """Remember a claim of a member, whose signature is valid. Return evidence if it contradicts
        an earlier one.
        """
        make_room(self._memory, peer, members)
        known = self._memory.setdefault(peer, [])
        if said in known:
            return None
        known.append(said)
        del known[:-CLAIMS_KEPT]
        for each in known:
            if claims_contradict(each, said):
                return Evidence(self.line, 0, peer, each, said)
        return None
