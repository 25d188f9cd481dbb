"""What all threads of one attempt have in common."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.names import label
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.blame import Blame, Verdict
from p2ptrain.ring.bucket import TokenBucket
from p2ptrain.ring.plan import RingPlan
from p2ptrain.ring.request import ReduceRequest


@dataclass(frozen=True, slots=True)
class Attempt:
    request: ReduceRequest
    plan: RingPlan
    tag: bytes
    arithmetic: Arithmetic
    verdict: Verdict
    rate_limit: TokenBucket | None

    def blame_previous(self, what: str) -> Blame:
        peer = self.request.previous
        return Blame((peer,), f"{label(peer)}, before us in the ring: {what}")

    def blame_next(self, what: str) -> Blame:
        peer = self.request.next
        return Blame((peer,), f"{label(peer)}, after us in the ring: {what}")

    def blame_me(self) -> Blame:
        """Our owner closed a connection under us without a word: without us, it may go on."""
        me = self.request.peers[self.request.me]
        return Blame((me,), f"{label(me)} shut its connections down")
