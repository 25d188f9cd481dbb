"""Tell admitted peers the history of the run, in signed pages from this node's series.

Reading a page takes some milliseconds in a thread of its own. Rate limits apply to each peer and to
all together: charts are never a reason to delay an exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import trio

from p2ptrain.errors import TryLater
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.observe.series import SeriesReader, SeriesUnavailable
from p2ptrain.peers.protocol_names import HISTORY_PROTOCOL
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

WAITING_MAX = 8
LATER = "too many requests for the history of the run: ask another member, or try again in a minute"


@dataclass(slots=True)
class HistoryLimits:
    by_peer: Allowance = field(default_factory=lambda: Allowance(PEER_BURST, PEER_PER_S))
    bytes: Allowance = field(default_factory=lambda: Allowance(BYTES_BURST, BYTES_PER_S))


def serve_history(context: Context, limits: HistoryLimits | None = None) -> None:
    """From now on, send admitted peers pages of the history. By default, `limits` has the limits
    above."""
    allowed, one = limits or HistoryLimits(), trio.CapacityLimiter(1)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        request = decode_request(payload)
        if request.run != context.run:
            return b""
        busy = one.statistics().tasks_waiting >= WAITING_MAX
        if busy or not allowed.by_peer.consume(peer, 1, context.now()):
            raise TryLater(LATER)
        page = await trio.to_thread.run_sync(page_of, context.home.series, request, limiter=one)
        told = encode_page(page, context.run, context.identity)
        if not allowed.bytes.consume("", len(told), context.now()):
            raise TryLater(LATER)
        return told

    context.network.handle(HISTORY_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX)


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
