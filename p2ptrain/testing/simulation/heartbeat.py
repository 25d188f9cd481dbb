"""What a simulated node gossips every two seconds, and at once upon change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from p2ptrain.ids import PeerId
from p2ptrain.ledger.events import Event, Heard, Joining, Leaving, Ready, ReduceDone, ReduceFailed


@dataclass(frozen=True, slots=True)
class Heartbeat:
    peer: PeerId
    height: int
    joining: bool
    leaving: bool
    ready: Ready | None
    done: ReduceDone | None
    failed: ReduceFailed | None

    def events(self) -> Iterator[Event]:
        yield Heard(self.peer, self.height)
        if self.joining:
            yield Joining(self.peer)
        if self.leaving:
            yield Leaving(self.peer)
        for report in (self.ready, self.done, self.failed):
            if report is not None:
                yield report
