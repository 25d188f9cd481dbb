"""The objects that all threads of one attempt share."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane import UplinkShare
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.blame import Blame, SharedVerdict
from p2ptrain.ring.hop_signatures import Signing
from p2ptrain.ring.plan import ReducePlan
from p2ptrain.ring.request import ReduceRequest
from p2ptrain.ring.wire import Header, Kind

GRACE_S = 1.0
"""Maximum seconds for which a peer that leaves an attempt waits until its neighbours know why."""


@dataclass(frozen=True, slots=True)
class Attempt:
    request: ReduceRequest
    plan: ReducePlan
    tag: bytes
    """The tag of the request, which every frame carries."""
    arithmetic: Arithmetic
    verdict: SharedVerdict
    share: UplinkShare | None
    """The share of a rate-limited uplink; None if the uplink is not limited."""
    grace_s: float = GRACE_S
    signing: Signing | None = None
    """Signs and verifies sums and means; None if the peers of this reduce do not sign."""

    def peer(self, number: int) -> PeerId:
        return self.request.peers[number]

    def header(self, kind: Kind, stream: int, part: int, index: int, length: int) -> Header:
        request = self.request
        return Header(kind, stream, part, index, length, request.step, request.attempt, self.tag)

    def blame(self, peer: PeerId, what: str) -> Blame:
        return Blame((peer,), f"{label(peer)}, this node's neighbour in the exchange: {what}")

    def blame_all(self, numbers: tuple[int, ...], what: str) -> Blame:
        peers = tuple(self.peer(number) for number in numbers)
        return Blame(peers, f"{' and '.join(map(label, peers))}, in the exchange: {what}")

    def blame_me(self) -> Blame:
        """Blame ourselves: our node closed a connection. The others may repeat the reduce."""
        me = self.peer(self.request.me)
        return Blame((me,), f"{label(me)} closed its connections")
