"""What one attempt to average is, and how it went.

The request is the same on all peers but for `me`: it follows from the roster and the run manifest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from p2ptrain.encoding import pack
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.ring.plan import RingPlan, plan

COUNTER_MAX = 2**32 - 1
"""Outer steps and attempts have four bytes each in a header."""


@dataclass(frozen=True, slots=True)
class ReduceRequest:
    """One attempt: the peers in ring order, their weights, and how the vector is cut.

    `deadline_s` bounds the whole attempt. `silence_s` is how long a neighbour may neither send nor
    accept anything before it is suspected; a peer that only waits for another says so four times as
    often, so silence is never inherited.
    """

    run: RunId
    step: int
    attempt: int
    peers: tuple[PeerId, ...]
    me: int
    weights: tuple[int, ...]
    numel: int
    block: int = 256
    streams: int = 2
    segment_bytes: int = 256 * 1024
    deadline_s: float = 600.0
    silence_s: float = 15.0

    def __post_init__(self) -> None:
        def demand(holds: bool, what: str) -> None:
            if not holds:
                raise LocalProtocolError(f"this is no reduce: {what}")

        demand(len(set(self.peers)) == len(self.peers), "a peer is in the ring twice")
        demand(0 <= self.me < len(self.peers), "we are not among the peers")
        demand(len(self.weights) == len(self.peers), "each peer has one weight")
        demand(all(weight >= 0 for weight in self.weights), "a weight is negative")
        demand(0 < sum(self.weights) < 2**63, "the weights have no usable sum")
        demand(0 <= self.step <= COUNTER_MAX, "the step is out of range")
        demand(0 <= self.attempt <= COUNTER_MAX, "the attempt is out of range")
        demand(self.deadline_s > 0 and self.silence_s > 0, "its time is over before it starts")
        self.plan()

    @property
    def previous(self) -> PeerId:
        return self.peers[self.me - 1]

    @property
    def next(self) -> PeerId:
        return self.peers[(self.me + 1) % len(self.peers)]

    def plan(self) -> RingPlan:
        return plan(
            len(self.peers), self.me, self.numel, self.block, self.streams, self.segment_bytes
        )

    def tag(self) -> bytes:
        """Eight bytes that peers share only if they mean the same reduce, cut the same way."""
        agreed = [
            *(self.run, self.step, self.attempt, self.peers, self.weights),
            *(self.numel, self.block, self.streams, self.segment_bytes),
        ]
        return hashlib.blake2b(pack(agreed), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class ReduceReport:
    """How a completed reduce went, seen from one peer. Times are means over the streams."""

    seconds: float
    scatter_s: float
    """Until the last sum was received; the rest is the all-gather."""
    sending_s: float
    """Spent in the sockets to the next peer: sent_bytes ÷ this is what that link took."""
    receiving_s: float
    """Spent waiting for the previous peer."""
    cpu_s: float
    """Of all the reduce's threads together."""
    sent_bytes: int
    received_bytes: int
