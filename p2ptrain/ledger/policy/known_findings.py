"""The findings of auditors that this node has received (SPEC.md, A3).

Like reports, they decide what this node proposes. Nodes do not agree on them, and lose them in a
restart. Auditors repeat them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.audits import finding_fault, is_signed
from p2ptrain.ledger.chain.findings import Finding

if TYPE_CHECKING:
    from p2ptrain.ledger.chain.signatures import Verify
    from p2ptrain.ledger.chain.state import LedgerState

GENUINE_MAX = 1024
"""Maximum number of remembered findings whose signatures were checked."""


@dataclass(slots=True)
class KnownFindings:
    """The findings that count in `state`, by claimant, drawing entry and auditor. Only drawn
    auditors have a place, and each has one for a claim, so others cannot fill the memory.
    """

    verify: Verify | None = None
    state: LedgerState | None = None
    by_case: dict[tuple[PeerId, Digest], dict[PeerId, Finding]] = field(default_factory=dict)
    _genuine: dict[Finding, None] = field(default_factory=dict)

    def follow(self, state: LedgerState) -> None:
        """Forget the findings that do not count any more. Call this after each entry."""
        self.state = state
        known = [each for said in self.by_case.values() for each in said.values()]
        self.by_case = {}
        for finding in known:
            if not finding_fault(state, finding):
                self._keep(finding)

    def note(self, finding: Finding) -> bool:
        """Store a finding. Return False if it does not count, is known, or is not signed."""
        if self.state is None or finding_fault(self.state, finding):
            return False
        said = self.by_case.get((finding.peer, finding.draw), {})
        if finding.auditor in said or not self.is_genuine(finding):
            return False
        self._keep(finding)
        return True

    def is_genuine(self, finding: Finding) -> bool:
        """Return whether its auditor signed the finding."""
        if finding in self._genuine:
            return True
        if self.verify is None or not is_signed(finding, self.verify):
            return False
        self._genuine[finding] = None
        if len(self._genuine) > GENUINE_MAX:
            del self._genuine[next(iter(self._genuine))]
        return True

    def _keep(self, finding: Finding) -> None:
        self.by_case.setdefault((finding.peer, finding.draw), {})[finding.auditor] = finding
