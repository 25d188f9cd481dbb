"""Measure (probe) unused paths between members. Probes are rare, and a node makes one at a time.

Paths in use are measured by their transfers. Only members are probed, and not during a reduce: when
a reduce begins, the probe is cancelled. A prober dials a member's data plane and measures how fast
data arrives from there. If the two are at different sites, the dial also shows the member that it
can be dialled, so members that do not know it yet are probed first.
"""

from __future__ import annotations

import math
import time
from functools import partial

import trio

from p2ptrain.dataplane import DialHandle, Endpoint, ProbeResult, dial, probe
from p2ptrain.dataplane.probing import PURPOSE
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.gossip.reachability import is_dialable
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread

__all__ = ["PURPOSE", "is_busy", "probe_paths", "whom_to_probe"]

AGAIN_S = 600.0
"""Minimum seconds between two probes of one peer."""

DIAL_S = 8.0


async def probe_paths(context: Context) -> None:
    """Probe one peer every `Timing.probe_every_s`, until cancelled."""
    tried = dict[PeerId, float]()
    while True:
        await trio.sleep(context.timing.probe_every_s)
        endpoint = whom_to_probe(context, tried)
        if endpoint is not None:
            tried[endpoint.peer] = context.now()
            probe = partial(_probe, context, endpoint)
            await context.changes.run_while(lambda: not is_busy(context), probe)


def is_busy(context: Context) -> bool:
    """Return whether a reduce is running, which a probe would slow down. Any thread may call it."""
    return context.reduce.ring is not None or context.ledger.snapshot.phase is Phase.REDUCE


def whom_to_probe(context: Context, tried: dict[PeerId, float]) -> Endpoint | None:
    """Return the endpoint of the next peer to probe, if any: one to which the path is not measured.
    Peers that do not know that they can be dialled come first. `tried`: when each peer was last
    probed, whether or not that worked; departed members are removed."""
    state, now = context.ledger.snapshot, context.now()
    if is_busy(context) or not state.is_member(context.me):
        return None
    for departed in [peer for peer in tried if not state.is_member(peer)]:
        del tried[departed]
    found: list[tuple[bool, PeerId, Endpoint]] = []
    for member in state.members:
        record = context.peers.table.get(member)
        if record is None or record.endpoint is None or context.peers.is_down(member):
            continue
        if not context.peers.may_be_at(record.endpoint):
            continue
        beat = record.heartbeat
        measured = context.peers.paths.is_measured(context.me, member)
        wanted = not measured and is_dialable(context, member)
        if wanted and now >= tried.get(member, -math.inf) + AGAIN_S:
            found.append((beat.dialled, member, record.endpoint))
    return min(found, key=lambda each: each[:2])[2] if found else None


async def _probe(context: Context, endpoint: Endpoint) -> None:
    """Probe the peer at `endpoint`, and record the result in the path table."""
    peer, dialling = endpoint.peer, DialHandle()

    def work() -> tuple[float, ProbeResult]:
        began = time.monotonic()
        connection = dial(
            context.plane.credentials,
            endpoint,
            {"purpose": PURPOSE},
            deadline_s=DIAL_S,
            encrypted=context.manifest.encrypted,
            dialling=dialling,
        )
        seconds = time.monotonic() - began
        try:
            return seconds, probe(connection)
        finally:
            connection.close()

    try:
        seconds, found = await in_thread(work, stop=dialling.give_up)
    except (PeerError, RemoteProtocolError) as exc:
        context.peers.report_misbehaviour("probe-failed", peer, reason=exc.what)
        return
    context.peers.paths.connected(peer, seconds)
    context.peers.paths.found_delay(peer, found.round_trip_s / 2)
    if found.count_bytes:
        context.peers.paths.found_rate(peer, found.count_bytes, found.seconds)
    path = context.peers.paths.mine[peer]
    context.journal.write("probed", peer=peer, kb_per_s=path.rate, delay_ms=path.delay_ms)
