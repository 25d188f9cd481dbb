"""Answer questions about a ledger: its chain, its records, its status. Nothing here changes the
ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.branches.branch_sync import Parting
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Certified, Commit, LineId
from p2ptrain.ledger.history.catchup import Catchup
from p2ptrain.ledger.history.kept_chain import CommittedUpdate, Kept
from p2ptrain.ledger.messages.messages import Entries, Pruned
from p2ptrain.ledger.paxos.acceptor import Acceptor, Acceptors
from p2ptrain.ledger.paxos.instance import Instance
from p2ptrain.ledger.policy import propose
from p2ptrain.ledger.policy.reports import View


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """The ledger's status for people: what is agreed, what is wanted next, and which peers are
    awaited. `branch` says in words that this line is a branch, or will be soon; otherwise it is
    empty.
    """

    height: int
    head: Digest
    step: int
    phase: Phase
    attempt: int
    round: int
    proposer: PeerId
    reason: str
    waiting_for: tuple[PeerId, ...]
    branch: str


class Account:
    """The queries of `core.Ledger`, which sets all of these fields."""

    rules: Rules
    state: LedgerState
    kept: Kept
    _last_voted: dict[LineId, Acceptor]
    view: View
    _acceptors: Acceptors
    _catchup: Catchup
    _instance: Instance
    _parting: Parting | None

    @property
    def chain(self) -> Sequence[Certified]:
        """The entries that are kept. With a base, its own Commit comes first."""
        return self.kept.entries

    @property
    def updates(self) -> Mapping[int, CommittedUpdate]:
        """Committed updates by outer step, as far back as the chain is kept."""
        return self.kept.updates

    def records(self) -> list[bytes]:
        """Return the fewest records that a restart needs, for compacting a log of votes.

        They include the last height of each line that this node voted at, even if that height is
        decided. If the chain lost that height, nothing else would show that this vote was used.
        """
        live = [*self._acceptors.values(), self._instance.acceptor]
        kept = {(it.line, it.height): it for it in (*self._last_voted.values(), *live)}
        return [record for acceptor in kept.values() for record in acceptor.records()]

    def voted_for(self) -> tuple[Digest, ...]:
        """Return the updates that this node has promised to hold, of heights that are not decided
        yet.
        """
        live = [*self._acceptors.values(), self._instance.acceptor]
        values = [each.accepted.entry.value for each in live if each.accepted is not None]
        return tuple(value.update for value in values if isinstance(value, Commit))

    def page(self, from_height: int) -> Entries | Pruned:
        """Return the answer to an EntriesRequest."""
        return self.kept.page(from_height)

    def out_of_reach(self) -> Mapping[PeerId, Pruned]:
        """Return the Pruned answers of peers that no longer keep the entry that this node lacks.
        The result is empty while some peer may have the entry.
        """
        return self._catchup.out_of_reach(self.state.height)

    def believes(self, peer: PeerId, now: float) -> bool:
        """Return whether `peer` may have the entries beyond ours that it claims. It may if it shows
        them, or if no question to it has gone unanswered for long.
        """
        return self._catchup.is_believed(peer, self.state.height, now)

    def status(self, now: float) -> LedgerStatus:
        state = self.state
        wish = propose.what_to_propose(self.rules, state, self.view, now)
        return LedgerStatus(
            height=state.height,
            head=state.head,
            step=state.step,
            phase=state.phase,
            attempt=state.attempt,
            round=self._instance.round,
            proposer=self._instance.electorate.proposer(self._instance.round),
            reason=wish.reason,
            waiting_for=wish.waiting_for,
            branch=self._branch_words(now),
        )

    def _branch_words(self, now: float) -> str:
        parted = [] if self._parting is None else [self._parting.words(self.state, now)]
        return "; ".join(words for words in (branch_words(self.state), *parted) if words)


def branch_words(state: LedgerState) -> str:
    """Say since when this chain is on a branch, and without which voters; empty if it is not."""
    if not state.past:
        return ""
    last = state.past[-1]
    those = ", ".join(last.gone)
    return f"on a branch since outer step {last.step}, without {those}"
