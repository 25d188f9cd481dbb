"""Probe unused paths and peers that have never been dialled, rarely and one at a time.

A path in use is measured by its transfers. Only members are probed, and not during a reduce: when a
reduce begins, the probe is cancelled. The prober measures the data that it receives. The dial
itself shows the other peer that it can be dialled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import trio

from p2ptrain.dataplane import Dialling, Endpoint, Probed, dial, probe
from p2ptrain.dataplane.probing import PURPOSE
from p2ptrain.errors import PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.gossip.reachability import may_be_at
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.threads import in_thread

__all__ = ["PURPOSE", "Tried", "is_busy", "probe_paths", "whom_to_probe"]

PROBE_EVERY_S = 20.0
"""Seconds between two probes. A probe takes at most 2 MiB, so probes use up to 0.8 Mbit/s while
there are paths to probe."""

AGAIN_S = 600.0
DIAL_S = 8.0


@dataclass(slots=True)
class Tried:
    """When each peer was last probed, with any result."""

    at: dict[PeerId, float] = field(default_factory=dict)

    def since(self, peer: PeerId, now: float) -> float:
        return now - self.at.get(peer, -AGAIN_S)


async def probe_paths(parts: Parts) -> None:
    """Probe one peer after another until cancelled."""
    tried = Tried()
    while True:
        await trio.sleep(PROBE_EVERY_S)
        endpoint = whom_to_probe(parts, tried)
        if endpoint is not None:
            tried.at[endpoint.peer] = parts.now()
            await _unless_busy(parts, endpoint)


def is_busy(parts: Parts) -> bool:
    """Return whether there is a current reduce, which a probe would slow down. Callable from any
    thread."""
    return parts.standing.ring is not None or parts.ledger.state.phase is Phase.REDUCE


def whom_to_probe(parts: Parts, tried: Tried) -> Endpoint | None:
    """Return the next peer to probe. Peers never dialled come first, then unmeasured paths."""
    state, now = parts.ledger.state, parts.now()
    if is_busy(parts) or not state.is_member(parts.me):
        return None
    tried.at = {peer: at for peer, at in tried.at.items() if state.is_member(peer)}
    found: list[tuple[bool, PeerId, Endpoint]] = []
    for member in state.members:
        view = parts.peers.get(member)
        if view is None or view.endpoint is None or parts.is_down(member):
            continue
        if not may_be_at(parts, view.endpoint):
            continue
        beat = view.heartbeat
        wanted = not beat.dialled or not parts.paths.is_measured(parts.me, member)
        if wanted and beat.dialable and tried.since(member, now) >= AGAIN_S:
            found.append((beat.dialled, member, view.endpoint))
    return min(found, key=lambda each: each[:2])[2] if found else None


async def _unless_busy(parts: Parts, endpoint: Endpoint) -> None:
    """Probe and record the result. Cancel the probe as soon as a reduce begins."""

    async def watch() -> None:
        while not is_busy(parts):
            await parts.changes.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await _probe(parts, endpoint)
        nursery.cancel_scope.cancel()


async def _probe(parts: Parts, endpoint: Endpoint) -> None:
    peer, dialling = endpoint.peer, Dialling()

    def work() -> tuple[float, Probed]:
        began = time.monotonic()
        encrypted = parts.manifest.encrypted
        hello = {"purpose": PURPOSE}
        connection = dial(
            parts.credentials,
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
        parts.complain("probe-failed", peer, reason=exc.what)
        return
    parts.paths.connected(peer, seconds)
    parts.paths.found_delay(peer, found.round_trip_s / 2)
    if found.count_bytes:
        parts.paths.found_rate(peer, found.count_bytes, found.seconds)
    path = parts.paths.mine[peer]
    parts.journal.write("probed", peer=peer, kb_per_s=path.rate, delay_ms=path.delay_ms)
