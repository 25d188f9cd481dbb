"""Send this node's heartbeats, entries and documents, and receive those of other peers.

Received messages become events for the ledger, arrivals for the failure detector, and rows of the
peer table. A faulty message is dropped; other messages of its sender still count.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from p2ptrain.encoding import pack
from p2ptrain.errors import ProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import PeerHeight
from p2ptrain.ledger.messages.peer_reports import (
    AllowedPeers,
    Joining,
    Leaving,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
    Staying,
)
from p2ptrain.ledger.messages.wire import decode as decode_ledger
from p2ptrain.node.consensus import inbox
from p2ptrain.node.gossip import outdated_heartbeats, reachability
from p2ptrain.node.gossip.allowlist_notices import NOTICE_BYTES_MAX, Notices, Question, heed
from p2ptrain.node.gossip.amendment_gossip import take_amendments
from p2ptrain.node.gossip.reachability import judged_reach
from p2ptrain.node.joining.duplicate_identity import take_notice
from p2ptrain.node.state.context import Parts
from p2ptrain.node.training import evaluation_task
from p2ptrain.observe.states import words
from p2ptrain.peers.heartbeat import Heartbeat, SnapshotReport
from p2ptrain.peers.heartbeat_delta import FullHeartbeat, decode_beat
from p2ptrain.peers.incarnations import Mark
from p2ptrain.peers.misbehaviour_log import COMPLAINT_S
from p2ptrain.peers.protocol_names import (
    allowlist_topic,
    amendments_topic,
    heartbeat_topic,
    identity_topic,
    ledger_topic,
)

HEARTBEAT_S = 2.0
PEERS_AT_FULL_RATE = 20
"""Number of peers up to which each sends a heartbeat every HEARTBEAT_S. A message costs every host
about 3.5 ms of CPU time: twenty peers use 3.5 % of a core."""

OTHERS_MAX = 20
"""Maximum number of non-members that lengthen the heartbeat interval; twenty can double it. In an
open run, anybody can create hundreds of peers, and a node with an interval lengthened by hundreds
looks failed.
"""

PATIENCE = 1.25
"""Number of intervals after a heartbeat within which a live node sends the next one."""

HASTE_S = 0.05
"""Minimum seconds between two heartbeats: changes within this time share one."""

ALLOWLIST_S = 30.0

ALLOWLIST_BYTES_MAX = 32 << 10
"""Maximum size of a gossiped allowlist. A longer one is only announced, and peers that lack it
request it: gossip would send it many times."""

Take = Callable[[Parts, PeerId, bytes], Awaitable[None]]


async def speak(parts: Parts) -> None:
    """Send a heartbeat every `interval_s`, and immediately after a change, until cancelled."""
    for serial in itertools.count():
        parts.heartbeat_due = trio.Event()
        lacks, incarnation = parts.peers.pop_lacking(), parts.identities.incarnation
        if parts.saying.is_full_due(incarnation, serial) or parts.paths.has_news(parts.now()):
            parts.paths.choose_page(parts.now())
        parts.standing.dialled, parts.standing.dialable = judged_reach(parts)
        reachability.warn(parts)
        heartbeat = describe(parts, incarnation, serial, lacks)
        await parts.network.publish(heartbeat_topic(parts.run), parts.saying.encode_next(heartbeat))
        await trio.sleep(HASTE_S)
        with trio.move_on_after(interval_s(speakers(parts))):
            await parts.heartbeat_due.wait()


def speakers(parts: Parts) -> int:
    """Return how many peers send heartbeats, as far as we hear. Other nodes count about the
    same."""
    most = len(parts.ledger.state.members) + OTHERS_MAX
    return min(len(parts.peers), most) if parts.admission.is_open else len(parts.peers)


def interval_s(peers: int) -> float:
    """Return the seconds between two heartbeats of one node, in a run of this many peers."""
    return HEARTBEAT_S * max(1.0, peers / PEERS_AT_FULL_RATE)


def describe(
    parts: Parts, incarnation: int, serial: int, lacks: tuple[PeerId, ...] = ()
) -> Heartbeat:
    """Return this node's current heartbeat."""
    state, standing = parts.ledger.state, parts.standing
    return Heartbeat(
        run=parts.run,
        incarnation=incarnation,
        serial=serial,
        state=words(standing.shown),
        trains=parts.trains,
        joining=parts.wants_to_join(),
        leaving=standing.leaving,
        height=state.height,
        line=state.line,
        head=state.head,
        step=state.step,
        inner_step=standing.inner_step,
        inner_steps=standing.inner_steps,
        tokens_per_s=int(standing.tokens_per_s),
        endpoint=pack(parts.endpoint.to_wire()),
        addresses=tuple(parts.network.addresses()),
        ready=standing.ready,
        reduce=standing.reduce,
        lacks=lacks,
        dialled=standing.dialled,
        dialable=standing.dialable,
        paths=parts.paths.page,
        validation=parts.validation.own,
        snapshot=_newest_snapshot(parts),
        mark=parts.identities.watch.mark.signature,
    )


