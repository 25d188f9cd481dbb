"""Stay connected to all known peers: votes, reports and bulk data are sent directly between peers.

Of two peers, the one with the smaller id dials first, so that they do not usually dial each other
at the same time. A lost connection is immediately reported to the failure detector as a hint, and
is dialled again.
"""

from __future__ import annotations

import trio

from p2ptrain.archive.home import Home
from p2ptrain.errors import P2PTrainError, PeerError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.failure_detector import Colour
from p2ptrain.ledger.messages.peer_reports import PeerDown, PeerUp
from p2ptrain.net import Network, PeerCache, PeerDisconnected, newest_first
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.journal import Journal
from p2ptrain.peers.protocol_names import provider_key

LOOK_EVERY_S = 1.0
DIAL_S = 6.0
OTHERS_TURN_S = 4.0
"""Seconds that the peer with the larger id waits for the other one to dial."""

RETRY_FIRST_S = 2.0
RETRY_MAX_S = 60.0
FIND_EVERY_S = 60.0
SAVE_EVERY_S = 30.0
FORGET_S = 600.0


async def stay_connected(parts: Parts) -> None:
    """Dial the known, admitted peers that are not connected, until cancelled.

    If all connections were lost and the first peer is connected again, the others are dialled
    immediately, no matter how long they were silent. Only peers that are vouched for count: a
    connected stranger must not hide that all of them were lost.
    """
    due_at: dict[PeerId, float] = {}
    waits_s: dict[PeerId, float] = {}
    alone = False
    async with trio.open_nursery() as nursery:
        while True:
            connected, now = parts.network.connected(), parts.now()
            in_company = any(map(parts.is_vouched_for, connected))
            if alone and in_company:
                due_at.clear()
                waits_s.clear()
            alone = not in_company
            for peer in known_peers(parts):
                if peer in connected:
                    due_at.pop(peer, None)
                    waits_s.pop(peer, None)
                    continue
                first_s = 0.0 if parts.me < peer else OTHERS_TURN_S
                if now >= due_at.setdefault(peer, now + first_s):
                    wait_s = waits_s[peer] = min(2 * waits_s.get(peer, RETRY_FIRST_S), RETRY_MAX_S)
                    due_at[peer] = now + wait_s
                    nursery.start_soon(_dial, parts, peer)
            await trio.sleep(LOOK_EVERY_S)


def known_peers(parts: Parts) -> list[PeerId]:
    """Return the admitted peers with a known address, members or not."""
    return [
        peer
        for peer in parts.network.dialable_peers()
        if peer != parts.me and parts.admission.admits(peer)
    ]


async def _dial(parts: Parts, peer: PeerId) -> None:
    try:
        await parts.network.connect_peer(peer, deadline_s=DIAL_S)
    except PeerError as exc:
        parts.journal.write("dial-failed", peer=peer, reason=exc.what)


async def bootstrap_again(parts: Parts) -> None:
    """Dial the configured bootstrap addresses whenever the run is unreachable, until cancelled."""
    while True:
        await trio.sleep(10 * LOOK_EVERY_S)
        ways = _ways_back(parts)
        if not ways:
            continue
        try:
            await parts.network.connect_any(ways, deadline_s=DIAL_S)
        except P2PTrainError as exc:
            parts.complain("bootstrap-failed", ways[0], reason=exc.what, evidence=exc.evidence)


def _ways_back(parts: Parts) -> list[str]:
    """Return the bootstrap addresses to dial now; none while the run is reachable.

    The run is reachable if a member is connected and this node hears a quorum. Connected strangers
    do not count: otherwise, in an open run, any peer with a key could keep this node away from its
    run. One lying member cannot do that either, since it is not a quorum. Addresses of connected
    peers are left out, since those peers would answer first.
    """
    connected, state = parts.network.connected(), parts.ledger.state
    if any(map(state.is_member, connected)) and not parts.standing.isolated:
        return []
    given = parts.config.bootstrap
    return [way for way in given if not any(peer in way for peer in connected)]


