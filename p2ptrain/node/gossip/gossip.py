"""Publish this node's heartbeats, and receive what other peers publish: heartbeats, ledger entries,
allowlists, amendments and grants.

A heartbeat is passed to the ledger, the failure detector and the peer table. A *full* heartbeat has
all fields, and a *small* one only the changes since a full one (`heartbeat_delta`). A faulty
message is dropped, and its sender reported; other messages of that sender still count.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from p2ptrain.encoding import pack
from p2ptrain.errors import ProtocolError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import PeerHeight
from p2ptrain.ledger.messages.peer_reports import (
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
from p2ptrain.node.gossip.allowlist_gossip import offer_allowlist, take_allowlist
from p2ptrain.node.gossip.allowlist_notices import AllowlistNotices
from p2ptrain.node.gossip.amendment_gossip import take_amendments
from p2ptrain.node.gossip.data_address_warning import warn_of_data_address
from p2ptrain.node.gossip.grant_gossip import take_grants
from p2ptrain.node.gossip.hand_over_gossip import offer_hand_overs, take_hand_overs
from p2ptrain.node.gossip.own_addresses import own_addresses
from p2ptrain.node.gossip.own_endpoint import own_endpoint, relays_offered, told_addresses
from p2ptrain.node.gossip.reachability import judged_reach, tells_ipv6
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import evaluation_task
from p2ptrain.observe.states import words
from p2ptrain.peers.heartbeat import Heartbeat, SnapshotReport
from p2ptrain.peers.heartbeat_delta import FullHeartbeat, decode_beat
from p2ptrain.peers.incarnations import Mark
from p2ptrain.peers.misbehaviour_log import COMPLAINT_S
from p2ptrain.peers.protocol_names import (
    allowlist_topic,
    amendments_topic,
    grants_topic,
    hand_overs_topic,
    heartbeat_topic,
    ledger_topic,
)

PEERS_AT_FULL_RATE = 20
"""In a run of up to this many peers, every peer sends a heartbeat every `Timing.heartbeat_s`. With
more peers, the interval is longer. A message costs every host about 3.5 ms of CPU time. So twenty
heartbeats in 2 s take 70 ms, or 3.5 % of a core."""

OTHERS_MAX = 20
"""Maximum number of non-members that count towards the heartbeat interval in an open run, so that
they can at most double it. Anybody can create hundreds of peers there. If all of them counted, the
interval would become so long that live nodes would appear to be down."""

PATIENCE = 1.25
"""A live node sends its next heartbeat within this many intervals, even if it is a little late."""

HASTE_S = 0.05
"""Minimum seconds between two heartbeats. All changes within this time are sent together in the
next one."""

HandlePayload = Callable[[Context, PeerId, bytes], Awaitable[None]]


async def send_heartbeats(context: Context) -> None:
    """Send a heartbeat every `interval_s`, and immediately after a change, until cancelled."""
    for serial in itertools.count():
        own, paths, now = context.own_heartbeat, context.peers.paths, context.now()
        own.due = trio.Event()
        lacks, incarnation = context.peers.table.pop_lacking(), context.identities.incarnation
        if own.saying.is_full_due(incarnation, serial) or paths.has_news(now):
            paths.choose_page(now)
        own.dialled, own.dialable = judged_reach(context)
        own.dialable_by_ipv6 = own.reach.data_by_ipv6 is True
        reachability.warn(context)
        warn_of_data_address(context)
        described = describe(context, incarnation, serial, lacks)
        own.tells_ipv6 = tells_ipv6(described.addresses)
        heartbeat = own.saying.encode_next(described)
        await context.network.publish(heartbeat_topic(context.run), heartbeat)
        await trio.sleep(HASTE_S)
        with trio.move_on_after(_own_interval_s(context)):
            await own.due.wait()


def heartbeat_senders(context: Context) -> int:
    """Return the number of peers that we hear from and that count towards the heartbeat interval.
    Readers do not count. Other nodes count about the same number, so all nodes use about the same
    interval."""
    readers = sum(context.admission.is_reader(view.peer) for view in context.peers.table)
    heard = len(context.peers.table) - readers
    most = len(context.ledger.snapshot.members) + OTHERS_MAX
    return min(heard, most) if context.admission.is_open else heard


def interval_s(peers: int, heartbeat_s: float) -> float:
    """Return the seconds between two heartbeats of one node in a run of `peers` peers.
    `heartbeat_s`: the interval in a run of few peers."""
    return heartbeat_s * max(1.0, peers / PEERS_AT_FULL_RATE)


def _own_interval_s(context: Context) -> float:
    return interval_s(heartbeat_senders(context), context.timing.heartbeat_s)


def describe(
    context: Context, incarnation: int, serial: int, lacks: tuple[PeerId, ...] = ()
) -> Heartbeat:
    """Return this node's current heartbeat. `lacks`: the peers whose full heartbeats it needs."""
    state, own = context.ledger.snapshot, context.ledger.core.reports.own_snapshots
    here = own_addresses()
    return Heartbeat(
        run=context.run,
        incarnation=incarnation,
        serial=serial,
        state=words(context.shown),
        trains=context.may_train,
        joining=context.wants_to_join(),
        leaving=context.state.leaving,
        height=state.height,
        line=state.line,
        head=state.head,
        step=state.step,
        inner_step=context.trainer.inner_step,
        inner_steps=context.trainer.inner_steps,
        tokens_per_s=int(context.trainer.tokens_per_s),
        endpoint=pack(own_endpoint(context, here).to_wire()),
        addresses=told_addresses(context, here),
        ready=context.trainer.ready,
        reduce=context.reduce.report,
        lacks=lacks,
        dialled=context.own_heartbeat.dialled,
        dialable=context.own_heartbeat.dialable,
        dialable_by_ipv6=context.own_heartbeat.dialable_by_ipv6,
        changes_ports=reachability.changes_ports(context, context.me),
        paths=context.peers.paths.page,
        validation=context.trainer.validation.own,
        snapshot=SnapshotReport(max(own), own[max(own)]) if own else None,
        mark=context.identities.watch.mark.signature,
        relays=relays_offered(context),
        step_report=context.state.own_report,
    )


