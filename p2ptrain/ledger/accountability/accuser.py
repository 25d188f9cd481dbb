"""Find voters whose signed statements contradict each other, check evidence, and announce it.

Only peers that were voters at some time can be accused. The chain names them, and at most one piece
of evidence is kept for each, so other peers cannot fill this node's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from p2ptrain.ids import PeerId
from p2ptrain.ledger.accountability.statement_log import HEIGHTS_KEPT, StatementLog, statements_in
from p2ptrain.ledger.chain.quorum import proposer
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Branch, Certified, Entry, LineId, Roster
from p2ptrain.ledger.messages.effects import Accuse, Announce, Effect, Note
from p2ptrain.ledger.messages.evidence import Evidence, Statement, check_evidence
from p2ptrain.ledger.messages.messages import Accusation, Message
from p2ptrain.ledger.policy.reports import Reports


class Accuser:
    """Collects evidence in `reports.accused`, where the policy reads it."""

    def __init__(
        self, rules: Rules, me: PeerId, verify: Verify, reports: Reports, state: LedgerState
    ) -> None:
        """`state` is the state in which the kept chain begins. It does not name former voters.
        So every peer that contributed tokens counts as one, because only founders can vote before
        they contribute.
        """
        self._me = me
        self._verify = verify
        self._reports = reports
        self._statement_log = StatementLog(state.line, verify)
        self._voters_ever = {*rules.founders, *state.voters, *state.tokens_by_peer}
        self._voters_at = {state.height + 1: state.voters}
        self._lines: set[LineId] = {rules.run, state.line, *(each.line for each in state.past)}

    def entered(self, entry: Entry, voters: tuple[PeerId, ...]) -> None:
        """Record that `entry` was appended to the chain. `voters` decide the next height."""
        self._statement_log.entered(entry.height)
        self._voters_at[entry.height + 1] = voters
        self._voters_at.pop(entry.height + 1 - HEIGHTS_KEPT, None)
        if isinstance(entry.value, Branch):
            self._lines.add(entry.digest)
            self._statement_log = StatementLog(entry.digest, self._verify)
        if isinstance(entry.value, Roster):
            self._voters_ever.update(entry.value.voters)

    def statements_of(
        self, sender: PeerId, message: Message, height: int
    ) -> Iterator[tuple[PeerId, Statement]]:
        """Yield the signed statements in a message about the current height or a recent one, with
        the peers that are said to have signed them.
        """
        voters = self._voters_at.get(height)
        if voters is not None:
            yield from statements_in(sender, message, partial(proposer, voters, height))

    def note(
        self, height: int, said: Iterable[tuple[PeerId, Statement]], *, genuine: bool
    ) -> list[Effect]:
        """Record statements that others signed. Announce evidence against each peer that
        contradicts itself. `genuine`: the signatures have been checked.
        """
        effects: list[Effect] = []
        for peer, statement in said:
            if peer != self._me and self._may_accuse(peer):
                evidence = self._statement_log.note(height, peer, statement, genuine=genuine)
                effects += [] if evidence is None else self.accuse(evidence, found=True)
        return effects

    def compare(self, ours: Certified, theirs: Certified) -> list[Effect]:
        """Accuse every voter that signed both our entry and a different one of the same height."""
        effects: list[Effect] = []
        for evidence in self._statement_log.compare(ours, theirs):
            effects += self.accuse(evidence, found=True)
        return effects

    def accuse(self, evidence: Evidence, *, found: bool = False) -> list[Effect]:
        """Check evidence, and remember it unless its peer is already accused or was never a voter.
        `found`: this node found it, so announce it to the other peers.

        This also applies to evidence against this node. The node still votes: its vote may be
        needed to agree on the roster that removes it.
        """
        if not self._may_accuse(evidence.peer):
            return []
        fault = check_evidence(self._lines, evidence, self._verify)
        if fault:
            return [Note(f"evidence against {evidence.peer} proves nothing: {fault}")]
        self._reports.accused[evidence.peer] = evidence
        effects: list[Effect] = [Accuse(evidence), Note(evidence.words)]
        return [*effects, Announce(Accusation(evidence))] if found else effects

    def _may_accuse(self, peer: PeerId) -> bool:
        return peer in self._voters_ever and peer not in self._reports.accused
