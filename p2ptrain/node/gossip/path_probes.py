"""Probe unused paths and peers that have never been dialled, rarely and one at a time.

A path in use is measured by its transfers. Only members are probed, and not during a reduce: when a
reduce begins, the probe is cancelled. The prober measures the data that it receives. The dial
itself shows the other peer that it can be dialled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import trio

from p2ptrain.dataplane import DialHandle, Endpoint, ProbeResult, dial, probe
from p2ptrain.dataplane.probing import PURPOSE
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread

__all__ = ["PURPOSE", "LastProbes", "is_busy", "probe_paths", "whom_to_probe"]


AGAIN_S = 600.0
DIAL_S = 8.0


@dataclass(slots=True)
class LastProbes:
    """When each peer was last probed, with any result."""

    at: dict[PeerId, float] = field(default_factory=dict)

    def since(self, peer: PeerId, now: float) -> float:
        return now - self.at.get(peer, -AGAIN_S)


async def probe_paths(context: Context) -> None:
    """Probe one peer after another until cancelled."""
    tried = LastProbes()
    while True:
        await trio.sleep(context.timing.probe_every_s)
        endpoint = whom_to_probe(context, tried)
        if endpoint is not None:
            tried.at[endpoint.peer] = context.now()
            await _unless_busy(context, endpoint)


def is_busy(context: Context) -> bool:
    """Return whether there is a current reduce, which a probe would slow down. Callable from any
    thread."""
    return context.reduce.ring is not None or context.ledger.snapshot.phase is Phase.REDUCE


def whom_to_probe(context: Context, tried: LastProbes) -> Endpoint | None:
    """Return the next peer to probe. Peers never dialled come first, then unmeasured paths."""
    state, now = context.ledger.snapshot, context.now()
    if is_busy(context) or not state.is_member(context.me):
        return None
    tried.at = {peer: at for peer, at in tried.at.items() if state.is_member(peer)}
    found: list[tuple[bool, PeerId, Endpoint]] = []
    for member in state.members:
        record = context.peers.table.get(member)
        if record is None or record.endpoint is None or context.peers.is_down(member):
            continue
        if not context.peers.may_be_at(record.endpoint):
            continue
        beat = record.heartbeat
        wanted = not beat.dialled or not context.peers.paths.is_measured(context.me, member)
        if wanted and beat.dialable and tried.since(member, now) >= AGAIN_S:
            found.append((beat.dialled, member, record.endpoint))
    return min(found, key=lambda each: each[:2])[2] if found else None


async def _unless_busy(context: Context, endpoint: Endpoint) -> None:
    """Probe and record the result. Cancel the probe as soon as a reduce begins."""

    async def watch() -> None:
        while not is_busy(context):
            await context.changes.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await _probe(context, endpoint)
        nursery.cancel_scope.cancel()


async def _probe(context: Context, endpoint: Endpoint) -> None:
    peer, dialling = endpoint.peer, DialHandle()

    def work() -> tuple[float, ProbeResult]:
        began = time.monotonic()
        encrypted = context.manifest.encrypted
        hello = {"purpose": PURPOSE}
        connection = dial(
            context.plane.credentials,
            endpoint,
            hello,
            deadline_s=DIAL_S,
            encrypted=encrypted,
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
