"""A simulated node that audits claims of others: it learns the truth about them by asking.

The simulation does not train, so there is nothing to repeat. The claimant knows whether it did the
work, and answers an auditor truthfully (`shows`); a liar shows its data to nobody, or to some only.
"""

from __future__ import annotations

import math
from functools import partial

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.audits import (
    AUDIT_STEPS,
    EXCLUDED_STEPS,
    Case,
    case_of,
    finding_fault,
    finding_message,
)
from p2ptrain.ledger.chain.findings import Finding, Found
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.messages.messages import ShowFinding
from p2ptrain.ledger.messages.peer_reports import AuditOffer, FindingMade
from p2ptrain.simulation.disk import signature_of
from p2ptrain.simulation.node import SimNode

AUDIT_S = (0.1, 1.5)
"""Shortest and longest duration of an audit, in seconds. An outer step takes one second and more,
so some findings come before the next roster and some after it."""

AGAIN_S = 0.5
"""Seconds after which an auditor asks a claimant again that was down."""

OFFERS = 0.85
"""Probability that a peer offers capacity. With few peers there are sometimes too few auditors."""

CHANGES = 0.01
"""Probability that a peer withdraws or renews its offer with a heartbeat."""

KEPT_STEPS = AUDIT_STEPS + EXCLUDED_STEPS
"""Outer steps for which an auditor keeps a finding. While a peer is excluded for another claim, a
finding does not count, but may count again after a successful appeal."""

Key = tuple[PeerId, Digest]
"""The claimant, and the entry that drew the auditors."""


class Auditing(SimNode):
    """The part of a node that audits. Liars have it, too."""

    offers: bool

    def boot(self) -> None:
        self.offers = self._dice.random() < OFFERS
        self._begun: set[Key] = set()
        self._findings: list[Finding] = []
        super().boot()

    def shows(self, auditor: PeerId, claim: Digest) -> Found:
        """Return what an honest auditor finds when it asks for the data of a claim of this peer."""
        return "sound" if claim in self.disk.claims else "withheld"

    def follow(self) -> None:
        super().follow()
        state = self.state
        open_cases = [(peer, it.draw) for it in state.audits for peer in it.claims]
        open_cases += [(peer, it.draw) for peer, it in state.excluded.items()]
        for key in open_cases:
            if key not in self._begun:
                self._audit(key, self._dice.uniform(*AUDIT_S))

    def _audit(self, key: Key, delay_s: float) -> None:
        """Audit the claim after some time if this node was drawn and it can be judged now. If its
        peer is excluded because of another claim, it may be judged after a successful appeal."""
        case = case_of(self.state, *key)
        if case is not None:
            self._begun.add(key)
            if self.me in case.auditors:
                self._world.run_action_later(self, delay_s, partial(self._ask, key))

    def _ask(self, key: Key) -> None:
        case, claimant = case_of(self.state, *key), self._world.nodes[key[0]]
        if case is None:
            self._begun.discard(key)
            return
        if not claimant.is_running:
            self._audit(key, AGAIN_S)
            return
        assert isinstance(claimant, Auditing)
        self.conclude(key, case, claimant.shows(self.me, case.claim))

    def conclude(self, key: Key, case: Case, found: Found) -> None:
        """State what was found, if that counts: a fault, or in an appeal that there is none."""
        if found in case.kinds:
            self.state_finding(self.finding(key, case.step, case.claim, found))

    def finding(self, key: Key, step: int, claim: Digest, found: Found) -> Finding:
        peer, draw = key
        signature = signature_of(self.me, finding_message(draw, peer, step, claim, found))
        return Finding(self.me, peer, step, draw, claim, found, signature)

    def state_finding(self, finding: Finding) -> None:
        self._findings.append(finding)
        self.handle(FindingMade(finding))
        self._tell_all(ShowFinding(finding))

    def _reports(self) -> list[Event]:
        """Add the offer, and repeat the findings that still count."""
        if self._dice.random() < CHANGES:
            self.offers = not self.offers
        state = self.state
        self._findings = [it for it in self._findings if it.step + KEPT_STEPS >= state.step]
        counted = [it for it in self._findings if not finding_fault(state, it)]
        if not self.offers:
            self._world.offering[self.me] = math.inf
        elif self._world.offering.get(self.me, math.inf) == math.inf:
            self._world.offering[self.me] = self._world.now
        offer = AuditOffer(self.me, int(self.offers))
        self.handle(offer)
        return [*super()._reports(), offer, *map(FindingMade, counted)]


class AuditingNode(Auditing):
    """An honest node of a world with audits."""
