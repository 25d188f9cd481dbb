"""The interface through which consensus asks what to propose and what to accept. Consensus itself
does not know what entries mean.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Value
from p2ptrain.ledger.messages.evidence import Evidence
from p2ptrain.ledger.messages.peer_reports import Ready


class Answer(Enum):
    YES = "yes"
    LATER = "later"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The policy's answer to a proposal, with the reason in words.

    `fetch` is the update that this node must fetch before it can accept a Commit, if any.
    `evidence` is evidence (two contradictory signed statements) against a peer in the proposed
    roster; it is sent to the proposer, which does not seem to know it. `shows` are reports with
    claims that the proposer does not seem to know; they are sent to it, too.
    """

    answer: Answer
    reason: str
    fetch: Digest | None = None
    evidence: Evidence | None = None
    shows: tuple[Ready, ...] = ()


class HeightPolicy(Protocol):
    """The questions of consensus about the entry of one height. `policy.policy` answers them."""

    @property
    def wanted(self) -> Value | None:
        """The value that this node wants to propose, if any."""

    @property
    def down(self) -> AbstractSet[PeerId]:
        """The peers that this node considers down."""

    def complete(self, value: Value) -> Value:
        """Return the wanted `value` as it is proposed. A roster gets the order in which its
        participants average, and the next amendment. Call this only to propose: it may be slow.
        """

    def causes(self, value: Value) -> tuple[Evidence, ...]:
        """Return the evidence that other voters must have before they may vote for `value`."""

    def judge(
        self,
        value: Value,
        now: float,
        *,
        forced: bool,
        doubtful: bool,
        late: bool,
        proposer: PeerId,
    ) -> Judgement:
        """Decide whether this node may accept `value` now. See `policy.accept.may_accept`."""

    def holders(self, update: Digest, proposer: PeerId) -> tuple[PeerId, ...]:
        """Return the peers that should have the bytes of `update`, those that are up first."""
