"""Drop heartbeats that are older than what this node knows about their authors.

Any peer that received a heartbeat can send it again later; its signature is still valid. A
heartbeat is outdated if its author has restarted since. It is also outdated if its author has
signed a chain entry whose height exceeds the heartbeat's by more than 1. So even a node that has
not heard of the restart recognises old heartbeats. They are not processed or forwarded, and the
peer that sent them to us is reported (`replayed_heartbeats`).
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
"""When the first heartbeat of an incarnation (a start of the author) arrives, this many of the
newest entries are searched for the author's signature. A voter signs about every second or third
entry."""


def is_wanted(context: Context, forwarder: PeerId, author: PeerId, payload: bytes) -> bool:
    """Return whether to process and forward a heartbeat.

    This function runs before the heartbeat's signature is checked. So it only changes the record of
    `forwarder`, the one peer that certainly sent the message."""
    try:
        beat = decode_beat(payload)
    except RemoteProtocolError:
        return True  # The author is reported when the heartbeat is processed.
    if author == context.me:
        return _is_ours(context, forwarder, beat)
    if not is_outdated(context, author, beat):
        return True
    span = context.identities.incarnations.heard_span(author)
    _report_outdated(context, forwarder, author, span, beat)
    return False


def is_outdated(context: Context, author: PeerId, beat: Beat) -> bool:
    """Return whether this node has information about `author` that is newer than this heartbeat."""
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
    """Return whether `author` has signed an entry whose height exceeds this heartbeat's height by
    more than 1.

    A voter signs the entry at height h only after it has durably stored all earlier entries, so
    its later heartbeats name a height of at least h − 1. If the voter has lost its disk since,
    its heartbeats are dropped until it has fetched these entries again, which takes seconds or
    minutes."""
    if heartbeat.line != state.line:
        return False
    for certified in islice(reversed(entries), LOOK_BACK_ENTRIES):
        if certified.entry.height <= heartbeat.height + 1:
            return False
        if author in certified.certificate.voters:
            return True
    return False


def _is_ours(context: Context, forwarder: PeerId, beat: Beat) -> bool:
    """Return whether to process and forward a heartbeat that bears our own identity. It is one of
    our own heartbeats, or comes from a duplicate: another process with our identity."""
    incarnation, _ = counts_of(beat)
    if incarnation < context.identities.incarnation:
        span = IncarnationSpan(context.identities.since_s, context.now())
        _report_outdated(context, forwarder, context.me, span, beat)
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
            what=(
                f"this peer forwarded an outdated heartbeat of {author}, long after {author} was "
                "known to have restarted"
            ),
            author=author,
            incarnation=incarnation,
        )
