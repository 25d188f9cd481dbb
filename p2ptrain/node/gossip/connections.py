"""Stay connected to all known peers, because votes and requests normally go directly from peer to
peer, and not by gossip.

Of two peers, the one with the smaller id dials first, so that they rarely dial each other at the
same time. If a connection is lost, the failure detector is told at once, and the peer is dialled
again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from p2ptrain.archive.home import Home
from p2ptrain.errors import P2PTrainError, PeerError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.failure_detector import Colour
from p2ptrain.ledger.messages.peer_reports import PeerDown, PeerUp
from p2ptrain.net import Network, PeerCache, PeerDisconnected, newest_first
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.timing import Timing
from p2ptrain.observe.journal import Journal
from p2ptrain.peers.protocol_names import provider_key

DIAL_S = 6.0

MEMBERS_DIALLED_MAX = 64
OTHERS_DIALLED_MAX = 16
"""Maximum numbers of members and of other peers that are dialled at the same time. `net/dialling`
also dials at most 16 addresses of non-members at once: further dials would only wait there until
their deadline passes."""

RETRY_MAX_S = 60.0
FIND_EVERY_S = 60.0
SAVE_EVERY_S = 30.0
FORGET_S = 600.0


async def stay_connected(context: Context) -> None:
    """Dial the known, admitted peers that are not connected, until cancelled.

    While this node has no connections, the waits between dials grow. As soon as one peer is
    connected again, the waits are reset, so all others are dialled within seconds. Only connections
    to peers that are vouched for (`PeerDirectory`) count, so that no stranger can prevent this.
    After a change of the network, all peers are dialled at once."""
    turns, alone, moves = _Turns(context.me, context.timing), False, 0
    async with trio.open_nursery() as nursery:
        dials = _Dials(context, nursery)
        while True:
            connected = context.network.connected()
            in_company = any(map(context.peers.is_vouched_for, connected))
            if moves != context.own_heartbeat.moves:
                moves = context.own_heartbeat.moves
                turns = _Turns(context.me, context.timing, all_at_once=True)
            elif alone and in_company:
                turns = _Turns(context.me, context.timing)
            alone = not in_company
            away = [peer for peer in known_peers(context) if peer not in connected]
            for peer in turns.due(away, context.now()):
                dials.add(peer)
            await trio.sleep(context.timing.connection_look_s)


class _Turns:
    """Decides when to dial each disconnected peer: soon at first, then after waits that double.
    `all_at_once`: whether the first call returns all peers."""

    def __init__(self, me: PeerId, timing: Timing, *, all_at_once: bool = False) -> None:
        self._all_at_once = all_at_once
        self._me = me
        self._timing = timing
        self._waits: dict[PeerId, tuple[float, float]] = {}
        """For each peer, when to dial it, and how long the next wait is."""

    def due(self, away: list[PeerId], now: float) -> list[PeerId]:
        """Return those peers of `away` that must be dialled now. Peers that are not in `away` are
        forgotten, so their waits start anew."""
        before, self._waits, due = self._waits, {}, list[PeerId]()
        for peer in away:
            ours = self._all_at_once or self._me < peer
            first_at = now if ours else now + self._timing.others_turn_s
            at, wait_s = before.get(peer, (first_at, self._timing.connection_retry_s))
            if now >= at:
                due.append(peer)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
                at = now + wait_s
            self._waits[peer] = at, wait_s
        self._all_at_once = False
        return due


class _Dials:
    """Dials the peers that are added, in a bounded number of tasks, and no peer twice at the same
    time. Peers wait for a free task in the order in which they were added. Members have tasks of
    their own, so that other peers cannot delay them."""

    def __init__(self, context: Context, nursery: trio.Nursery) -> None:
        self._context = context
        self._nursery = nursery
        self._members = _Lane(MEMBERS_DIALLED_MAX)
        self._others = _Lane(OTHERS_DIALLED_MAX)
        self._under_way: set[PeerId] = set()

    def add(self, peer: PeerId) -> None:
        """Dial `peer` as soon as a task is free, unless that is already planned or in progress."""
        if peer in self._under_way:
            return
        is_member = self._context.ledger.snapshot.is_member(peer)
        lane = self._members if is_member else self._others
        lane.waiting[peer] = None
        if lane.tasks < lane.tasks_max:
            lane.tasks += 1
            self._nursery.start_soon(self._work, lane)

    async def _work(self, lane: _Lane) -> None:
        while lane.waiting:
            peer = next(iter(lane.waiting))
            del lane.waiting[peer]
            if peer not in self._under_way and self._context.admission.admits(peer):
                self._under_way.add(peer)
                await _dial(self._context, peer)
                self._under_way.discard(peer)
        lane.tasks -= 1


@dataclass(slots=True)
class _Lane:
    """Peers waiting to be dialled, and the number of tasks that dial them. The address book bounds
    the number of waiting peers."""

    tasks_max: int
    tasks: int = 0
    waiting: dict[PeerId, None] = field(default_factory=dict)


def known_peers(context: Context) -> list[PeerId]:
    """Return the admitted peers with a known address, members or not."""
    return [
        peer
        for peer in context.network.dialable_peers()
        if peer != context.me and context.admission.admits(peer)
    ]


async def _dial(context: Context, peer: PeerId) -> None:
    try:
        await context.network.connect_peer(peer, deadline_s=DIAL_S)
    except PeerError as exc:
        context.journal.write("dial-failed", peer=peer, reason=exc.what)


async def bootstrap_again(context: Context) -> None:
    """Dial the configured bootstrap addresses at intervals while the run is unreachable
    (`ways_back`), until cancelled."""
    while True:
        await trio.sleep(10 * context.timing.connection_look_s)
        ways = ways_back(context)
        if not ways:
            continue
        try:
            await context.network.connect_any(ways, deadline_s=DIAL_S)
        except P2PTrainError as exc:
            context.peers.report_misbehaviour(
                "bootstrap-failed", ways[0], reason=exc.what, evidence=exc.evidence
            )


def ways_back(context: Context) -> list[str]:
    """Return the bootstrap addresses to dial now; none while the run is reachable.

    The run is reachable if a member is connected and this node hears from a quorum. Connected
    strangers do not count: otherwise any peer of an open run could keep this node from finding its
    run again. One lying member cannot do that either, since it is not a quorum. The addresses of
    connected peers are left out, since those would answer first, and no others would be tried."""
    connected, state = context.network.connected(), context.ledger.snapshot
    if any(map(state.is_member, connected)) and not context.state.isolated:
        return []
    given = context.config.bootstrap
    return [way for way in given if not any(peer in way for peer in connected)]


async def find_peers(context: Context, cache: PeerCache | None = None) -> None:
    """Register in the DHT, look for peers there, and save the addresses of known peers to `cache`,
    until cancelled. By default, `cache` is the file in this node's home."""
    cache = PeerCache(context.home.peers) if cache is None else cache
    try:
        while True:
            if context.network.connected():
                await context.network.provide(provider_key(context.run))
                await context.network.find_providers(provider_key(context.run))
            for _ in range(int(FIND_EVERY_S / SAVE_EVERY_S)):
                await _save(context, cache)
                await trio.sleep(SAVE_EVERY_S)
    finally:
        with trio.CancelScope(shield=True):
            await _save(context, cache)


