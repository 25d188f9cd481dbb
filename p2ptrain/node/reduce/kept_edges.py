"""Decide which edges are kept for the next reduce, reused in it, and closed. Sans-IO.

An edge is all connections of this node with one neighbour. It is kept after a complete reduce: then
the last frame of each of its connections has been sent and received, so both ends know that the
next byte begins a new message. After a failed attempt, nobody knows that, so none of its
connections is kept.

A kept edge may serve a later outer step of the same line of the ledger, if the neighbour is a
neighbour again and the number of connections is the same. The other members may change. It may not
serve another attempt at the same outer step: that attempt exists because something went wrong.

This module does not know connections. `kept_links` feeds it, and closes what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from p2ptrain.dataplane import RingKey
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId, RunId

KEPT_S = 240.0
"""Seconds for which an unused edge is kept. Some home routers forget silent connections after a few
minutes. If outer steps take longer than this, connecting takes only a small part of them."""


@dataclass(frozen=True, slots=True)
class StepOnLine:
    """Outer step `step` on the line `run` of the ledger."""

    run: RunId
    step: int


@dataclass(frozen=True, slots=True)
class KeptEdge:
    """An edge that was kept at the time `since`, after the outer step `after`."""

    peer: PeerId
    after: StepOnLine
    streams: int
    since: float

    def __post_init__(self) -> None:
        if self.streams < 1 or self.after.step < 0:
            raise LocalProtocolError(f"an edge cannot be kept: {self}")

    def why_not(self, at: StepOnLine, streams: int) -> str:
        """Return why this edge cannot serve an attempt at the outer step `at` with that many
        connections; "" if it can."""
        if at.run != self.after.run:
            return "it belongs to another line of the ledger"
        if at.step <= self.after.step:
            return "this outer step has failed once"
        if streams != self.streams:
            return f"{streams} connections are needed, not {self.streams}"
        return ""

    def refusal(self, key: RingKey, stream: int) -> str:
        """Return why the neighbour's hello `key` on the kept connection `stream` is refused; "" if
        it is accepted."""
        if key.stream != stream:
            return "this connection carries another stream"
        return self.why_not(StepOnLine(key.run, key.step), self.streams)


Closing = dict[PeerId, str]
"""The neighbours whose kept connections must be closed now, and why."""


class KeptEdges:
    """The kept edges, one for each neighbour at most. All methods but `find` return what must be
    closed."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._edges: dict[PeerId, KeptEdge] = {}

    def find(self, peer: PeerId) -> KeptEdge | None:
        """Return the kept edge with `peer`."""
        return self._edges.get(peer)

    @property
    def deadline(self) -> float:
        """The time at which the oldest edge has been kept for too long; infinite without edges."""
        since = min((edge.since for edge in self._edges.values()), default=math.inf)
        return since + self._kept_s

    def reduce_complete(
        self, after: StepOnLine, streams: Mapping[PeerId, int], now: float
    ) -> Closing:
        """Keep the edges of a complete reduce. `streams` is the number of connections with each
        neighbour. Edges that were kept before were not used, and are closed."""
        closing = self._forget(self._edges, "another connection was used")
        self._edges = {peer: KeptEdge(peer, after, count, now) for peer, count in streams.items()}
        return closing

    def attempt_begun(
        self, at: StepOnLine, streams: int, neighbours: Collection[PeerId]
    ) -> Closing:
        """Close the edges that this attempt cannot use."""
        closing: Closing = {}
        for peer, edge in self._edges.items():
            if peer not in neighbours:
                closing[peer] = "it is not a neighbour in this exchange"
            elif why := edge.why_not(at, streams):
                closing[peer] = why
        return self._without(closing)

    def attempt_failed(self) -> Closing:
        return self._forget(self._edges, "an attempt has failed")

    def taken(self, peer: PeerId) -> None:
        """Note that an attempt uses this edge from now on."""
        self._edges.pop(peer, None)

    def broken(self, peer: PeerId, why: str) -> Closing:
        """Close the whole edge, since one of its connections has ended or carries unexpected
        bytes."""
        return self._forget([peer], why)

    def reviewed(self, unwelcome: Callable[[PeerId], str], now: float) -> Closing:
        """Close edges that were kept for too long, and those with peers that are `unwelcome`, which
        returns why a peer is; "" if it is not."""
        closing: Closing = {}
        for peer, edge in self._edges.items():
            if why := unwelcome(peer):
                closing[peer] = why
            elif now >= edge.since + self._kept_s:
                closing[peer] = f"it was not used for {self._kept_s:g} s"
        return self._without(closing)

    def _forget(self, peers: Collection[PeerId], why: str) -> Closing:
        return self._without({peer: why for peer in peers if peer in self._edges})

    def _without(self, closing: Closing) -> Closing:
        for peer in closing:
            del self._edges[peer]
        return closing
