"""Run the ledger's state machine: pass it events, and carry out the effects that it returns.

Only one task calls `Ledger.handle`. It carries out the effects in order, and completes those of one
event before it handles the next event. So a vote is on disk before it is sent. Other tasks read
`LedgerPort.snapshot` and submit events. This module does not know what follows from a roster or a
commit: it wakes the other tasks, and they read the new state.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby

import trio

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.update_format import ReduceShape
from p2ptrain.errors import RemoteProtocolError, StoreError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.findings import Verdict
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
    VoteWithheld,
    VotingStopped,
)
from p2ptrain.ledger.messages.events import Event, Tick, author_of
from p2ptrain.ledger.messages.messages import EntriesRequest
from p2ptrain.ledger.messages.peer_reports import AllowedPeers, KnownAmendments, UpdateHeld
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.node.consensus import branch_warning, evidence_log, inbox, pruning
from p2ptrain.node.consensus.outbox import Outboxes
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.ledger_port import EventQueue
from p2ptrain.node.state.threads import durably
from p2ptrain.peers.protocol_names import LEDGER_BYTES_MAX, LEDGER_PROTOCOL, ledger_topic

BATCH_EVENTS = 64
"""Maximum number of waiting events that are handled before the other tasks are woken, so that a
burst of reports wakes them only once."""

VOTE_RECORDS_MAX = 1024
"""Maximum number of records in the vote log (about 500 kB). A longer log is rewritten
with the few votes that still bind us."""

LAST_WORDS_S = 1.0
"""Seconds that a node on a branch waits before it switches to another chain, so that the entry that
ends the branch reaches the branch's other members."""


def hear_messages(context: Context) -> None:
    """From now on, receive the ledger messages that peers send to this node."""

    async def receive(peer: PeerId, payload: bytes) -> bytes:
        inbox.receive(context, peer, decode(payload))
        return b""

    forwarding.handle(context, LEDGER_PROTOCOL, receive, bytes_max=LEDGER_BYTES_MAX)


async def run_ledger(
    context: Context,
    *,
    vote_records_max: int = VOTE_RECORDS_MAX,
    last_words_s: float = LAST_WORDS_S,
) -> Rejoin:
    """Run the ledger until another chain must replace ours, and return that chain."""
    hear_messages(context)
    due: list[Event] = [
        AllowedPeers(context.admission.members_allowed()),
        KnownAmendments(context.amendments.terms),
        *await durably(evidence_log.load_evidence, context.home),
    ]
    async with trio.open_nursery() as nursery:
        outboxes = Outboxes(context, nursery)
        height = 0
        while True:
            for event in due:
                effects = context.ledger.core.handle(event, context.now())
                for alike in in_runs(effects):
                    await _carry_out(context, alike, author_of(event), outboxes, nursery)
                if effects and isinstance(rejoin := effects[-1], Rejoin):
                    last = rejoin.chain[-1].entry
                    context.journal.write(
                        "rejoining", parted_at=rejoin.height, height=last.height, head=last.digest
                    )
                    context.changes.notify_all()
                    await trio.sleep(last_words_s)
                    nursery.cancel_scope.cancel()
                    return rejoin
            context.changes.notify_all()
            await shorten_votes(context, records_max=vote_records_max)
            if context.ledger.snapshot.height > height:
                height = context.ledger.snapshot.height
                branch_warning.warn(context)
                await pruning.prune(context)
            due = await due_events(context.ledger.queue, context.ledger.core.next_deadline())


async def due_events(queue: EventQueue, deadline: float | None) -> list[Event]:
    """Return the next events. If none arrives before `deadline`, return a Tick, which runs timers.

    After the deadline, waiting events are still returned first. The ledger checks its timers after
    any event, but if it only got Ticks, the waiting events would never be handled."""
    await trio.lowlevel.checkpoint()
    taken = _waiting(queue)
    if not taken:
        with trio.move_on_at(float("inf") if deadline is None else deadline):
            taken = [await queue.next_event(), *_waiting(queue)]
    return taken or [Tick()]


def _waiting(queue: EventQueue) -> list[Event]:
    taken: list[Event] = []
    with suppress(trio.WouldBlock):
        while len(taken) < BATCH_EVENTS:
            taken.append(queue.next_event_nowait())
    return taken