async def find_peers(parts: Parts) -> None:
    """Register in the DHT, look for peers there, and save addresses to disk, until cancelled."""
    cache = PeerCache(parts.home.peers)
    try:
        while True:
            if parts.network.connected():
                await parts.network.provide(provider_key(parts.run))
                await parts.network.find_providers(provider_key(parts.run))
            for _ in range(int(FIND_EVERY_S / SAVE_EVERY_S)):
                await _save(parts, cache)
                await trio.sleep(SAVE_EVERY_S)
    finally:
        with trio.CancelScope(shield=True):
            await _save(parts, cache)


def met_before(network: Network, home: Home, journal: Journal) -> list[str]:
    """Load the peers saved on disk into the network. Return their addresses in dialling order."""
    cache = PeerCache(home.peers)
    met = cache.load()
    if cache.complaint:
        journal.write("peers-not-loaded", reason=cache.complaint)
    for peer, addresses in met.items():
        network.remember(peer, addresses)
    return newest_first(met)


async def _save(parts: Parts, cache: PeerCache) -> None:
    try:
        known, members = parts.network.known_addresses(), parts.ledger.state.members
        await trio.to_thread.run_sync(cache.save, known, frozenset(members).__contains__)
    except (
        OSError
    ) as exc:  # Without the file, the next start takes longer. There is no other effect.
        parts.complain("peers-not-saved", str(cache), reason=str(exc))


async def notice_lost_connections(parts: Parts) -> None:
    """Immediately report a connection that ends without a goodbye to the failure detector."""
    async for event in parts.network.events:
        if isinstance(event, PeerDisconnected):
            parts.detector.hint_lost(event.peer, parts.now())
            await _judge(parts, ended=event.peer)


async def watch_peers(parts: Parts) -> None:
    """Update the failure detector whenever a colour may have changed, until cancelled."""
    while True:
        _keep_room_for_members(parts)
        await _expect_members(parts)
        await _judge(parts)
        deadline = parts.detector.next_deadline()
        until_s = LOOK_EVERY_S if deadline is None else deadline - parts.now()
        await parts.changes.wait(at_most_s=min(max(until_s, 0.01), LOOK_EVERY_S))


def _keep_room_for_members(parts: Parts) -> None:
    """Reserve connections for members: both planes limit them, and anybody may join an open run."""
    members = parts.ledger.state.members
    parts.network.know_members(members)
    parts.listener.know_members(members)


async def _expect_members(parts: Parts) -> None:
    """Watch all members, and forget other peers that have been silent for long.

    A member that this node has never heard turns red like any other. Otherwise, after a restart of
    all nodes, nobody would notice that one member did not come back. Peers that are not members are
    forgotten because many of them come and go."""
    state, now = parts.ledger.state, parts.now()
    for member in state.members:
        if member != parts.me:
            parts.detector.watch(member, now)
    for view in parts.peers:
        if now > view.heard_s + FORGET_S and not state.is_member(view.peer):
            parts.peers.forget(view.peer)
            parts.detector.forget(view.peer)
            # If it comes back, the detector will not remember that it was ever down.
            await parts.tell(PeerUp(view.peer))


async def _judge(parts: Parts, ended: PeerId | None = None) -> None:
    """Tell the ledger which peers are down and which are back.

    An open connection to a peer that is down is dropped. Messages waiting in it would arrive stale,
    and the peer would have to process them first. A new connection is opened within a second, while
    TCP can wait a quarter of a minute after an interruption before it retries. If a connection to
    the peer `ended` has just ended, its current connection is kept: it may be new.
    """
    for peer, colour in parts.detector.changes(parts.now()):
        parts.journal.write("peer", peer=peer, health=colour.value)
        if colour is Colour.RED:
            if peer != ended:
                parts.network.drop(peer)
            await parts.tell(PeerDown(peer))
        elif colour is Colour.GREEN:
            await parts.tell(PeerUp(peer))
        parts.changes.ring()
