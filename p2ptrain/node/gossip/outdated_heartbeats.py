"""Drop heartbeats that are older than what is known of their authors.

Anybody who heard a heartbeat can send it again with its signature. A heartbeat is outdated if its
author has started again since. It is also outdated if the author has signed a later entry of the
chain than the heartbeat knows of; that helps a node that never heard of the new start. Outdated
heartbeats are not processed and not passed on, and the peer that sent them is reported
(`replayed_heartbeats`).
"""

from __future__ import annotations

from itertools import islice

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.node.state.context import Context
from p2ptrain.peers.heartbeat import Heartbeat
from p2ptrain.peers.heartbeat_delta import Beat, FullHeartbeat, counts_of, decode_beat
from p2ptrain.peers.incarnations import IncarnationSpan

LOOK_BACK_ENTRIES = 64
"""At a peer's first heartbeat, this many of the newest entries are searched for its signature. A
voter signs one entry of two or three."""


def is_wanted(context: Context, forwarder: PeerId, author: PeerId, payload: bytes) -> bool:
    """Return whether to process and forward a heartbeat. Called before its signature is checked, so
    it changes nothing here except the record of `forwarder`, which certainly sent it.
    """
    try:
        beat = decode_beat(payload)
    except RemoteProtocolError:
        return True  # Its author is reported when it is processed.
    if author == context.me:
        return _is_ours(context, forwarder, beat)
    if not is_outdated(context, author, beat):
        return True
    _report_outdated(
        context, forwarder, author, context.identities.incarnations.heard_span(author), beat
    )
    return False


def is_outdated(context: Context, author: PeerId, beat: Beat) -> bool:
    """Return whether this node knows `author` in a newer state than this heartbeat shows."""
    incarnation, _ = counts_of(beat)
    incarnations, ledger = context.identities.incarnations, context.ledger.core
    if incarnations.is_stale(author, incarnation):
        return True
    if incarnations.is_known(author, incarnation) or not isinstance(beat, FullHeartbeat):
        return False
    return is_older_than_chain(ledger.state, ledger.kept.entries, author, beat.heartbeat)


def is_older_than_chain(
    state: LedgerState, entries: list[Certified], author: PeerId, heartbeat: Heartbeat
) -> bool:
    """Return whether `author` has signed an entry more than one above this heartbeat's height.

    A voter signs the entry at height h once it has all entries before, durably. If its disk was
    lost since, it is not heard until it has fetched them again, which takes seconds or minutes.
    """
    if heartbeat.line != state.line:
        return False
    for certified in islice(reversed(entries), LOOK_BACK_ENTRIES):
        if certified.entry.height <= heartbeat.height + 1:
            return False
        if author in certified.certificate.voters:
            return True
    return False


def _is_ours(context: Context, forwarder: PeerId, beat: Beat) -> bool:
    """Judge a heartbeat with our own identity: an old one of ours, or one of a duplicate."""
    incarnation, _ = counts_of(beat)
    if incarnation < context.identities.incarnation:
        _report_outdated(
            context,
            forwarder,
            context.me,
            IncarnationSpan(context.identities.since_s, context.now()),
            beat,
        )
        return False
    if incarnation > context.identities.incarnation:
        context.identities.watch.ask_soon(context.now())
        context.identities.news.notify_all()
    return True


def _report_outdated(
    context: Context, forwarder: PeerId, author: PeerId, spoke: IncarnationSpan | None, beat: Beat
) -> None:
    now, incarnation = context.now(), counts_of(beat)[0]
    brought = context.identities.incarnations.heard_span(forwarder)
    forwarder_since_s = None if brought is None else brought.first_s
    if context.identities.replays.note_replay(forwarder, author, spoke, forwarder_since_s, now):
        context.peers.report_misbehaviour(
            "outdated-heartbeats",
            forwarder,
            what=f"this peer passed it on long after a later start of {author} was known",
            author=author,
            incarnation=incarnation,
        )
