"""A node's series contains what the ledger certifies, and bounded reports of members."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from p2ptrain.data.blocks import decode_block
from p2ptrain.data.token_entropy import entropy_nats
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.values import Branch, Commit, Participant, Skip
from p2ptrain.node.control.series.closed_steps import ClosedStep, ClosedSteps
from p2ptrain.node.control.series.data_entropy import entropy_of, record_entropy
from p2ptrain.node.control.series.learning import certified, gaps_in
from p2ptrain.node.control.series.recording import SeriesBook
from p2ptrain.observe.series import (
    PeerStepRow,
    SampleRow,
    SeriesReader,
    SeriesRecorder,
    StepRow,
)
from p2ptrain.observe.series.rows import UNIGRAM_ENTROPY, FactRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.peers.outside.sample_text import SampleText
from p2ptrain.peers.series.history_pages import HistoryPage
from p2ptrain.peers.series.step_report import StepReport
from p2ptrain.testing.ledgers import digest, small_rules
from p2ptrain.testing.published import BLOCKS, MODEL, block_file, policy
from p2ptrain.web.charts import series
from p2ptrain.web.history import History
from tests.ledger import audited
from tests.node.rig import ANN, BOB, CAI, Growing, NewRig, Rig, opening
from tests.node.training.test_training import know_data

NINE = 1_800_000_000.0
UPDATE = Digest("d" * 64)
ALONE: dict[str, Any] = {"steps": 40, "rules": policy(participants_min=1)}
RULES = small_rules("a b c", outer_steps=9, branch_after_s=60.0)
A, B = Participant(RULES.founders[0], 100, 1), Participant(RULES.founders[1], 200, 2)


def test_verdict_does_not_close_a_step() -> None:
    g = Growing(audited.RULES)
    steps = ClosedSteps(g.kept)
    g.grow(audited.opening(genesis(audited.RULES), auditors=audited.ALL))
    g.grow(Commit(0, 0, digest("update 0")))
    g.grow(audited.conviction(audited.AUDITED, audited.B))
    assert [each.step for each in steps.new()] == [1]


def test_closed_steps_follow_the_chain() -> None:
    g = Growing(RULES)
    steps = ClosedSteps(g.kept)
    assert list(steps.new()) == []
    g.grow(g.opening(A, B))
    g.grow(Commit(0, 0, UPDATE))
    g.grow(g.opening(A))
    members = RULES.founders
    assert list(steps.new()) == [ClosedStep(1, 0, False, members, (A, B), 300)]
    g.grow(g.opening(B))  # This is the second attempt.
    g.grow(Skip(1))
    g.grow(g.opening(A, B))
    g.grow(Branch(2, RULES.founders[:1]))
    g.grow(g.opening(A))
    g.grow(Commit(2, 1, UPDATE))
    assert list(steps.new()) == [
        ClosedStep(2, 1, True, members, (), 300),
        ClosedStep(3, 1, False, members[:1], (A,), 400),
    ]
    assert list(steps.new()) == []
    assert [each.step for each in ClosedSteps(g.kept).new()] == [1, 2, 3]


async def one_step(r: Rig, *learners: Participant) -> None:
    """Let the members close one outer step, with this node and `learners` as participants."""
    me, peers = Participant(r.context.me, 32, 2), tuple(each.peer for each in learners)
    if peers:
        r.decide(replace(opening(r.context.ledger.snapshot), learners=peers))
    state = r.context.ledger.snapshot
    r.decide(opening(state, me, *learners, learners=peers))
    r.decide(Commit(state.step, 0, UPDATE))


def rows_of(r: Rig, recorder: SeriesRecorder) -> tuple[list[StepRow], list[PeerStepRow]]:
    recorder.flush()
    with SeriesReader(r.context.home.series) as reader:
        return reader.steps(), reader.peer_steps(0)


async def test_reports_complete_the_rows_of_members_only(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    with SeriesRecorder(context.home.series, context.run) as recorder:
        book = SeriesBook(context, recorder, lambda: NINE, 0)
        await one_step(r, Participant(ANN.peer, 32, 2))
        context.state.note_report(ANN.peer, StepReport(1, train_ms=700, loss=2.0, version="1"))
        context.state.note_report(BOB.peer, StepReport(1, train_ms=700, loss=900.0))
        context.state.note_report(CAI.peer, StepReport(9, train_ms=700, loss=900.0))
        book.look()
        waiting = set(context.state.arrived)
        context.state.note_report(ANN.peer, StepReport(1, train_ms=1, loss=9.0, version="1"))
        book.look()
        steps, peers = rows_of(r, recorder)
    assert waiting == {CAI.peer}  # Its step may still come.
    assert steps == [
        StepRow(
            1,
            time=NINE,
            attempt=0,
            skipped=0,
            members=2,
            participants=2,
            tokens=64,
            tokens_total=64,
            loss=2.0,
        )
    ]
    told = PeerStepRow(1, ANN.peer, tokens=32, contributed=1, train_ms=700, loss=2.0, version="1")
    zero = {"data_wait_ms", "wait_ms", "exchange_ms", "fetch_ms", "apply_ms", "bytes_up"}
    told = replace(told, device="", bytes_down=0, **dict.fromkeys(zero, 0))  # type: ignore[arg-type]
    own = PeerStepRow(1, context.me, tokens=32, contributed=1)
    assert sorted(peers, key=str) == sorted([told, own], key=str)


async def test_mean_loss_is_weighted_by_tokens(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    with SeriesRecorder(context.home.series, context.run) as recorder:
        book = SeriesBook(context, recorder, lambda: NINE, 0)
        await one_step(r, Participant(ANN.peer, 16, 1), Participant(BOB.peer, 32, 2))
        context.state.note_report(ANN.peer, StepReport(1, loss=5.0))
        context.state.note_report(BOB.peer, StepReport(1, loss=2.0))
        book.look()
        steps, _ = rows_of(r, recorder)
    assert steps[0].loss == pytest.approx((5.0 * 16 + 2.0 * 32) / 48)


async def test_lost_series_is_recorded_again_from_the_ledger(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    for _ in range(3):
        await one_step(r)
    with SeriesRecorder(context.home.series, context.run) as recorder:
        await SeriesBook(context, recorder, lambda: NINE, 0).record_known()
        steps, peers = rows_of(r, recorder)
    assert [(row.step, row.time, row.tokens_total) for row in steps] == [
        (1, None, 32),
        (2, None, 64),
        (3, None, 96),
    ]
    assert [row.tokens for row in peers] == [32, 32, 32]
    assert gaps_in(context, 3) == [(1, 3)]


async def test_steps_that_a_node_drops_leave_its_series(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    writer = SeriesWriter(context.home.series, context.run)
    for step in (1, 2, 3):
        writer.write([StepRow(step, time=1.0), PeerStepRow(step, ANN.peer, tokens=5)])
    writer.close()
    await one_step(r)
    with SeriesRecorder(context.home.series, context.run) as recorder:
        await SeriesBook(context, recorder, lambda: NINE, 3).record_known()
        steps, peers = rows_of(r, recorder)
    assert ([row.step for row in steps], [row.step for row in peers]) == ([1], [1])


async def test_gaps_are_named_from_the_newest_to_the_oldest(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    assert gaps_in(r.context, 9) == [(1, 9)]
    writer = SeriesWriter(r.context.home.series, r.context.run)
    writer.write([StepRow(2, time=1.0), StepRow(6, time=2.0, covers=2), StepRow(8)])
    writer.close()
    assert gaps_in(r.context, 9) == [(7, 9), (3, 4), (1, 1)]
    assert gaps_in(r.context, 6) == [(3, 4), (1, 1)]


async def test_told_tokens_are_replaced_by_those_of_the_ledger(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    await one_step(r, Participant(ANN.peer, 16, 1))
    await one_step(r)
    liar = {"told_by": BOB.peer}
    page = HistoryPage(
        (StepRow(2, time=1.0, covers=2, tokens=9000, tokens_total=9000, **liar),),  # type: ignore[arg-type]
        (
            PeerStepRow(2, ANN.peer, tokens=1, train_ms=5, **liar),  # type: ignore[arg-type]
            PeerStepRow(2, CAI.peer, tokens=8000, train_ms=5, **liar),  # type: ignore[arg-type]
        ),
    )
    ((step, peers),) = certified(context, page)
    assert (step.tokens, step.tokens_total, step.told_by) == (80, None, BOB.peer)
    assert {row.peer: (row.tokens, row.contributed, row.train_ms) for row in peers} == {
        ANN.peer: (16, 1, 5),
        context.me: (64, 2, None),
    }


async def test_tokens_before_the_ledger_begins_stay_hearsay(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    page = HistoryPage(
        (StepRow(7, time=1.0, tokens=9000, told_by=BOB.peer),),
        (
            PeerStepRow(7, context.me, tokens=9, told_by=BOB.peer),
            PeerStepRow(7, CAI.peer, tokens=8991, told_by=BOB.peer),
        ),
    )
    ((step, peers),) = certified(context, page)
    assert (step.tokens, [row.peer for row in peers]) == (9000, [context.me])


async def test_samples_are_recorded_once(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    sample = SampleText(context.run, 20, 1, " there was a fox")
    with SeriesRecorder(context.home.series, context.run) as recorder:
        book = SeriesBook(context, recorder, lambda: NINE, 0)
        context.trainer.samples.note(ANN.peer, sample, b"")
        book.look()
        book.look()
        recorder.flush()
        with SeriesReader(context.home.series) as reader:
            assert reader.samples() == [SampleRow(20, 1, ANN.peer, " there was a fox")]


async def test_entropy_of_the_data_is_recorded_once(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    know_data(r)
    counts = np.zeros(MODEL.vocab, dtype=np.int64)
    for number in range(BLOCKS):
        rows = decode_block(block_file(number), vocab=MODEL.vocab, sequence=MODEL.sequence)
        counts += np.bincount(rows.ravel(), minlength=MODEL.vocab)
    with SeriesRecorder(r.context.home.series, r.context.run) as recorder:
        await record_entropy(r.context, recorder, look_s=0.0)
        recorder.flush()
        with closing(History(r.context.home.series)) as history:
            shown = series(history, 0, 800)["unigram_entropy"]
        assert shown == pytest.approx(entropy_nats(counts), abs=1e-5)
        index = r.context.blobs.data
        assert index is not None
        part = entropy_of(r.context, index.train[::3])
        assert part is not None
        assert part == pytest.approx(entropy_nats(counts), rel=0.02)
        recorder.record(FactRow(UNIGRAM_ENTROPY, "1.5"))
        recorder.flush()
        await record_entropy(r.context, recorder, look_s=0.0)
        recorder.flush()
        with SeriesReader(r.context.home.series) as reader:
            assert reader.meta(UNIGRAM_ENTROPY) == "1.5"


async def test_node_without_blocks_records_no_entropy(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    know_data(r)
    assert entropy_of(r.context, [UPDATE]) is None
    with SeriesRecorder(r.context.home.series, r.context.run) as recorder:
        r.context.blobs.data = None
        with trio.move_on_after(0.1):
            await record_entropy(r.context, recorder, look_s=0.0)
            raise AssertionError("it waits for the index")
