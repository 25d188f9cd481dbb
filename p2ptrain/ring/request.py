"""The description of one attempt at a reduce, and the report about it.

The request follows from the roster and the run manifest. All peers have the same request, except
for `me`.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

from p2ptrain.encoding import pack
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import UNBOUNDED, Codec
from p2ptrain.ring.plan import STREAMS_MAX, ReducePlan, plan
from p2ptrain.ring.schedules import Schedule

SILENCE_S = 8.0
"""Seconds that a neighbour may be silent, neither sending nor accepting data, before it is
suspected. This is longer than TCP needs to resume after an outage of 3 s (it retransmits after 0.2,
0.6, 1.4, 3 and 6.2 s). It is short enough that a silent participant costs the other participants
less than 15 s, including the next attempt."""

SEGMENT_BYTES = 1024 * 1024
"""Maximum bytes of a segment, unless a test or a measurement asks for another number."""

COUNTER_MAX = 2**32 - 1
"""The largest outer step or attempt: a header has four bytes for each of the two."""


@dataclass(frozen=True, slots=True)
class ReduceRequest:
    """One attempt: the peers in ring order, their weights, and how the vector is divided.

    `streams` is the number of connections to each neighbour. `lanes` is the number of threads; the
    vector and the streams are divided among them. One thread keeps up with several Gbit/s. More
    streams help on paths where the window of one connection is smaller than the path's capacity.

    `influence_max` bounds the magnitude of each element of each peer's pseudo-gradient; see
    `influence`. `deadline_s` bounds the whole attempt. A neighbour that is silent for `silence_s`
    is suspected. A peer that only waits for another peer says so four times in that period, so that
    it is not suspected itself. If `signed`, peers sign their sums and means; see `hop_signatures`.
    """

    run: RunId
    step: int
    attempt: int
    peers: tuple[PeerId, ...]
    me: int
    weights: tuple[int, ...]
    numel: int
    codec: Codec
    schedule: Schedule = "ring"
    streams: int = 2
    lanes: int = 1
    segment_bytes: int = SEGMENT_BYTES
    influence_max: float = UNBOUNDED
    deadline_s: float = 600.0
    silence_s: float = SILENCE_S
    signed: bool = False

    def __post_init__(self) -> None:
        peers = len(self.peers)
        demands = {
            "a peer is listed twice": len(set(self.peers)) == peers,
            "this node is not among the peers": 0 <= self.me < peers,
            "the number of weights is not the number of peers": len(self.weights) == peers,
            "a weight is negative": all(weight >= 0 for weight in self.weights),
            "the sum of the weights is out of range": 0 < sum(self.weights) < 2**63,
            "the step is out of range": 0 <= self.step <= COUNTER_MAX,
            "the attempt is out of range": 0 <= self.attempt <= COUNTER_MAX,
            "influence_max is out of range": 0 < self.influence_max <= UNBOUNDED,
            "deadline_s and silence_s must be positive": self.deadline_s > 0 < self.silence_s,
            f"streams must be between lanes and {STREAMS_MAX}": (
                self.lanes <= self.streams <= STREAMS_MAX
            ),
        }
        for fault, holds in demands.items():
            if not holds:
                raise LocalProtocolError(f"this exchange is impossible: {fault}")
        self.plan()

    @property
    def neighbours(self) -> tuple[PeerId, ...]:
        """The peers to which this peer needs connections, one per stream."""
        return tuple(self.peers[number] for number in self.plan().neighbours)

    @property
    def scaled_weight(self) -> float:
        """Our weight, scaled so that the mean of all weights is 1. Then sums stay near the size of
        their terms: fp16 has a narrow range."""
        return float(len(self.peers)) * self.weights[self.me] / sum(self.weights)

    def plan(self) -> ReducePlan:
        peers = len(self.peers)
        return plan(
            self.schedule, peers, self.me, self.numel, self.codec, self.lanes, self.segment_bytes
        )

    def tag(self) -> bytes:
        """Return eight bytes that mark the frames of this attempt. They are equal on two peers only
        if their requests describe the same reduce and divide the vector in the same way.
        """
        agreed = [
            *(self.run, self.step, self.attempt, self.peers, self.weights, self.schedule),
            *(self.numel, self.codec.name, self.codec.block, self.streams, self.lanes),
            *(self.segment_bytes, float(self.influence_max)),
            *(["signed"] if self.signed else []),
        ]
        return hashlib.blake2b(pack(agreed), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes exchanged with one neighbour, headers included.

    `sending_s` is the time during which we were sending to it, so sent_bytes ÷ sending_s is the
    rate of the path.
    """

    peer: PeerId
    sent_bytes: int
    received_bytes: int
    sending_s: float

    @property
    def sent_bytes_per_s(self) -> float:
        """The rate at which the path to the neighbour accepted bytes; 0 if nothing was sent."""
        return self.sent_bytes / self.sending_s if self.sending_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ReduceStatistics:
    """Timings and traffic of a completed reduce, as seen by one peer. `arithmetic_s`, `moving_s`
    and `waiting_s` are means over the lanes.
    """

    seconds: float
    scatter_s: float
    """Seconds until the last sum was received. In the rest of the time, means were received."""
    arithmetic_s: float
    moving_s: float
    """Seconds spent on sockets."""
    waiting_s: float
    """Seconds spent waiting for neighbours, with nothing to do."""
    cpu_s: float
    """CPU seconds of all threads of the reduce together."""
    traffic: tuple[Traffic, ...]

    @property
    def gather_s(self) -> float:
        """Seconds from the last sum to the last mean."""
        return self.seconds - self.scatter_s

    def facts(self) -> dict[str, object]:
        """Return the report as plain values, for logs."""
        rates = {each.peer: each.sent_bytes_per_s for each in self.traffic}
        return {
            **asdict(self),
            "gather_s": self.gather_s,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "sent_bytes_per_s_by_peer": rates,
        }

    @property
    def sent_bytes(self) -> int:
        return sum(each.sent_bytes for each in self.traffic)

    @property
    def received_bytes(self) -> int:
        return sum(each.received_bytes for each in self.traffic)
