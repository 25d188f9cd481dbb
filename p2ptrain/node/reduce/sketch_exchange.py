"""Exchange claims and stated sketches with the other participants of an attempt.

The exchange runs beside the reduce, and nothing in the reduce waits for it. A participant first
needs the documents of all claims, since they give the seed. Then it computes its own sketches, in a
thread and part by part, signs them, and shows them to the participants that ask.

A participant asks everybody for their own. If a peer does not answer, it asks others for the same:
documents and statements prove themselves, so anybody may deliver them. So a liar cannot hide its
claim or its statement from one participant, which would then look late to the rest.
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import P2PTrainError, RemoteProtocolError, TryLater
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.node.forwarding import forwarding
from p2ptrain.node.state.context import Context
from p2ptrain.peers.protocol_names import SKETCH_PROTOCOL
from p2ptrain.proofs.claims import encode_claim
from p2ptrain.proofs.sketch_collection import SketchBook
from p2ptrain.proofs.sketch_messages import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SketchReply,
    SketchRequest,
    decode_reply,
    decode_request,
    reply_of,
)
from p2ptrain.proofs.sketch_parts import part_cuts, part_of, sketch_of_bytes
from p2ptrain.proofs.sketch_rules import JUDGES_MIN
from p2ptrain.proofs.sketches import unit_exponent_of
from p2ptrain.proofs.stated_sketch import StatedSketch
from p2ptrain.rate_limit import Allowance
from p2ptrain.ring import Contribution

PEER_BURST, PEER_PER_S = 256, 20.0
"""Rate limit for requests of one peer. Two are enough for an outer step, if nobody is slow."""

HOLD_S = 1.5
"""Seconds for which an answer waits until there is something to show. So a peer that asks too early
does not have to ask often. A member that passes a question on waits twice as long for the
answer."""

ASK_S = 12.0
"""Deadline in seconds for a question: `HOLD_S`, and the time that a busy peer may need."""

PAUSE_S = 0.5
"""Seconds before the next question if an answer had nothing new."""

AT_ONCE = 32
"""Maximum number of questions at the same time."""


def book_of(context: Context, outer_step: OuterStep, roster: Roster) -> SketchBook | None:
    """Return an empty book for the open attempt of `roster`, with our own claim. Return None if its
    contributions are not judged: the run has no claims, there are too few participants, or we do
    not have the claim that the roster names."""
    snapshot, claimed = context.ledger.snapshot, context.trainer.claimed
    bound = next(each.claim for each in roster.participants if each.peer == context.me)
    if bound is None or len(roster.peers) < JUDGES_MIN or snapshot.roster != roster:
        return None
    if claimed is None or claimed.made.claim.digest != bound:
        return None
    # While a reduce is open, the newest entry is the roster that opened it.
    parts = len(cuts_of(outer_step, roster)) - 1
    book = SketchBook(context.me, snapshot.head, roster.step, roster.participants, parts)
    book.take_document(encode_claim(claimed.made.claim))
    return book


def cuts_of(outer_step: OuterStep, roster: Roster) -> tuple[int, ...]:
    """Return where the parts of this outer step's sketches begin and end, in elements."""
    return part_cuts(outer_step.update.numel, outer_step.codec.block, len(roster.peers))


def serve_sketches(context: Context) -> None:
    """From now on, show claims and sketches to the other participants of an open reduce."""
    allowed = Allowance(PEER_BURST, PEER_PER_S)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        asked = decode_request(payload)
        if not allowed.consume(peer, 1, context.now()):
            raise TryLater("too many requests for sketches: try again in a minute")
        reply = _reply(context, peer, asked)
        with trio.move_on_after(HOLD_S):
            while not (reply.documents or reply.statements):
                await context.changes.wait()
                reply = _reply(context, peer, asked)
        return reply.encode()

    forwarding.handle(context, SKETCH_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX)


def _reply(context: Context, peer: PeerId, asked: SketchRequest) -> SketchReply:
    book = context.reduce.sketches
    if book is None or book.roster != asked.roster or peer not in book.peers:
        return SketchReply()
    peers = book.peers

    def known(found: dict[PeerId, bytes], places: tuple[int, ...]) -> list[bytes]:
        named = [peers[place] for place in dict.fromkeys(places) if place < len(peers)]
        return [found[each] for each in named if each in found]

    return reply_of(
        known(book.documents, asked.documents), known(book.statements, asked.statements)
    )


async def exchange_sketches(context: Context, outer_step: OuterStep, roster: Roster) -> None:
    """Fill `context.reduce.sketches`. Return when it is complete."""
    book, claimed = context.reduce.sketches, context.trainer.claimed
    assert book is not None
    assert claimed is not None
    turns = trio.CapacityLimiter(AT_ONCE)
    async with trio.open_nursery() as nursery:
        for peer in roster.peers:
            if peer != context.me:
                nursery.start_soon(_ask_until_here, context, book, peer, turns)
        nursery.start_soon(_state_own, context, outer_step, roster, book, claimed.contribution)


async def _ask_until_here(
    context: Context, book: SketchBook, peer: PeerId, turns: trio.CapacityLimiter
) -> None:
    """Ask for the claim and the statement of `peer`: in every second try the peer itself, and
    otherwise somebody else."""
    vain = 0
    while book.lacks(peer):
        others = [each for each in book.peers if each not in (peer, context.me)]
        source = peer if vain % 2 == 0 else context.draw.choice(others)
        async with turns:
            is_new = await _ask(context, book, source, peer)
        if not is_new:
            vain += 1
            await trio.sleep(PAUSE_S)


async def _ask(context: Context, book: SketchBook, source: PeerId, about: PeerId) -> bool:
    """Ask `source` once. Return whether the book has something new about `about`."""
    place = (book.peers.index(about),)
    documents = () if about in book.documents else place
    statements = () if about in book.statements else place
    try:
        reply = await forwarding.request(
            context,
            source,
            SKETCH_PROTOCOL,
            SketchRequest(book.roster, documents, statements).encode(),
            deadline_s=ASK_S,
            bytes_max=REPLY_BYTES_MAX,
        )
    except P2PTrainError:
        return False
    try:
        shown = decode_reply(reply)
        for each in shown.documents:
            book.take_document(each)
        for each in shown.statements:
            book.take_statement(each, verify)
    except RemoteProtocolError as exc:
        if source == about:
            book.note_fault(about, exc.what)
    context.changes.notify_all()
    return bool(documents and about in book.documents) or not book.lacks(about)


async def _state_own(
    context: Context,
    outer_step: OuterStep,
    roster: Roster,
    book: SketchBook,
    contribution: Contribution,
) -> None:
    """Compute and sign our own sketches as soon as the seed is known."""
    while (seed := book.seed) is None:
        await context.changes.wait()
    begun_s, cuts, found = context.now(), cuts_of(outer_step, roster), []
    codec, unit = outer_step.codec, unit_exponent_of(outer_step.influence_max)
    for part in range(book.parts):
        payload = part_of(codec, contribution.payload, cuts, part)
        where = cuts[part], cuts[part + 1]
        work = partial(sketch_of_bytes, codec, payload, *where, seed, unit)
        found.append(await trio.to_thread.run_sync(work))
    stated = StatedSketch.of(book.roster, context.me, found)
    book.take_statement(stated.signed(context.identity.sign), verify)
    context.journal.write(
        "sketched", step=roster.step, attempt=roster.attempt, seconds=context.now() - begun_s
    )
    context.changes.notify_all()
