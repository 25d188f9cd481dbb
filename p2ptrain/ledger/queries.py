"""Read-only queries about a ledger: its chain, its records, its status."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.quorum import proposer
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Certified, Commit, LineId
from p2ptrain.ledger.history.catchup import Catchup, page_from
from p2ptrain.ledger.history.kept_chain import CommittedUpdate, KeptChain
from p2ptrain.ledger.messages.messages import Entries, Message, Pruned
from p2ptrain.ledger.paxos.acceptor import Acceptor, Acceptors
from p2ptrain.ledger.paxos.proposer import are_many
from p2ptrain.ledger.policy.wish import Wish

if TYPE_CHECKING:
    from p2ptrain.ledger.branches.branch_sync import BranchSync


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """The ledger's status for users: what is agreed, why this node proposes or waits (`reason`),
    and which peers it waits for. `branch` says in words that this chain is on a branch (a
    continuation without the lost quorum) or will soon be; otherwise it is empty.
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
    until: float | None = None
    """When this node decides again even if no report arrives, in seconds of the caller's clock.
    None while it waits for reports only."""
    proposes: bool = False
    """Whether there is something to vote on: the wait is for the votes."""


class Queries(ABC):
    """The queries of `core.Ledger`, which inherits them and sets all of these fields."""

    state: LedgerState
    kept: KeptChain
    _last_voted: dict[LineId, Acceptor]
    _acceptors: Acceptors
    _silent: bool
    _abstains_at: int
    _catchup: Catchup
    _branches: BranchSync | None

    @abstractmethod
    def _undecided(self) -> list[Acceptor]:
        """Return this node's acceptors of heights that are not decided yet."""

    @property
    def chain(self) -> Sequence[Certified]:
        """The entries that are not pruned. After pruning, a Commit comes first (`history/base`)."""
        return self.kept.entries

    @property
    def updates(self) -> Mapping[int, CommittedUpdate]:
        """The committed updates by outer step. Updates in pruned entries are missing."""
        return self.kept.updates

    def records(self) -> list[bytes]:
        """Return the records that a restart needs. They can replace the whole log of votes.

        For each line (the run itself, or a branch) they include the last height at which this node
        voted, even if that height is decided. If the disk later lost the decided entry, only this
        record would show that this node has already voted there.
        """
        known = (*self._last_voted.values(), *self._undecided())
        kept = {(it.line, it.height): it for it in known}
        return [record for acceptor in kept.values() for record in acceptor.records()]

    def voted_for(self) -> tuple[Digest, ...]:
        """Return the updates of the Commits that this node voted for at undecided heights. The node
        must keep their bytes, since other nodes may need them.
        """
        accepted = [each.accepted for each in self._undecided()]
        values = [each.entry.value for each in accepted if each is not None]
        return tuple(value.update for value in values if isinstance(value, Commit))

    def page(self, from_height: int) -> Entries | Pruned:
        """Return the answer to an EntriesRequest."""
        return page_from(self.kept.entries, from_height)

    def out_of_reach(self) -> Mapping[PeerId, Pruned]:
        """Return the answers of the peers that have pruned the next entry that this node needs. The
        result is empty while any peer may still have that entry.
        """
        return self._catchup.out_of_reach(self.state.height)

    def believes(self, peer: PeerId, now: float) -> bool:
        """Return whether to believe that `peer` has as many entries as it claims. If it leaves our
        requests unanswered for some time, it is not believed until it sends entries.
        """
        return self._catchup.is_believed(peer, self.state.height, now)

    def _news(self, height: int) -> Message:
        """Return the entries from `height` on, for a proposer that is behind. If there are many
        voters, return only our own height, since each of them sends this answer.
        """
        many = are_many(self.state.voters)
        return Entries(self.state.height, ()) if many else self.page(height)

    def _is_elsewhere(self, peer: PeerId) -> bool:
        """Return whether `peer` is on a different line (the run or a branch) than this node."""
        return self._branches is not None and self._branches.is_elsewhere(peer, self.state)

    def _must_not_vote(self) -> bool:
        """Return whether another process may be voting as this node, or records are lost. They are
        lost if the chain ends before heights at which this node voted, or if they lack this node's
        statement about the current height.
        """
        line, due = self.state.line, self.state.height + 1
        lost = any(of == line and height > due for of, height in self._acceptors)
        return self._silent or lost or self._abstains_at == due

    def _status(self, wish: Wish, round: int, branch: str) -> LedgerStatus:
        state = self.state
        return LedgerStatus(
            height=state.height,
            head=state.head,
            step=state.step,
            phase=state.phase,
            attempt=state.attempt,
            round=round,
            proposer=proposer(state.voters, state.height + 1, round),
            reason=wish.reason,
            waiting_for=wish.waiting_for,
            branch="; ".join(words for words in (branch_words(state), branch) if words),
            until=wish.look_again_at if wish.value is None else None,
            proposes=wish.value is not None,
        )


def branch_words(state: LedgerState) -> str:
    """Say since which outer step this chain is on a branch, and which voters it lost; or ""."""
    if not state.past:
        return ""
    last = state.past[-1]
    those = ", ".join(last.gone)
    return f"on a branch since outer step {last.step}, without {those}"
