"""Tell admitted peers the history of the run, in signed pages from this node's series: rows of
outer steps, and events with samples.

Reading a page takes some milliseconds in a thread of its own. Rate limits apply to each peer and to
all together: charts are never a reason to delay an exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from p2ptrain.errors import TryLater
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.observe.series import SeriesReader, SeriesUnavailable
from p2ptrain.peers.protocol_names import HISTORY_EVENTS_PROTOCOL, HISTORY_PROTOCOL
from p2ptrain.peers.series.event_pages import SAMPLES_MAX, encode_events
from p2ptrain.peers.series.history_pages import (
    REQUEST_BYTES_MAX,
    ROWS_MAX,
    STEPS_MAX,
    HistoryPage,
    HistoryRequest,
    decode_request,
    encode_page,
)
from p2ptrain.rate_limit import Allowance

PEER_BURST, PEER_PER_S = 32, 0.5
"""Rate limit for pages of one peer. A run of 600 outer steps has ten pages, and one of a million
about eighty."""

BYTES_BURST, BYTES_PER_S = 16 << 20, 100_000
"""Rate limit for bytes of pages, shared by all peers. A page of 64 outer steps of 24 peers has 170
kB."""

EVENTS_READ_MAX = 2000
"""Maximum number of events that are read for a page; some are of kinds that are not told."""

WAITING_MAX = 8
LATER = "too many requests for the history of the run: ask another member, or try again in a minute"


Tell = Callable[[Context, HistoryRequest], bytes]
"""Makes an answer, in a thread."""


@dataclass(slots=True)
class HistoryLimits:
    by_peer: Allowance = field(default_factory=lambda: Allowance(PEER_BURST, PEER_PER_S))
    bytes: Allowance = field(default_factory=lambda: Allowance(BYTES_BURST, BYTES_PER_S))


def serve_history(context: Context, limits: HistoryLimits | None = None) -> None:
    """From now on, send admitted peers pages of the history. By default, `limits` has the limits
    above. They cover both kinds of pages together."""
    allowed, one = limits or HistoryLimits(), trio.CapacityLimiter(1)

    async def answer(told_of: Tell, peer: PeerId, payload: bytes) -> bytes:
        request = decode_request(payload)
        if request.run != context.run:
            return b""
        busy = one.statistics().tasks_waiting >= WAITING_MAX
        if busy or not allowed.by_peer.consume(peer, 1, context.now()):
            raise TryLater(LATER)
        told = await trio.to_thread.run_sync(told_of, context, request, limiter=one)
        if not allowed.bytes.consume("", len(told), context.now()):
            raise TryLater(LATER)
        return told

    for protocol, told_of in ((HISTORY_PROTOCOL, _rows), (HISTORY_EVENTS_PROTOCOL, _events)):
        handler = partial(answer, told_of)
        context.network.handle(protocol, handler, bytes_max=REQUEST_BYTES_MAX)


def _rows(context: Context, request: HistoryRequest) -> bytes:
    return encode_page(page_of(context.home.series, request), context.run, context.identity)


def _events(context: Context, request: HistoryRequest) -> bytes:
    """Return the events and samples that this node has recorded itself; b"" if it did not observe
    any of the outer steps, so that the asker asks another member. Rows that members have told this
    node are not told again."""
    first, last = request.first, request.last
    try:
        with SeriesReader(context.home.series) as reader:
            rows = reader.steps_between(first, last)
            if not any(row.time is not None and row.told_by is None for row in rows):
                return b""
            events = reader.own_events(first, last, EVENTS_READ_MAX)
            samples = reader.own_samples(first, last, SAMPLES_MAX)
    except SeriesUnavailable:
        return b""
    return encode_events(events, samples, context.run, context.identity)


def page_of(series: Path, request: HistoryRequest) -> HistoryPage:
    """Return the newest rows in the requested range; an empty page if there are none.

    Rows without a time are left out: this node does not know more about them than the ledger says,
    and the asker has the ledger too."""
    try:
        with SeriesReader(series) as reader:
            found = reader.steps_between(request.first, request.last, limit=STEPS_MAX)
            steps = [row for row in found if row.time is not None]
            if not steps:
                return HistoryPage()
            peers = reader.peer_steps(steps[0].step, steps[-1].step)
    except SeriesUnavailable:
        return HistoryPage()
    while len(peers) > ROWS_MAX:
        peers = [row for row in peers if row.step != steps[0].step]
        del steps[0]
    known = {row.step for row in steps}
    return HistoryPage(tuple(steps), tuple(row for row in peers if row.step in known))
