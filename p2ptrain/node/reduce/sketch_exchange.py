"""Swap claims and stated sketches with the other participants of an attempt.

The exchange runs beside the reduce, and nothing in the reduce waits for it. A participant first
needs the documents of all claims, since they give the seed. Then it computes its own sketches, in a
thread, and signs them.

Each pair of participants swaps twice: their documents as soon as the roster is decided, and their
statements as soon as both have them. One of the two, which the roster draws, sends its own unasked,
and the reply has that of the other one. So a swap costs one message each way. If the message does
not come, the other one sends its own after `GRACE_S`.

If a peer does not answer, the participant asks others for the same: documents and statements prove
themselves, so anybody may deliver them. So a liar cannot hide its claim or its statement from one
participant, which would then look late to the rest.

*Whose word is it?* Only participants of the open attempt may show something, each about itself. The
roster names the digest of a document, and a statement is signed, so a liar can show nothing but the
truth, or two statements that convict it. A message that arrives before the roster is held for
`HOLD_S`, at most `HELD_MAX` of one peer. After that the sender sends it again, because the reply
was empty.
"""

from __future__ import annotations

from collections import Counter

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import P2PTrainError, RemoteProtocolError, TryLater
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId
from p2ptrain.kernels import Codec, Sums
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
from p2ptrain.proofs.sketch_parts import part_cuts, part_of, sketch_of_bytes, turns
from p2ptrain.proofs.sketch_rules import JUDGES_MIN
from p2ptrain.proofs.sketches import unit_exponent_of
from p2ptrain.proofs.stated_sketch import StatedSketch
from p2ptrain.rate_limit import Allowance
from p2ptrain.ring import Contribution

PEER_BURST, PEER_PER_S = 256, 20.0
"""Rate limit for requests of one peer. Two are enough for an outer step, if nobody is slow."""

SHOWN_BURST, SHOWN_PER_S = 64, 20.0
"""Rate limit for requests with which one peer shows something. An attempt needs two, and the
shortest outer steps take a fifth of a second. Reading a statement takes half a millisecond, so a
flood costs a node a hundredth of its time."""

HOLD_S = 1.5
"""Seconds for which a request waits until there is something to show. So a peer that asks too early
does not have to ask often. A member that passes a question on waits twice as long for the
answer."""

HELD_MAX = 2
"""Maximum number of requests of one peer that wait, so that early ones of a liar take at most 70
KiB. Further ones are answered at once."""

GRACE_S = 1.0
"""Seconds after which a participant begins a swap that the other one should have begun."""

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
    """From now on, swap claims and sketches with the other participants of an open reduce."""
    allowed, shown = Allowance(PEER_BURST, PEER_PER_S), Allowance(SHOWN_BURST, SHOWN_PER_S)
    held: Counter[PeerId] = Counter()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        asked, now = decode_request(payload), context.now()
        if not allowed.consume(peer, 1, now) or (asked.shows and not shown.consume(peer, 1, now)):
            raise TryLater("too many requests for sketches: try again in a minute")
        held[peer] += 1
        try:
            hold_s = HOLD_S if held[peer] <= HELD_MAX else 0.0
            return (await _answer(context, peer, asked, hold_s)).encode()
        finally:
            held[peer] -= 1
            if not held[peer]:
                del held[peer]

    forwarding.handle(context, SKETCH_PROTOCOL, answer, bytes_max=REQUEST_BYTES_MAX)


async def _answer(
    context: Context, peer: PeerId, asked: SketchRequest, hold_s: float
) -> SketchReply:
    """Take what `peer` shows, and return what it asks for. Wait for up to `hold_s` until this node
    knows the roster and has something to return.
    Raises RemoteProtocolError: `peer` shows something invalid."""
    reply, is_taken = SketchReply(), not asked.shows
    with trio.move_on_after(hold_s):
        while True:
            book = context.reduce.sketches
            if book is not None and book.roster == asked.roster and peer in book.peers:
                if not is_taken:
                    is_taken = True
                    book.take_own_of(peer, asked.document, asked.statement, verify)
                    context.changes.notify_all()
                reply = _reply(book, asked)
                if reply.documents or reply.statements or not asked.asks:
                    break
            await context.changes.wait()
    return reply


