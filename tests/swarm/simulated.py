"""A simulated swarm, without sockets or clocks: sources with given rates and behaviour, and a
picker that decides what to request. Events happen in the order of simulated time, so a run can be
repeated.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from p2ptrain.ids import Digest
from p2ptrain.swarm import Picker
from p2ptrain.swarm.lanes import STALL_S

Answer = Literal["chunk", "lack", "garbage", "gone"]


@dataclass
class Source:
    """A source that sends `chunks_per_s` chunks per second, one at a time, over a path with a round
    trip of `rtt_s`.

    `holds` are the numbers of its chunks, or None for all chunks. With `garbage` it sends wrong
    bytes. From `gone_at` on, its connection is broken. From `stuck_at` on, nothing arrives. From
    `slow_from` on, its rate is multiplied by `slowed`.
    """

    chunks_per_s: float
    rtt_s: float = 0.04
    holds: frozenset[int] | None = None
    garbage: bool = False
    gone_at: float | None = None
    stuck_at: float | None = None
    slow_from: float | None = None
    slowed: float = 0.1
    free_at: float = 0.0

    def serve(self, number: int, now: float) -> tuple[float, Answer]:
        """Return when the answer to a request sent now arrives, and the answer."""
        begun = max(self.free_at, now + self.rtt_s / 2)
        if self.holds is not None and number not in self.holds:
            self.free_at = begun
            return begun + self.rtt_s / 2, "lack"
        is_slow = self.slow_from is not None and begun >= self.slow_from
        rate = self.chunks_per_s * (self.slowed if is_slow else 1.0)
        self.free_at = begun + 1 / rate
        arrives = self.free_at + self.rtt_s / 2
        if self.stuck_at is not None and arrives > self.stuck_at:
            return float("inf"), "chunk"
        return arrives, "garbage" if self.garbage else "chunk"


@dataclass
class Outcome:
    """The result of a run. `asked` counts the requests to each source. `open_max` is the largest
    number of requests that were open at a source at the same time.
    """

    seconds: float = 0.0
    arrived: list[int] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    open_max: Counter[str] = field(default_factory=Counter)
    done: bool = False


def run(sources: dict[str, Source], chunks: int) -> Outcome:
    """Fetch this many chunks. Return when all have arrived or no other chunk can arrive."""
    digests = {Digest(f"{number:064x}"): number for number in range(chunks)}
    picker, outcome, order = Picker(list(sources)), Outcome(), count()
    picker.want(digests)
    events: list[tuple[float, int, str, Digest | None, Answer]] = []
    opened: Counter[str] = Counter()
    wakes_at = [-math.inf]

    def schedule(at: float, name: str, digest: Digest | None, answer: Answer) -> None:
        heapq.heappush(events, (at, next(order), name, digest, answer))

    def ask_all(now: float) -> None:
        for name in sorted(picker.lanes):
            while (digest := picker.next(name, now)) is not None:
                at, answer = sources[name].serve(digests[digest], now)
                if at == float("inf"):
                    at, answer = now + STALL_S, "gone"
                schedule(at, name, digest, answer)
                outcome.asked[name] += 1
                opened[name] += 1
                outcome.open_max[name] = max(outcome.open_max[name], opened[name])
        again = [picker.reconsider_at(name, now) for name in picker.lanes]
        again_at = min((at for at in again if at is not None), default=math.inf)
        if again_at < math.inf and not now < wakes_at[-1] <= again_at:
            wakes_at.append(again_at)
            schedule(again_at, "", None, "lack")

    for name, source in sources.items():
        if source.gone_at is not None:
            schedule(source.gone_at, name, None, "gone")
    ask_all(0.0)
    while events and not picker.done and not picker.stuck:
        now, _, name, digest, answer = heapq.heappop(events)
        if name in picker.lanes:
            opened[name] -= digest is not None
            if answer in ("garbage", "gone"):
                picker.drop(name)
            elif digest is not None and answer == "lack":
                picker.lacks(name, digest, now)
            elif digest is not None and picker.arrived(name, digest, now):
                outcome.arrived.append(digests[digest])
        outcome.seconds = now
        ask_all(now)
    outcome.done = picker.done
    return outcome
