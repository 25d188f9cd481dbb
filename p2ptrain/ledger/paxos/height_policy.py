"""The interface between consensus and policy. Consensus does not know what entries mean: the policy
decides what to propose and what to accept.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Value
from p2ptrain.ledger.messages.evidence import Evidence


class Answer(Enum):
    YES = "yes"
    LATER = "later"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Judgement:
    """An answer with its reason.

    `fetch` is the update that this node must fetch before it can accept a Commit, if any.
    `evidence` is evidence that the proposer does not seem to know.
    """

    answer: Answer
    reason: str
    fetch: Digest | None = None
    evidence: Evidence | None = None


class HeightPolicy(Protocol):
    """The policy of one height."""

    @property
    def wanted(self) -> Value | None:
        """The value that this node wants to propose, if any."""

    @property
    def down(self) -> AbstractSet[PeerId]:
        """The peers that this node considers down."""

    def complete(self, value: Value) -> Value:
        """Return the value to propose for the wanted `value`. This can take long, so call it only
        to propose.
        """

    def causes(self, value: Value) -> tuple[Evidence, ...]:
        """Return the evidence that other voters need before they vote for `value`."""

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
        """Return the peers that should have the bytes of `update`, live ones first."""