def in_runs(effects: list[Effect]) -> list[list[Effect]]:
    """Group consecutive effects of the same type, so that one write stores several records."""
    return [list(run) for _, run in groupby(effects, key=type)]


async def _carry_out(
    context: Context,
    effects: list[Effect],
    author: PeerId | None,
    outboxes: Outboxes,
    nursery: trio.Nursery,
) -> None:
    """Carry out effects of one type. `author`: the peer whose event caused them, if any."""
    records = [effect.record for effect in effects if isinstance(effect, Persist)]
    if records:
        await durably(context.ledger.votes.append, records)
        context.ledger.vote_records += len(records)
    decided = [effect.certified for effect in effects if isinstance(effect, Decided)]
    if decided:
        await durably(context.ledger.chain_log.append, [entry_bytes(each) for each in decided])
        for certified in decided:
            context.journal.write("decided", **_journal_fields(certified))
    for effect in effects:
        match effect:
            case Send(peer, message):
                outboxes.post(peer, encode(message))
            case AskEntries(peer, from_height):
                outboxes.post(peer, encode(EntriesRequest(from_height)))
            case Announce(message):
                outboxes.announce(ledger_topic(context.run), encode(message))
            case FetchUpdate(update, _):
                # Pass the current step: the step may have ended before the new task runs.
                nursery.start_soon(_hold_update, context, update, context.ledger.snapshot.step)
            case Accuse(evidence):
                await evidence_log.record_evidence(context, evidence)
            case VoteWithheld(height, what):
                context.journal.write("vote-withheld", height=height, what=what)
            case VotingStopped():
                evidence_log.warn_of_duplicate(context, effect)
            case Note(text):
                context.peers.complaints.note(author, text, context.now())
            case _:
                pass


async def shorten_votes(context: Context, *, records_max: int = VOTE_RECORDS_MAX) -> None:
    """If the vote log has more than `records_max` records, keep only those that still bind us.

    Call this only between events, when all decided entries are on disk: only then may the votes for
    them be dropped. If the rewrite fails, the log just grows. If the failure may have damaged the
    log, the log refuses the next vote."""
    if context.ledger.vote_records <= records_max:
        return
    binding = context.ledger.core.records()
    try:
        await durably(context.ledger.votes.rewrite, binding)
    except StoreError as exc:
        context.peers.report_misbehaviour(
            "not-shortened", context.me, code=exc.code, reason=exc.what
        )
    else:
        context.ledger.vote_records = len(binding)


async def _hold_update(context: Context, update: Digest, step: int) -> None:
    """Fetch an update of outer step `step` on which this node is to vote. Tell the ledger once the
    update's bytes are stored and valid.

    The fetch is cancelled when the reduce is no longer current. Otherwise it could wait for ever: a
    liar can name an update that no peer has."""
    if update in context.ledger.updates_awaited:
        return

    roster = context.ledger.snapshot.roster
    opened = roster if roster is not None and roster.step == step else None

    def matters() -> bool:
        """Return whether the roster, which sets the bounds of this update, is still current."""
        return context.ledger.snapshot.step == step and context.ledger.snapshot.roster == roster

    async def inspect() -> None:
        await context.until_known(step)
        reduce = None if opened is None else ReduceShape.by(opened)
        await update_blobs.inspect(context, update, context.outer_step(step), reduce)

    context.ledger.updates_awaited.add(update)
    try:
        sound = await context.changes.run_while(matters, inspect)
        if sound and opened is not None:
            await context.ledger.submit(UpdateHeld(update, (opened.step, opened.attempt)))
    except RemoteProtocolError as exc:
        context.journal.write("bad-update", digest=update, reason=exc.what)
    finally:
        context.ledger.updates_awaited.discard(update)


def _journal_fields(certified: Certified) -> dict[str, object]:
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
    elif isinstance(value, Verdict):
        said |= {"findings": [each.words for each in value.findings]}
    elif isinstance(value, Branch):
        said |= {"voters": value.voters, "learners": value.learners}
    elif isinstance(value, Heal):
        said |= {"towards": value.height, "towards_entry": value.entry}
    return said