def _newest_snapshot(parts: Parts) -> SnapshotReport | None:
    """Return the newest snapshot that this process wrote or started from."""
    own = parts.ledger.view.own_snapshots
    return SnapshotReport(max(own), own[max(own)]) if own else None


async def listen(parts: Parts) -> None:
    """Receive what other peers publish, until cancelled."""
    network, run = parts.network, parts.run
    network.judge(heartbeat_topic(run), partial(outdated_heartbeats.is_wanted, parts))
    async with trio.open_nursery() as nursery:
        for topic, take in (
            (heartbeat_topic(run), _take_heartbeat),
            (ledger_topic(run), _take_entry),
            (allowlist_topic(run), partial(_take_allowlist, nursery, Notices())),
            (amendments_topic(run), take_amendments),
            (identity_topic(run), take_notice),
        ):
            nursery.start_soon(_follow, parts, network.subscribe(topic), take)
        nursery.start_soon(_offer_allowlist, parts)
        nursery.start_soon(_complain_of_floods, parts)


async def _follow(
    parts: Parts, messages: trio.abc.ReceiveChannel[tuple[PeerId, bytes]], take: Take
) -> None:
    async for peer, payload in messages:
        if peer == parts.me or not parts.admission.admits(peer):
            continue
        try:
            await take(parts, peer, payload)
        except (ProtocolError, RunMismatch) as exc:
            parts.complain("bad-gossip", peer, reason=exc.what)


async def _complain_of_floods(parts: Parts) -> None:
    """Report peers that send more gossip than we process. They may only be forwarding another
    peer's flood."""
    while True:
        for peer, count in parts.network.take_floods().items():
            parts.complain("gossip-flood", peer, unread=count)
        await trio.sleep(COMPLAINT_S)


async def _take_heartbeat(parts: Parts, peer: PeerId, payload: bytes) -> None:
    beat = decode_beat(payload)
    if outdated_heartbeats.is_outdated(parts, peer, beat):
        return
    if isinstance(beat, FullHeartbeat):
        _take_in(parts, peer, beat.heartbeat, beat)
    elif (heartbeat := parts.peers.restore(peer, beat)) is not None:
        _take_in(parts, peer, heartbeat)
    else:
        if parts.peers.note_alive(peer, beat, parts.now()):
            _is_alive(parts, peer, beat.incarnation, beat.serial)
            parts.changes.ring()
        _ask_for_full(parts)


def _take_in(
    parts: Parts, peer: PeerId, heartbeat: Heartbeat, base: FullHeartbeat | None = None
) -> None:
    incarnation, serial = heartbeat.incarnation, heartbeat.serial
    if heartbeat.run != parts.run:
        return
    if not parts.identities.incarnations.note_decoded(peer, incarnation, serial, parts.now()):
        return
    if heartbeat.mark:
        parts.identities.incarnations.keep_mark(peer, Mark(incarnation, heartbeat.mark))
    before = parts.peers.get(peer)
    view = parts.peers.note_heartbeat(peer, heartbeat, parts.now(), base)
    if view is None:
        return
    if view.endpoint is not None:
        parts.listener.trust(view.endpoint.certificate_der)
    parts.network.remember(peer, heartbeat.addresses)
    _is_alive(parts, peer, incarnation, serial)
    if before is None or before.heartbeat.incarnation != incarnation:
        parts.saying.full_next = (
            True  # It has just started, and does not have a full heartbeat of ours.
        )
    if parts.me in heartbeat.lacks:
        _answer_in_full(parts)
    parts.paths.note_report(peer, heartbeat.paths, parts.ledger.state.since)
    evaluation_task.hear(parts, peer, heartbeat)
    report(parts, peer, heartbeat, before.heartbeat if before else None)
    parts.changes.ring()


def _is_alive(parts: Parts, peer: PeerId, incarnation: int, serial: int) -> None:
    now = parts.now()
    again_s = PATIENCE * interval_s(speakers(parts))
    if parts.identities.incarnations.note_arrival(peer, incarnation, serial, now, again_s):
        parts.detector.note_arrival(peer, now)