async def listen(
    context: Context,
    others: Mapping[str, HandlePayload] | None = None,
    notices: AllowlistNotices | None = None,
) -> None:
    """Receive what other peers publish, until cancelled. `others` maps further topics to their
    handlers. `notices` decides which peers to ask for an allowlist that is too long for gossip."""
    network, run = context.network, context.run
    network.set_validator(heartbeat_topic(run), partial(outdated_heartbeats.is_wanted, context))
    async with trio.open_nursery() as nursery:
        for topic, handle in (
            (heartbeat_topic(run), take_heartbeat),
            (ledger_topic(run), _take_entry),
            (allowlist_topic(run), partial(take_allowlist, nursery, notices or AllowlistNotices())),
            (amendments_topic(run), take_amendments),
            (grants_topic(run), take_grants),
            (hand_overs_topic(run), take_hand_overs),
            *(others or {}).items(),
        ):
            nursery.start_soon(_follow, context, network.subscribe(topic), handle)
        nursery.start_soon(offer_allowlist, context)
        nursery.start_soon(offer_hand_overs, context)
        nursery.start_soon(_report_floods, context)


async def _follow(
    context: Context, messages: trio.abc.ReceiveChannel[tuple[PeerId, bytes]], handle: HandlePayload
) -> None:
    async for peer, payload in messages:
        if peer == context.me or not context.admission.admits(peer):
            continue
        if handle is not take_heartbeat and context.admission.is_reader(peer):
            continue  # A reader repeats documents of the run. Its peers have them from others.
        try:
            await handle(context, peer, payload)
        except (ProtocolError, RunMismatch) as exc:
            context.peers.report_misbehaviour("bad-gossip", peer, reason=exc.what)


async def _report_floods(context: Context) -> None:
    """Regularly report peers that send more gossip than this node can process. Such a peer may be
    innocent: it may only forward another peer's messages."""
    while True:
        for peer, count in context.network.pop_floods().items():
            context.peers.report_misbehaviour("gossip-flood", peer, unread=count)
        await trio.sleep(COMPLAINT_S)


async def take_heartbeat(context: Context, peer: PeerId, payload: bytes) -> None:
    """Handle a heartbeat of `peer`. Raises RemoteProtocolError: the heartbeat is malformed."""
    beat = decode_beat(payload)
    if outdated_heartbeats.is_outdated(context, peer, beat):
        return
    if isinstance(beat, FullHeartbeat):
        _take_in(context, peer, beat.heartbeat, beat)
    elif (heartbeat := context.peers.table.restore(peer, beat)) is not None:
        _take_in(context, peer, heartbeat)
    else:
        if context.peers.table.note_alive(peer, beat, context.now()):
            _is_alive(context, peer, beat.incarnation, beat.serial)
            context.changes.notify_all()
        _ask_for_full(context)


