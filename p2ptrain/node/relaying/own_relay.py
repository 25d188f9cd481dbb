"""This node as a relay: it joins two members that both dial it (`dataplane/relaying`).

The ledger says who may ask, and the organisers and delegates say who else may fetch. All others are
refused, and the journal says so. The relay runs in the listener's threads; it reads the ledger's
newest state, which is immutable.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial

from p2ptrain.dataplane.relaying import (
    PURPOSE,
    EdgeId,
    EdgeKey,
    EndedEdge,
    Pace,
    Refused,
    RelayLimits,
    RelayLog,
    RelayRequest,
    RelayServer,
    RelayTotals,
    RelayView,
    ReverseDials,
)
from p2ptrain.dataplane.relaying.policy import LIMIT_SHARE
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.names import peer_name
from p2ptrain.node.state.context import Context
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import size
from p2ptrain.rate_limit import Allowance

REFUSALS_AT_ONCE, REFUSALS_PER_S = 4, 1 / 60
"""Journal lines about refusals, for each peer: a peer may ask many times."""

RATE_MIN = 32_000
"""Minimum rate of all relayed bytes in bytes per second. A peer that fetches prefers to wait for
another relay, or for another source."""

PEERS_SHOWN_MAX = 5
"""Maximum number of peers in the status; its JSON form has all."""


def open_relay(stack: ExitStack, context: Context) -> None:
    """Relay until `stack` is closed, unless the user has switched it off, or has set an upload
    limit so low that a relayed connection would be of no use. In any case, take the calls of peers
    that this node has asked to dial it."""
    config, uplink, relaying = context.config, context.plane.uplink, context.peers.relaying
    limit = context.limit_up_bytes_per_s
    too_slow = limit is not None and limit * LIMIT_SHARE < RATE_MIN
    if not config.relay_edges or too_slow:
        relaying.reverse_dials = ReverseDials(context.me)
        context.plane.listener.handle(PURPOSE, relaying.reverse_dials)
        return
    server = RelayServer(
        partial(own_view, context),
        RelayLimits(config.relay_edges, config.relay_bytes_per_day),
        pace=Pace(uplink, limit),
        log=JournalOfRelay(context.journal),
    )
    stack.enter_context(server)
    relaying.server, relaying.reverse_dials = server, ReverseDials(context.me, server)
    context.plane.listener.handle(PURPOSE, relaying.reverse_dials)


def own_view(context: Context) -> RelayView:
    """Return what this node's ledger says about the current attempt. Any thread may call this."""
    state, run, is_visitor = context.ledger.snapshot, context.run, context.peers.is_visitor
    roster = state.roster
    if state.phase is Phase.REDUCE and roster is not None:
        where = roster.step, roster.attempt, roster.peers
        return RelayView(run, state.since, *where, is_visitor=is_visitor)
    return RelayView(run, state.since, state.step, state.attempt, is_visitor=is_visitor)


class JournalOfRelay(RelayLog):
    """Writes what the relay does into the journal: two lines for an edge, and a few refusals."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._refusals = Allowance(REFUSALS_AT_ONCE, REFUSALS_PER_S)

    def joined(self, request: RelayRequest) -> None:
        key = request.key
        if not isinstance(key, EdgeKey) or key.stream == 0:
            self._journal.write("relay-joined", **_named(request.edge))

    def ended(self, ended: EndedEdge, reason: str) -> None:
        numbers = {"bytes": ended.relayed_bytes, "seconds": round(ended.seconds, 3)}
        self._journal.write("relay-ended", **_named(ended.edge), **numbers, reason=reason)

    def refused(self, request: RelayRequest, refused: Refused) -> None:
        with self._lock:
            if not self._refusals.consume(request.peer, 1, time.monotonic()):
                return
        asked = {"peer": request.peer, "other": request.other}
        self._journal.write("relay-refused", **asked, kind=refused.kind, reason=refused.reason)


def _named(edge: EdgeId) -> dict[str, object]:
    kind, *about = edge.purpose
    named: dict[str, object] = {"peers": list(edge.pair), "purpose": kind}
    return (
        named if edge.is_fetch else named | dict(zip(("step", "attempt"), about[1:], strict=True))
    )


def in_words(totals: RelayTotals | None) -> str:
    """Describe what this node relays, for the status; "" if it does not relay."""
    if totals is None or not (totals.edges_most or totals.total_bytes):
        return ""
    said = f"{totals.edges_now} of {totals.edges_most} pairs now"
    if not totals.total_bytes:
        return f"{said}; nothing relayed yet"
    said = f"{said}; {size(totals.today_bytes)} today, {size(totals.total_bytes)} in all"
    today = dict(totals.today_by_peer)
    shown = [
        f"{peer_name(peer)} sent {size(today.get(peer, 0))} today, {size(sent)} in all"
        for peer, sent in totals.by_peer[:PEERS_SHOWN_MAX]
    ]
    return "; ".join((said, *shown))


def as_json(totals: RelayTotals | None) -> dict[str, object]:
    """Return the numbers of `in_words`, with the bytes that each peer sent."""
    if totals is None:
        return {}
    by_peer: dict[PeerId, int] = dict(totals.by_peer)
    today: dict[PeerId, int] = dict(totals.today_by_peer)
    return asdict(totals) | {"by_peer": by_peer, "today_by_peer": today}
