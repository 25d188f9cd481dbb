"""Find peers whose signed statements contradict each other, check evidence, and announce it.

Only peers that were voters at some time can be accused because of votes. The chain names them, and
at most one piece of evidence is kept for each, so other peers cannot fill this node's memory. In a
run with claims, members can also be accused because of their claims (SPEC.md, C5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from p2ptrain.ids import PeerId
from p2ptrain.ledger.accountability.claim_log import ClaimLog
from p2ptrain.ledger.accountability.statement_log import HEIGHTS_KEPT, StatementLog, statements_in
from p2ptrain.ledger.chain.quorum import proposer
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Branch, Certified, Entry, LineId, Roster
from p2ptrain.ledger.messages.effects import Accuse, Announce, Effect, Note
from p2ptrain.ledger.messages.evidence import Evidence, Statement, check_evidence
from p2ptrain.ledger.messages.messages import Accusation, Message
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.ledger.policy.reports import Reports

LEARNERS_ACCUSED_MAX = 256
"""Maximum number of peers that never voted and against which evidence is kept. The oldest evidence
is dropped first: a peer that lies again is caught again.
"""


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
        self._claims = rules.claims
        self._verify = verify
        self._reports = reports
        self._statement_log = StatementLog(state.line, verify)
        self._claim_log = ClaimLog(state.line, verify)
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
            self._claim_log = ClaimLog(entry.digest, self._verify)
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
            if peer != self._me and self._may_accuse(peer, is_vote=True):
                evidence = self._statement_log.note(height, peer, statement, genuine=genuine)
                effects += [] if evidence is None else self.accuse(evidence, found=True)
        return effects

    def note_claim(self, report: Ready, *, shown: bool) -> tuple[bool, list[Effect]]:
        """Return whether `report` counts: its peer signed the claim in it, or does not contribute.
        Announce evidence if the claim contradicts an earlier one.

        `shown`: another peer showed the claim. Then it counts only if it replaces an older one.
        Otherwise, an old report could be repeated after its peer withdrew it.
        """
        peer, said = report.peer, report.claim
        if peer == self._me or not self._claims:
            return not shown, []
        if fault := self._claim_log.fault(report):
            return False, [Note(f"ignoring that {peer} is ready: {fault}")]
        counts = not shown or self._reports.is_older_than(report)
        if said is None or not self._may_accuse(peer, is_vote=False):
            return counts, []
        evidence = self._claim_log.note(peer, said, self._reports.members)
        return counts, [] if evidence is None else self.accuse(evidence, found=True)

    def compare(
        self, sender: PeerId, entry_at: Callable[[int], Certified | None], theirs: Certified
    ) -> list[Effect]:
        """Accuse every voter that signed both our entry and a different one of the same height,
        which `sender` showed. The last effect is a note, if there is a different entry.
        """
        ours = entry_at(theirs.entry.height)
        if ours is None or ours.entry.digest == theirs.entry.digest:
            return []
        effects: list[Effect] = []
        for evidence in self._statement_log.compare(ours, theirs):
            effects += self.accuse(evidence, found=True)
        what = f"{sender} sent a different entry {ours.entry.height} than this node has"
        return [*effects, Note(f"{what}: a fork or a forgery")]

    def accuse(self, evidence: Evidence, *, found: bool = False) -> list[Effect]:
        """Check evidence, and remember it unless its peer is already accused or was never a voter.
        `found`: this node found it, so announce it to the other peers.

        This also applies to evidence against this node. The node still votes: its vote may be
        needed to agree on the roster that removes it.
        """
        if not self._may_accuse(evidence.peer, is_vote=evidence.height > 0):
            return []
        fault = check_evidence(self._lines, evidence, self._verify)
        if fault:
            return [Note(f"evidence against {evidence.peer} proves nothing: {fault}")]
        self._make_room()
        self._reports.accused[evidence.peer] = evidence
        effects: list[Effect] = [Accuse(evidence), Note(evidence.words)]
        return [*effects, Announce(Accusation(evidence))] if found else effects

    def _may_accuse(self, peer: PeerId, *, is_vote: bool) -> bool:
        """Return whether evidence about votes, or about claims, can be kept against `peer`."""
        known = peer in self._voters_ever
        known = known or (self._claims and not is_vote and peer in self._reports.members)
        return known and peer not in self._reports.accused

    def _make_room(self) -> None:
        accused = self._reports.accused
        learners = [peer for peer in accused if peer not in self._voters_ever]
        for peer in learners[: max(0, len(learners) + 1 - LEARNERS_ACCUSED_MAX)]:
            del accused[peer]
