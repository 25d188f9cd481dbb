"""Participants swap their claims and sketches unasked. A lost message is asked for, and a liar's
message has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.errors import RemoteProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.node.averages.documents import document_of
from p2ptrain.node.reduce.sketch_exchange import (
    HELD_MAX,
    SHOWN_BURST,
    exchange_sketches,
    serve_sketches,
)
from p2ptrain.peers.protocol_names import SKETCH_PROTOCOL
from p2ptrain.proofs.claims import encode_claim
from p2ptrain.proofs.sketch_messages import (
    SketchReply,
    SketchRequest,
    decode_reply,
    decode_request,
)
from p2ptrain.proofs.stated_sketch import STATEMENT_BYTES_MAX
from p2ptrain.store import digest_of
from tests.node.reduce.attempts import OTHERS, Attempted, attempted
from tests.node.rig import BOB, CAI, somebody

DAN = somebody(104)
NEVER_S = 1000.0


def places(a: Attempted, *peers: PeerId) -> tuple[int, ...]:
    book = a.r.context.reduce.sketches
    assert book is not None
    return tuple(book.peers.index(each) for each in peers)


async def told(a: Attempted, peer: PeerId, asked: SketchRequest) -> SketchReply:
    """Let `peer` send this request to the node, and return the reply."""
    return decode_reply(await a.r.network.handlers[SKETCH_PROTOCOL](peer, asked.encode()))


def asked_by_us(a: Attempted) -> list[PeerId]:
    return [peer for peer, _ in a.r.network.requested]


async def test_peers_that_begin_are_never_asked(tmp_path: Path, nursery: trio.Nursery) -> None:
    """The node begins with some of the others. The rest show their claims and statements unasked,
    and the replies have the node's own. So there is one message for each pair and kind."""
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        context, book, me = a.r.context, attempt.book, a.r.context.me
        serve_sketches(context)
        theirs = [each.peer for each in OTHERS if not book.begins_with(each.peer)]
        ours = [each.peer for each in OTHERS if book.begins_with(each.peer)]
        assert theirs
        assert ours

        async def begin(peer: PeerId) -> None:
            own = encode_claim(a.claims[peer])
            first = SketchRequest(book.roster, places(a, me), (), document=own)
            assert (await told(a, peer, first)).documents == (book.documents[me],)
            while book.seed is None:
                await context.changes.wait()
            then = SketchRequest(book.roster, (), places(a, me), statement=a.statement(peer))
            assert (await told(a, peer, then)).statements == (book.statements[me],)

        async with trio.open_nursery() as everything:
            for peer in theirs:
                everything.start_soon(begin, peer)
            await exchange_sketches(context, attempt.outer_step, attempt.roster, grace_s=NEVER_S)
        assert sorted(asked_by_us(a)) == sorted(ours * 2)
        assert book.decision(0.0, 0.0).outcome == "judge"