def met_before(network: Network, home: Home, journal: Journal) -> list[str]:
    """Load the peers that `find_peers` saved on disk into the network. Return their addresses in
    the order in which to dial them."""
    cache = PeerCache(home.peers)
    met = cache.load()
    if cache.complaint:
        journal.write("peers-not-loaded", reason=cache.complaint)
    for peer, addresses in met.items():
        network.recall(peer, addresses)
    return newest_first(met)


async def _save(context: Context, cache: PeerCache) -> None:
    try:
        known, members = context.network.known_addresses(), context.ledger.snapshot.members
        await trio.to_thread.run_sync(cache.save, known, frozenset(members).__contains__)
    except OSError as exc:  # A missing file only makes the next start slower.
        context.peers.report_misbehaviour("peers-not-saved", str(cache), reason=str(exc))


async def notice_lost_connections(context: Context) -> None:
    """Tell the failure detector at once when a connection ends, until cancelled."""
    async for event in context.network.events:
        if isinstance(event, PeerDisconnected):
            context.peers.detector.hint_lost(event.peer, context.now())
            await _judge(context, ended=event.peer)


async def watch_peers(context: Context, *, forget_s: float = FORGET_S) -> None:
    """Watch peers with the failure detector, and tell the ledger its results, until cancelled."""
    while True:
        # The network and the listener limit their connections, and drop members last.
        context.network.set_members(context.ledger.snapshot.members)
        context.plane.listener.set_members(context.ledger.snapshot.members)
        await _expect_members(context, forget_s)
        await _judge(context)
        wait_s, deadline = context.timing.connection_look_s, context.peers.detector.next_deadline()
        if deadline is not None:
            wait_s = min(max(deadline - context.now(), 0.01), wait_s)
        await context.changes.wait_calmly(at_most_s=wait_s)


async def _expect_members(context: Context, forget_s: float) -> None:
    """Let the failure detector watch all members. Forget other peers after `forget_s` of silence.

    A member that this node has never heard from is watched too. Otherwise, after a restart of all
    nodes, nobody would notice that one member did not come back. Peers that are not members are
    forgotten because many of them come and go."""
    state, now = context.ledger.snapshot, context.now()
    for member in state.members:
        if member != context.me:
            context.peers.detector.watch(member, now)
    for record in context.peers.table:
        if now > record.heard_s + forget_s and not state.is_member(record.peer):
            context.peers.table.forget(record.peer)
            context.peers.detector.forget(record.peer)
            # The detector no longer remembers that this peer was down, so it would not report its
            # return. Therefore take back an earlier PeerDown now.
            await context.ledger.submit(PeerUp(record.peer))


async def _judge(context: Context, ended: PeerId | None = None) -> None:
    """Tell the ledger which peers are down and which are back.

    An open connection to a peer that is down is dropped. Messages that wait in it would be outdated
    when they arrive, and the peer would have to process them first. A new connection is opened
    within a second, while TCP can wait a quarter of a minute after an interruption before it
    retries. If `ended` names a peer, a connection to that peer has just ended. A current connection
    to it is kept, because it may be a new one."""
    for peer, colour in context.peers.detector.changes(context.now()):
        context.journal.write("peer", peer=peer, health=colour.value)
        if colour is Colour.RED:
            if peer != ended:
                context.network.drop(peer)
            await context.ledger.submit(PeerDown(peer))
        elif colour is Colour.GREEN:
            await context.ledger.submit(PeerUp(peer))
        context.changes.notify_all()
