"""The base class of checkers, and the decision that they examine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Value
from p2ptrain.ledger.messages.messages import Message
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.simulation.disk import SimDisk

BlocksTrained = Mapping[PeerId, tuple[int, ...]]

Chain = Sequence[Certified]


@dataclass(frozen=True, slots=True)
class Decision:
    """A node appended an entry. `before` and `after` are the states before and after the entry.
    `disks` are all nodes' disks at this moment, and `trained` are the blocks that each participant
    contributed to the reduce. `is_first` says whether this node is the first to append the entry.
    `at_s` is the simulated time in seconds."""

    node: PeerId
    certified: Certified
    before: LedgerState
    after: LedgerState
    disks: Mapping[PeerId, SimDisk]
    trained: BlocksTrained
    is_first: bool = True
    at_s: float = 0.0

    @property
    def value(self) -> Value:
        return self.certified.entry.value


@dataclass(frozen=True, slots=True)
class Known:
    """The state and disk of a node that received a report. `shown`: another peer than its author
    sent the report. `handled`: the node has already handled it, and executed the effects."""

    state: LedgerState
    disk: SimDisk
    shown: bool
    handled: bool


@dataclass(slots=True)
class Watch:
    """Base class that does not check anything. Checkers override the methods that they need, and
    call `object` for each violation."""

    violations: list[str] = field(default_factory=list, kw_only=True)

    def on_decision(self, decision: Decision) -> None:
        return

    def on_vote(self, voter: PeerId, message: Message, disk: SimDisk) -> None:
        return

    def on_state(self, peer: PeerId, state: LedgerState) -> None:
        return

    def on_report(self, receiver: PeerId, report: Ready, known: Known) -> None:
        """Check what `receiver`, an honest node, knows before and after it handles the report of
        another peer. Only in worlds with claims."""

    def on_applied(self, peer: PeerId, step: int, theta: Digest, end: Digest | None = None) -> None:
        """Check θ after `peer` applied outer step `step`. In runs with branches, `end` is the entry
        that ended the step."""

    def on_boot(self, peer: PeerId) -> None:
        return

    def on_rejoin(self, peer: PeerId, ours: Chain, theirs: Chain) -> None:
        return

    def object(self, text: str) -> None:
        self.violations.append(f"{type(self).__name__}: {text}")