async def test_our_requests_show_our_own_claim_and_statement(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        book, me = attempt.book, a.r.context.me
        await exchange_sketches(a.r.context, attempt.outer_step, attempt.roster, grace_s=0.0)
        shown = [decode_request(payload) for _, payload in a.r.network.requested]
        assert {each.document for each in shown} == {b"", book.documents[me]}
        assert {each.statement for each in shown} == {b"", book.statements[me]}
        assert len(shown) == 2 * len(OTHERS)


async def test_message_that_is_lost_is_asked_for(tmp_path: Path) -> None:
    """None of the others begins, so the node waits for a moment and asks them."""
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        await exchange_sketches(a.r.context, attempt.outer_step, attempt.roster, grace_s=0.01)
        assert sorted(asked_by_us(a)) == sorted(each.peer for each in OTHERS for _ in range(2))
        assert attempt.book.decision(0.0, 0.0).outcome == "judge"


async def test_claim_that_arrives_before_the_roster_is_kept(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        context, book = a.r.context, attempt.book
        context.reduce.sketches = None
        serve_sketches(context)
        early = SketchRequest(book.roster, (0,), (), document=encode_claim(a.claims[BOB.peer]))
        replies = list[SketchReply]()

        async def send() -> None:
            replies.append(await told(a, BOB.peer, early))

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert replies == []
        context.reduce.sketches = book
        context.changes.notify_all()
        while not replies:
            await context.changes.wait(at_most_s=0.01)
        assert book.documents.keys() == {context.me, BOB.peer}
        assert replies == [SketchReply((book.documents[context.me],))]


async def test_liar_can_make_only_few_of_its_messages_wait(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A thousand claims for a roster that does not exist: two wait, and after a burst the rest is
    refused. Other peers are still answered."""
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        serve_sketches(a.r.context)
        own = encode_claim(a.claims[BOB.peer])
        wrong = SketchRequest(digest_of(b"no roster"), (0,), (), document=own)
        ends = {"answered": 0, "refused": 0}

        async def send() -> None:
            try:
                assert await told(a, BOB.peer, wrong) == SketchReply()
                ends["answered"] += 1
            except TryLater:
                ends["refused"] += 1

        for _ in range(1000):
            nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        answered = SHOWN_BURST - HELD_MAX
        assert ends == {"answered": answered, "refused": 1000 - SHOWN_BURST}
        assert attempt.book.documents.keys() == {a.r.context.me}
        honest = SketchRequest(
            attempt.book.roster, (0,), (), document=encode_claim(a.claims[CAI.peer])
        )
        assert (await told(a, CAI.peer, honest)).documents
        assert attempt.book.documents.keys() == {a.r.context.me, CAI.peer}
        nursery.cancel_scope.cancel()


async def test_liar_cannot_show_anything_but_its_own_claim_and_statement(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        book, context = attempt.book, a.r.context
        serve_sketches(context)
        await exchange_sketches(context, attempt.outer_step, attempt.roster, grace_s=0.0)
        before = dict(book.documents), dict(book.statements)
        forged = bytearray(a.statement(BOB.peer))
        forged[-1] ^= 1
        for shown in (
            {"document": encode_claim(a.claims[CAI.peer])},
            {"document": b"{}"},
            {"statement": a.statement_of(DAN, a.payloads[BOB.peer])},
            {"statement": bytes(forged)},
            {"statement": b"nonsense"},
        ):
            with pytest.raises(RemoteProtocolError):
                await told(a, BOB.peer, SketchRequest(book.roster, (), (), **shown))
        with pytest.raises(RemoteProtocolError):
            SketchRequest(book.roster, (), (), statement=bytes(STATEMENT_BYTES_MAX + 1))
        assert (book.documents, book.statements) == before
        assert book.decision(0.0, 0.0).outcome == "judge"


async def test_stranger_shows_and_learns_nothing(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        serve_sketches(a.r.context)
        own = encode_claim(a.claims[BOB.peer])
        asked = SketchRequest(attempt.book.roster, (0,), (0,), document=own)
        assert await told(a, DAN.peer, asked) == SketchReply()
        assert attempt.book.documents.keys() == {a.r.context.me}


async def test_two_statements_of_one_peer_convict_it(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        book = attempt.book
        serve_sketches(a.r.context)
        await exchange_sketches(a.r.context, attempt.outer_step, attempt.roster, grace_s=0.0)
        other = a.statement_of(BOB, a.payloads[CAI.peer])
        await told(a, BOB.peer, SketchRequest(book.roster, (), (), statement=other))
        found = book.decision(0.0, 0.0)
        assert (found.outcome, found.suspects) == ("fault", (BOB.peer,))


async def test_claims_that_were_swapped_are_not_asked_for_again(tmp_path: Path) -> None:
    """The check of the average needs the same documents."""
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        await exchange_sketches(a.r.context, attempt.outer_step, attempt.roster, grace_s=0.0)
        a.r.network.requested.clear()
        for each in attempt.roster.participants:
            assert await document_of(a.r.context, 0, each) == a.claims[each.peer]
        assert a.r.network.requested == []
