"""Run the ledger's core: events in, effects out, in the order that safety requires.

One task owns the `Ledger`. Only this task calls `handle`. It carries out the effects of one event
before it takes the next event, so a vote is on disk before it is sent. Other tasks read
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
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.ledger_port import EventQueue
from p2ptrain.node.state.threads import durably
from p2ptrain.peers.protocol_names import LEDGER_BYTES_MAX, LEDGER_PROTOCOL, ledger_topic

BATCH_EVENTS = 64
"""Number of waiting events handled together, so that a burst of reports wakes the tasks only
once."""

VOTE_RECORDS_MAX = 1024
"""Maximum number of records in the vote log (about 500 kB). When it is exceeded, the log is
rewritten with the few votes that still bind us."""


LAST_WORDS_S = 1.0
"""Seconds that the node waits for the entry that heals a branch to reach the branch's other
members."""


def hear_messages(context: Context) -> None:
    """Take the ledger's messages that peers send to us, from now on."""

    async def receive(peer: PeerId, payload: bytes) -> bytes:
        inbox.receive(context, peer, decode(payload))
        return b""

    context.network.handle(LEDGER_PROTOCOL, receive, bytes_max=LEDGER_BYTES_MAX)


async def run_ledger(
    context: Context,
    *,
    vote_records_max: int = VOTE_RECORDS_MAX,
    last_words_s: float = LAST_WORDS_S,
) -> Rejoin:
    """Own the ledger until it ends. Return the chain that must replace ours."""
    hear_messages(context)
    due: list[Event] = [
        AllowedPeers(context.admission.members_allowed()),
        KnownAmendments(context.amendments.terms),
    ]
    due += await durably(evidence_log.load_evidence, context.home)
    async with trio.open_nursery() as nursery:
        outboxes = Outboxes(context, nursery)
        height = 0
        while True:
            for event in due:
                effects = context.ledger.core.handle(event, context.now())
                for alike in in_runs(effects):
                    await _carry_out(context, alike, author_of(event), outboxes, nursery)
                if effects and isinstance(effects[-1], Rejoin):
                    await _speak_last(context, effects[-1])
                    await trio.sleep(last_words_s)
                    nursery.cancel_scope.cancel()
                    return effects[-1]
            context.changes.notify_all()
            await shorten_votes(context, records_max=vote_records_max)
            if context.ledger.snapshot.height > height:
                height = context.ledger.snapshot.height
                branch_warning.warn(context)
                await pruning.prune(context)
            due = await due_events(context.ledger.queue, context.ledger.core.next_deadline())


async def due_events(queue: EventQueue, deadline: float | None) -> list[Event]:
    """Return the events that have arrived, or a Tick if there is none by the ledger's deadline.

    Waiting events are handled before a Tick, even if the Tick is late. Any event lets the ledger
    check its timers, but ticks alone would starve the waiting events.
    """
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
    """Carry out effects of one type before returning. `author` is the peer whose event caused
    them."""
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
                # The outer step may have ended before that task runs.
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


async def _speak_last(context: Context, rejoin: Rejoin) -> None:
    last = rejoin.chain[-1].entry
    context.journal.write(
        "rejoining", parted_at=rejoin.height, height=last.height, head=last.digest
    )
    context.changes.notify_all()


async def shorten_votes(context: Context, *, records_max: int = VOTE_RECORDS_MAX) -> None:
    """Keep the vote log short. The ledger knows the records that still bind us.

    Call this only between events: a vote may be forgotten once the entry that was decided is
    durable. If the rewrite fails, the log grows. If the failure may have damaged the log, the log
    refuses the next vote.
    """
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
    """Fetch an update of outer step `step` before this node votes on it. Tell the ledger once its
    bytes are stored and valid.

    The fetch ends when the outer step ends without this update: it is possible that no peer ever
    had such bytes.
    """
    if update in context.ledger.updates_awaited:
        return

    roster = context.ledger.snapshot.roster
    opened = roster if roster is not None and roster.step == step else None

    def matters() -> bool:
        """Return whether the reduce that sets the bounds of this update is still the current
        one.
        """
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