def _reply(book: SketchBook, asked: SketchRequest) -> SketchReply:
    peers = book.peers

    def known(found: dict[PeerId, bytes], places: tuple[int, ...]) -> list[bytes]:
        named = [peers[place] for place in dict.fromkeys(places) if place < len(peers)]
        return [found[each] for each in named if each in found]

    return reply_of(
        known(book.documents, asked.documents), known(book.statements, asked.statements)
    )


async def exchange_sketches(
    context: Context, outer_step: OuterStep, roster: Roster, *, grace_s: float = GRACE_S
) -> None:
    """Fill `context.reduce.sketches`. Return when it is complete."""
    book, claimed = context.reduce.sketches, context.trainer.claimed
    assert book is not None
    assert claimed is not None
    turns = trio.CapacityLimiter(AT_ONCE)
    async with trio.open_nursery() as nursery:
        for peer in roster.peers:
            if peer != context.me:
                nursery.start_soon(_swap_both, context, book, peer, turns, grace_s)
        nursery.start_soon(_state_own, context, outer_step, roster, book, claimed.contribution)


async def _swap_both(
    context: Context, book: SketchBook, peer: PeerId, turns: trio.CapacityLimiter, grace_s: float
) -> None:
    """Swap documents with `peer`, and then statements."""
    for found in (book.documents, book.statements):
        while context.me not in found:
            await context.changes.wait()
        if not book.begins_with(peer):
            with trio.move_on_after(grace_s):
                while peer not in found:
                    await context.changes.wait()
        await _ask_until_here(context, book, found, peer, turns)


async def _ask_until_here(
    context: Context,
    book: SketchBook,
    found: dict[PeerId, bytes],
    peer: PeerId,
    turns: trio.CapacityLimiter,
) -> None:
    """Show `peer` our own item of `found`, and ask for its: in every second try the peer itself,
    and otherwise somebody else."""
    vain = 0
    while peer not in found:
        others = [each for each in book.peers if each not in (peer, context.me)]
        source = peer if vain % 2 == 0 else context.draw.choice(others)
        async with turns:
            await _ask(context, book, found, source, peer)
        if peer not in found:
            vain += 1
            await trio.sleep(PAUSE_S)


async def _ask(
    context: Context, book: SketchBook, found: dict[PeerId, bytes], source: PeerId, about: PeerId
) -> None:
    """Ask `source` once for the item of `about` in `found`."""
    place, own = (book.peers.index(about),), found[context.me] if source == about else b""
    if found is book.documents:
        asked = SketchRequest(book.roster, place, (), document=own)
    else:
        asked = SketchRequest(book.roster, (), place, statement=own)
    try:
        reply = await forwarding.request(
            context,
            source,
            SKETCH_PROTOCOL,
            asked.encode(),
            deadline_s=ASK_S,
            bytes_max=REPLY_BYTES_MAX,
        )
    except P2PTrainError:
        return
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
    begun_s, found = context.now(), list[Sums]()
    unit, cuts = unit_exponent_of(outer_step.influence_max), cuts_of(outer_step, roster)
    for parts in turns(cuts):
        where = outer_step.codec, contribution.payload, cuts, parts
        found += await trio.to_thread.run_sync(_sketches, *where, seed, unit)
    stated = StatedSketch.of(book.roster, context.me, found)
    book.take_statement(stated.signed(context.identity.sign), verify)
    context.journal.write(
        "sketched", step=roster.step, attempt=roster.attempt, seconds=context.now() - begun_s
    )
    context.changes.notify_all()


def _sketches(
    codec: Codec, payload: memoryview, cuts: tuple[int, ...], parts: range, seed: int, unit: int
) -> list[Sums]:
    """Return the sketches of these parts of a contribution."""
    found = []
    for part in parts:
        piece, where = part_of(codec, payload, cuts, part), (cuts[part], cuts[part + 1])
        found.append(sketch_of_bytes(codec, piece, *where, seed, unit))
    return found
