"""Run the ledger's core: events in, effects out, in the order that safety requires.

One task owns the `Ledger`, and only this task calls `handle`. It carries out the effects of one
event before it handles the next, so a vote is on disk before it is sent. Other tasks read
`parts.ledger.state` and send events to this task. This module does not know what a roster or a
commit means for the node: it wakes the other tasks, and they look at the state.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby

import trio

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.update_format import Opened
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Branch, Certified, Heal, Roster
from p2ptrain.ledger.messages.effects import (
    Accuse,
    Announce,
    AskEntries,
    Decided,
    Effect,
    FetchUpdate,
    Note,
    Persist,
    Rejoin,
    Send,
    VotingStopped,
)
from p2ptrain.ledger.messages.events import Event, Tick, author_of
from p2ptrain.ledger.messages.messages import EntriesRequest
from p2ptrain.ledger.messages.peer_reports import AllowedPeers, KnownAmendments, UpdateHeld
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.node.consensus import branch_warning, evidence_log, inbox, pruning
from p2ptrain.node.consensus.outbox import Outboxes
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.threads import durably
from p2ptrain.peers.protocol_names import LEDGER_BYTES_MAX, LEDGER_PROTOCOL, Handler, ledger_topic

BATCH_EVENTS = 64
"""Number of waiting events handled together, so that a burst of reports wakes the tasks only
once."""

VOTE_RECORDS_MAX = 1024
"""Maximum number of records in the vote log (about 500 kB). Then it is rewritten with the few votes
that still bind us."""


LAST_WORDS_S = 1.0
"""Seconds that the node waits for the entry that heals a branch to reach the branch's other
members. """


async def agree(parts: Parts, events: trio.MemoryReceiveChannel[Event]) -> Rejoin:
    """Own the ledger until it ends. Return the chain that must replace ours."""
    parts.network.handle(LEDGER_PROTOCOL, _listener(parts), bytes_max=LEDGER_BYTES_MAX)
    due: list[Event] = [
        AllowedPeers(parts.admission.members_allowed()),
        KnownAmendments(parts.amendments.terms),
    ]
    due += await trio.to_thread.run_sync(evidence_log.kept, parts.home)
    async with trio.open_nursery() as nursery:
        outboxes = Outboxes(parts, nursery)
        height = 0
        while True:
            for event in due:
                effects = parts.ledger.handle(event, parts.now())
                for alike in _in_runs(effects):
                    await _carry_out(parts, alike, author_of(event), outboxes, nursery)
                if effects and isinstance(effects[-1], Rejoin):
                    await _speak_last(parts, effects[-1])
                    nursery.cancel_scope.cancel()
                    return effects[-1]
            parts.changes.ring()
            await _compact(parts)
            if parts.ledger.state.height > height:
                height = parts.ledger.state.height
                branch_warning.warn(parts)
                await pruning.prune(parts)
            due = await _due(events, parts.ledger.next_deadline())
            for event in due:
                parts.heard.release(author_of(event))


async def _due(events: trio.MemoryReceiveChannel[Event], deadline: float | None) -> list[Event]:
    """Return the events that have arrived, or a Tick if there is none by the ledger's deadline.

    Waiting events are handled before a Tick, even if the Tick is late. Any event lets the ledger
    check its timers, but ticks alone would starve the waiting events.
    """
    await trio.lowlevel.checkpoint()
    taken = _waiting(events)
    if not taken:
        with trio.move_on_at(float("inf") if deadline is None else deadline):
            taken = [await events.receive(), *_waiting(events)]
    return taken or [Tick()]


def _waiting(events: trio.MemoryReceiveChannel[Event]) -> list[Event]:
    taken: list[Event] = []
    with suppress(trio.WouldBlock):
        while len(taken) < BATCH_EVENTS:
            taken.append(events.receive_nowait())
    return taken


def _in_runs(effects: list[Effect]) -> list[list[Effect]]:
    """Group consecutive effects of the same type, so that one write stores several records."""
    return [list(run) for _, run in groupby(effects, key=type)]


async def _carry_out(
    parts: Parts,
    effects: list[Effect],
    author: PeerId | None,
    outboxes: Outboxes,
    nursery: trio.Nursery,
) -> None:
    """Carry out effects of one type before returning. `author` is the peer whose event caused
    them."""
    records = [effect.record for effect in effects if isinstance(effect, Persist)]
    if records:
        await durably(parts.votes.append, records)
        parts.vote_records += len(records)
    decided = [effect.certified for effect in effects if isinstance(effect, Decided)]
    if decided:
        await durably(parts.chain_log.append, [entry_bytes(each) for each in decided])
        for certified in decided:
            parts.journal.write("decided", **_account(certified))
    for effect in effects:
        match effect:
            case Send(peer, message):
                outboxes.post(peer, encode(message))
            case AskEntries(peer, from_height):
                outboxes.post(peer, encode(EntriesRequest(from_height)))
            case Announce(message):
                outboxes.announce(ledger_topic(parts.run), encode(message))
            case FetchUpdate(update, _):
                # The outer step may have ended before that task runs.
                nursery.start_soon(_hold_update, parts, update, parts.ledger.state.step)
            case Accuse(evidence):
                await evidence_log.keep(parts, evidence)
            case VotingStopped():
                evidence_log.heed_namesake(parts, effect)
            case Note(text):
                parts.complaints.note(author, text, parts.now())
            case _:
                pass


async def _speak_last(parts: Parts, rejoin: Rejoin) -> None:
    last = rejoin.chain[-1].entry
    parts.journal.write("rejoining", parted_at=rejoin.height, height=last.height, head=last.digest)
    parts.changes.ring()
    await trio.sleep(LAST_WORDS_S)


async def _compact(parts: Parts) -> None:
    """Keep the vote log short. The ledger knows the records that still bind us.

    Call this only between events: a vote may be forgotten once the entry that was decided is
    durable. If the rewrite fails, the log grows. If the failure may have damaged the log, the log
    refuses the next vote.
    """
    if parts.vote_records <= VOTE_RECORDS_MAX:
        return
    binding = parts.ledger.records()
    try:
        await durably(parts.votes.rewrite, binding)
    except StoreError as exc:
        parts.complain("not-shortened", parts.me, code=exc.code, reason=exc.what)
    else:
        parts.vote_records = len(binding)


async def _hold_update(parts: Parts, update: Digest, step: int) -> None:
    """Fetch an update of outer step `step` before this node votes on it. Tell the ledger once its
    bytes are stored and valid.

    The fetch ends when the outer step ends without this update: it is possible that no peer ever
    had such bytes.
    """
    if update in parts.holding:
        return

    roster = parts.ledger.state.roster
    opened = roster if roster is not None and roster.step == step else None

    def matters() -> bool:
        """Return whether this is still the current reduce: it sets the bounds of an update."""
        return parts.ledger.state.step == step and parts.ledger.state.roster == roster

    async def inspect() -> None:
        await parts.until_known(step)
        reduce = None if opened is None else Opened.by(opened)
        await update_blobs.inspect(parts, update, parts.outer_step(step), reduce)

    parts.holding.add(update)
    try:
        sound = await parts.changes.so_long_as(matters, inspect)
        if sound and opened is not None:
            await parts.tell(UpdateHeld(update, (opened.step, opened.attempt)))
    except RemoteProtocolError as exc:
        parts.journal.write("bad-update", digest=update, reason=exc.what)
    finally:
        parts.holding.discard(update)


def _listener(parts: Parts) -> Handler:
    async def receive(peer: PeerId, payload: bytes) -> bytes:
        inbox.receive(parts, peer, decode(payload))
        return b""

    return receive


def _account(certified: Certified) -> dict[str, object]:
    """Return the journal's fields for an entry."""
    value = certified.entry.value
    said: dict[str, object] = {
        "height": certified.entry.height,
        "entry": certified.entry.digest,
        "kind": type(value).__name__.lower(),
        "step": value.step,
        "round": certified.certificate.round,
    }
    if isinstance(value, Roster):
        if value.terms is not None:
            said |= {"amendment": value.terms.number, "from_step": value.terms.step}
        said |= {
            "attempt": value.attempt,
            "voters": value.voters,
            "learners": value.learners,
            "participants": [[each.peer, each.tokens, each.blocks] for each in value.participants],
            "schedule": value.schedule,
        }
    elif isinstance(value, Branch):
        said |= {"voters": value.voters, "learners": value.learners}
    elif isinstance(value, Heal):
        said |= {"towards": value.height, "towards_entry": value.entry}
    return said