def _take_in(
    context: Context, peer: PeerId, heartbeat: Heartbeat, base: FullHeartbeat | None = None
) -> None:
    incarnation, serial = heartbeat.incarnation, heartbeat.serial
    if heartbeat.run != context.run:
        return
    if not context.identities.incarnations.note_decoded(peer, incarnation, serial, context.now()):
        return
    if heartbeat.mark:
        context.identities.incarnations.keep_mark(peer, Mark(incarnation, heartbeat.mark))
    before = context.peers.table.get(peer)
    record = context.peers.table.note_heartbeat(peer, heartbeat, context.now(), base)
    if record is None:
        return
    if record.endpoint is not None:
        context.plane.listener.trust_certificate(record.endpoint.certificate_der)
    context.network.remember(peer, heartbeat.addresses)
    _is_alive(context, peer, incarnation, serial)
    if before is None or before.heartbeat.incarnation != incarnation:
        # The sender has just started, and does not have a full heartbeat of ours.
        context.own_heartbeat.saying.full_next = True
    if context.me in heartbeat.lacks:
        _answer_in_full(context)
    if heartbeat.step_report is not None and context.ledger.snapshot.is_member(peer):
        context.state.note_report(peer, heartbeat.step_report)
    if context.admission.may_train(peer):
        context.peers.paths.note_report(peer, heartbeat.paths, context.ledger.snapshot.since)
        evaluation_task.note_share_report(context, peer, heartbeat)
        report(context, peer, heartbeat, before.heartbeat if before else None)
    elif heartbeat.ready or heartbeat.joining:
        what = "a reader cannot train or become a member: its Ready and Joining are ignored"
        context.peers.report_misbehaviour("reader-acts", peer, what=what)
    context.changes.notify_all()


def _is_alive(context: Context, peer: PeerId, incarnation: int, serial: int) -> None:
    now = context.now()
    again_s = PATIENCE * _own_interval_s(context)
    if context.identities.incarnations.note_arrival(peer, incarnation, serial, now, again_s):
        context.peers.detector.note_arrival(peer, now)


def _ask_for_full(context: Context) -> None:
    """Send the next heartbeat early, because it asks peers for full heartbeats: this node cannot
    decode their small ones. Do this at most once per heartbeat interval."""
    now = context.now()
    if now >= context.own_heartbeat.saying.asked_s + _own_interval_s(context):
        context.own_heartbeat.saying.asked_s = now
        context.own_heartbeat.send_now()


def _answer_in_full(context: Context) -> None:
    """Make our next heartbeat a full one, because a peer asked for it, and send it early. This
    happens at most once per heartbeat interval: otherwise such requests could make the entire run
    send more than twice as much."""
    now, saying = context.now(), context.own_heartbeat.saying
    saying.full_next = True
    if now >= saying.answered_s + _own_interval_s(context):
        saying.answered_s = now
        context.own_heartbeat.send_now()


def report(context: Context, peer: PeerId, heartbeat: Heartbeat, before: Heartbeat | None) -> None:
    """Send the ledger the events that `heartbeat` contains. Most of them are repeated in every
    heartbeat, which does no harm. `before`: the previous heartbeat of `peer`.

    A restarted node has lost the work that it had reported as ready. For the ledger it then counts
    as ready with 0 tokens until it reports new work, so the other members neither wait for it nor
    average with it."""
    context.ledger.offer(PeerHeight(peer, heartbeat.height, heartbeat.line))
    if heartbeat.leaving:
        context.ledger.offer(Leaving(peer))
    elif heartbeat.joining:
        context.ledger.offer(Joining(peer))
    elif peer in context.ledger.core.reports.leaving:
        context.ledger.offer(Staying(peer))
    ready, reduce, snapshot = heartbeat.ready, heartbeat.reduce, heartbeat.snapshot
    if snapshot is not None:
        context.ledger.offer(SnapshotTaken(peer, snapshot.step, snapshot.digest))
    if ready is not None:
        numbers = (ready.step, ready.tokens, ready.blocks)
        context.ledger.offer(Ready(peer, *numbers, ready.claim))
    elif not heartbeat.trains or _lost_its_work(heartbeat, before):
        context.ledger.offer(Ready(peer, heartbeat.step, 0, 0))
    if reduce is None:
        return
    if reduce.update is None:
        context.ledger.offer(ReduceFailed(peer, reduce.step, reduce.attempt, reduce.suspects))
    else:
        context.ledger.offer(ReduceDone(peer, reduce.step, reduce.attempt, reduce.update))


def _lost_its_work(heartbeat: Heartbeat, before: Heartbeat | None) -> bool:
    if before is None or before.ready is None:
        return False
    return before.incarnation != heartbeat.incarnation and before.ready.step == heartbeat.step


async def _take_entry(context: Context, peer: PeerId, payload: bytes) -> None:
    inbox.receive(context, peer, decode_ledger(payload))