def _ask_for_full(parts: Parts) -> None:
    """Ask peers for full heartbeats, since we cannot decode their small ones. Send the request
    early, but not more often than our regular heartbeats.
    """
    now = parts.now()
    if now >= parts.saying.asked_s + interval_s(speakers(parts)):
        parts.saying.asked_s = now
        parts.speak_now()


def _answer_in_full(parts: Parts) -> None:
    """Make the next heartbeat a full one. Send it early, but at most one extra heartbeat per
    regular one: otherwise requests could make the entire run send more than twice as much.
    """
    now, saying = parts.now(), parts.saying
    saying.full_next = True
    if now >= saying.answered_s + interval_s(speakers(parts)):
        saying.answered_s = now
        parts.speak_now()


def report(parts: Parts, peer: PeerId, heartbeat: Heartbeat, before: Heartbeat | None) -> None:
    """Send the ledger the events that a heartbeat contains. The ledger handles repeated events.

    A restarted node has lost the work that it had reported as ready. It counts as ready with no
    tokens until it reports new work, so the others neither wait for it nor average with it.
    """
    parts.hear(PeerHeight(peer, heartbeat.height, heartbeat.line))
    if heartbeat.leaving:
        parts.hear(Leaving(peer))
    elif heartbeat.joining:
        parts.hear(Joining(peer))
    elif peer in parts.ledger.view.leaving:
        parts.hear(Staying(peer))
    ready, reduce, snapshot = heartbeat.ready, heartbeat.reduce, heartbeat.snapshot
    if snapshot is not None:
        parts.hear(SnapshotTaken(peer, snapshot.step, snapshot.digest))
    if ready is not None:
        parts.hear(Ready(peer, ready.step, ready.tokens, ready.blocks))
    elif not heartbeat.trains or _lost_its_work(heartbeat, before):
        parts.hear(Ready(peer, heartbeat.step, 0, 0))
    if reduce is None:
        return
    if reduce.update is None:
        parts.hear(ReduceFailed(peer, reduce.step, reduce.attempt, reduce.suspects))
    else:
        parts.hear(ReduceDone(peer, reduce.step, reduce.attempt, reduce.update))


def _lost_its_work(heartbeat: Heartbeat, before: Heartbeat | None) -> bool:
    if before is None or before.ready is None:
        return False
    return before.incarnation != heartbeat.incarnation and before.ready.step == heartbeat.step


async def _take_entry(parts: Parts, peer: PeerId, payload: bytes) -> None:
    inbox.receive(parts, peer, decode_ledger(payload))


async def _take_allowlist(
    nursery: trio.Nursery, notices: Notices, parts: Parts, peer: PeerId, payload: bytes
) -> None:
    if len(payload) > NOTICE_BYTES_MAX:
        if parts.admission.consider(payload):
            await admission_changed(parts)
    elif (question := heed(parts, notices, peer, payload)) is not None:
        nursery.start_soon(_ask_for_list, parts, question)


async def _ask_for_list(parts: Parts, question: Question) -> None:
    if await question():
        await admission_changed(parts)


async def admission_changed(parts: Parts) -> None:
    """Apply a newer allowlist: tell the network and the ledger, and forward it."""
    allowlist = parts.admission.allowlist
    assert allowlist is not None
    parts.journal.write("allowlist", sequence=allowlist.allowlist.sequence)
    # Publish it before peers that are no longer listed are dropped, so that they can receive it
    # too.
    await _publish_allowlist(parts)
    parts.network.refresh_admission()
    for view in parts.peers:
        if not parts.admission.admits(view.peer):
            parts.listener.drop(view.peer)
            # It will not be heard any more, so the others do not have to wait for the detector.
            parts.detector.hint_lost(view.peer, parts.now())
    await parts.tell(AllowedPeers(parts.admission.members_allowed()))
    parts.changes.ring()


async def _offer_allowlist(parts: Parts) -> None:
    """Regularly publish our list, for peers that missed it, until cancelled."""
    while True:
        await _publish_allowlist(parts)
        await trio.sleep(ALLOWLIST_S)


async def _publish_allowlist(parts: Parts) -> None:
    allowlist = parts.admission.allowlist
    if allowlist is None:
        return
    payload = allowlist.to_bytes()
    if len(payload) > ALLOWLIST_BYTES_MAX:
        payload = pack({"sequence": allowlist.allowlist.sequence})
    await parts.network.publish(allowlist_topic(parts.run), payload)
