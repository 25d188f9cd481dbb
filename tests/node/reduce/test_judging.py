"""A participant judges the contributions of an attempt before it reports the average: liars are
suspected, and nobody else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from numpy.typing import NDArray

from p2ptrain.errors import ReduceAborted
from p2ptrain.identity import verify
from p2ptrain.node.reduce.sketch_exchange import (
    exchange_sketches,
    serve_sketches,
)
from p2ptrain.node.reduce.sketch_judging import WARNING, judge_average
from p2ptrain.peers.protocol_names import SKETCH_PROTOCOL
from p2ptrain.proofs.sketch_messages import SketchRequest, decode_reply
from p2ptrain.store import digest_of
from p2ptrain.testing.fake_trainer import trace
from tests.node.reduce.attempts import OTHERS, attempted
from tests.node.rig import ANN, BOB, CAI

Floats = NDArray[np.float32]


async def test_honest_contributions_are_accepted(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        await a.judged()
        assert len(a.r.said("judged")) == 1
        assert a.r.said("sketch-finding") == a.r.said("unjudged") == []


@pytest.mark.parametrize("blocks", [1, 8])
async def test_unusual_number_of_blocks_is_not_odd(tmp_path: Path, blocks: int) -> None:
    """A straggler has trained a part of its lease, or contributes the work of several leases."""
    async with attempted(tmp_path) as a:
        numel = a.r.context.layout.numel
        data = [digest_of(f"block {number}".encode()) for number in range(blocks)]
        a.given[CAI.peer] = np.sum([trace(each, numel) for each in data], axis=0)
        a.blocks[CAI.peer] = blocks
        await a.judged()
        assert a.r.said("sketch-finding") == []


@pytest.mark.parametrize(
    ("lie", "rule"),
    [
        (lambda own, _: 20 * own, "length"),
        (lambda own, _: -own, "direction"),
        (lambda own, _: 0 * own, "length"),
    ],
)
async def test_odd_contribution_makes_its_peer_a_suspect(
    tmp_path: Path, lie: Callable[[Floats, Floats], Floats], rule: str
) -> None:
    async with attempted(tmp_path) as a:
        a.given[CAI.peer] = lie(a.given[CAI.peer], a.given[BOB.peer])
        with pytest.raises(ReduceAborted) as aborted:
            await a.judged()
        assert aborted.value.suspects == (CAI.peer,)
        assert rule in {each["rule"] for each in a.r.said("sketch-finding")}


async def test_copy_makes_both_peers_suspects(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        a.given[CAI.peer] = np.float32(1.02) * a.given[BOB.peer]
        with pytest.raises(ReduceAborted) as aborted:
            await a.judged()
        assert aborted.value.suspects == (BOB.peer, CAI.peer)


async def test_sketch_of_something_else_is_found_exactly(tmp_path: Path) -> None:
    """Its length and its direction are usual, but the sketches do not add up to the average."""
    async with attempted(tmp_path) as a:
        numel = a.r.context.layout.numel
        a.stated[CAI.peer] = trace(digest_of(b"other"), numel) + trace(digest_of(b"more"), numel)
        with pytest.raises(ReduceAborted, match="is not that of its contribution") as aborted:
            await a.judged()
        assert aborted.value.suspects == (CAI.peer,)


async def test_replaced_sum_fails_the_attempt_without_a_suspect(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        forged = bytearray(a.quantised(-a.given[CAI.peer]))
        with pytest.raises(ReduceAborted, match="does not follow") as aborted:
            await a.judged(forged)
        assert aborted.value.suspects == ()


async def test_node_whose_own_work_is_odd_tells_its_user(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        me = a.r.context.me
        a.given[me] = -a.given[me]
        with pytest.raises(ReduceAborted) as aborted:
            await a.judged()
        assert aborted.value.suspects == (me,)
        assert WARNING in a.r.context.alerts


async def test_peer_that_hides_its_sketch_from_us_is_not_missed(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        a.hidden = {(CAI.peer, CAI.peer)}
        await a.judged()
        assert len(a.r.said("judged")) == 1


async def test_withheld_sketch_makes_its_peer_a_suspect_after_the_deadline(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    async with attempted(tmp_path) as a:
        a.hidden = {(each.peer, CAI.peer) for each in OTHERS}
        attempt, found = await a.open(), list[ReduceAborted]()
        nursery.start_soon(exchange_sketches, a.r.context, attempt.outer_step, attempt.roster)

        async def judge() -> None:
            with pytest.raises(ReduceAborted) as aborted:
                await judge_average(a.r.context, attempt, bytearray())
            found.append(aborted.value)

        async with trio.open_nursery() as judging:
            judging.start_soon(judge)
            while not attempt.book.documents.keys() >= {ANN.peer, BOB.peer}:
                await a.r.context.changes.wait()
            assert found == []
            a.clock_s += 60.0
            a.r.context.changes.notify_all()
        nursery.cancel_scope.cancel()
        assert [each.suspects for each in found] == [(CAI.peer,)]


async def test_only_participants_are_shown_sketches(tmp_path: Path) -> None:
    async with attempted(tmp_path) as a:
        attempt = await a.open()
        context, book = a.r.context, attempt.book
        serve_sketches(context)
        ask = a.r.network.handlers[SKETCH_PROTOCOL]
        await exchange_sketches(context, attempt.outer_step, attempt.roster)
        everybody = tuple(range(4))
        question = SketchRequest(book.roster, everybody, everybody).encode()
        shown = decode_reply(await ask(BOB.peer, question))
        assert shown.documents == tuple(book.documents[peer] for peer in book.peers)
        assert set(shown.statements) <= set(book.statements.values())
        for data in shown.statements:
            book.take_statement(data, verify)
        assert book.decision(0.0, 0.0).outcome == "judge"
