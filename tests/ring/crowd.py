"""Peers that average in one thread, over connections that are queues."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from p2ptrain.ring import Difference, ReduceRequest, Signing, Source
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.attempt import Attempt
from p2ptrain.ring.blame import SharedVerdict
from p2ptrain.ring.lane_progress import IncomingSegment, LaneProgress, OutgoingSegment

Tamper = Callable[[int, OutgoingSegment, bytes], bytes]
"""tamper(sender, segment, body) returns the bytes that arrive."""


class Crowd:
    """Peers with connections that each hold at most `depth` segments. The segments are moved in
    random order.
    """

    def __init__(
        self,
        request: ReduceRequest,
        depth: int,
        seed: int,
        *,
        sources: Sequence[Source] = (),
        signings: Sequence[Signing] = (),
        arithmetic: Sequence[type[Arithmetic]] = (),
        tamper: Tamper = lambda sender, send, body: body,
    ) -> None:
        self.random = random.Random(seed)
        self.streams, self.depth, self.tamper = request.streams, depth, tamper
        numel, peers = request.numel, len(request.peers)
        theta, local = np.ones(numel, np.float32), np.zeros(numel, np.float32)
        self.payloads = [bytearray(request.codec.encoded_bytes(numel)) for _ in range(peers)]
        self.lost = [np.zeros(numel, np.float32) for _ in range(peers)]
        """The rounding losses of each peer."""
        self.works = []
        for me, payload in enumerate(self.payloads):
            mine = replace(request, me=me)
            source = sources[me] if sources else Difference(theta, local)
            kind = arithmetic[me] if arithmetic else Arithmetic
            made = kind(mine, source, payload, None, self.lost[me])
            verdict = SharedVerdict(lambda: None)
            attempt = Attempt(mine, mine.plan(), mine.tag(), made, verdict, None)
            if signings:
                attempt = replace(attempt, signing=signings[me])
            self.works.append(LaneProgress(attempt, 0))
        self.ready: dict[tuple[int, int], list[OutgoingSegment]] = {}
        self.held: dict[tuple[int, int, int], deque[tuple[OutgoingSegment, bytes]]] = {}
        for me, work in enumerate(self.works):
            for other in mine_of(work):
                self.ready[me, other] = []
                self.held |= {(me, other, stream): deque() for stream in range(self.streams)}
            self.give(me, work.at_start())

    def run(self) -> None:
        while self.step():
            pass

    def give(self, me: int, sends: list[OutgoingSegment]) -> None:
        for send in sends:
            self.ready[me, send.to].append(send)
            self.ready[me, send.to].sort()

    def step(self) -> bool:
        """Try every connection once, in random order. Return whether anything moved."""
        edges = list(self.held)
        self.random.shuffle(edges)
        moved = [self.push(*edge) | self.pull(*edge) for edge in edges]
        return any(moved)

    def push(self, me: int, to: int, stream: int) -> bool:
        if len(self.held[me, to, stream]) == self.depth or not self.ready[me, to]:
            return False
        send = self.ready[me, to].pop(0)
        body = self.tamper(me, send, bytes(self.works[me].body(send)))
        self.held[me, to, stream].append((send, body))
        self.give(me, self.works[me].signed_by(send))
        self.works[me].gone(send)
        return True

    def pull(self, sender: int, me: int, stream: int) -> bool:
        if not self.held[sender, me, stream]:
            return False
        send, body = self.held[sender, me, stream][0]
        arrival = IncomingSegment(sender, send.kind, send.segment)
        place = self.works[me].place(arrival)
        if place is None:
            # On a single connection a sender's segments are in order and never wait for each other.
            assert self.streams > 1 or self.works[me].held_up_by(arrival) != sender
            return False
        self.held[sender, me, stream].popleft()
        place[:] = body
        self.give(me, self.works[me].arrived(arrival))
        return True


def mine_of(work: LaneProgress) -> list[int]:
    return list(work.left_to_come)
