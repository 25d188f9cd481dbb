"""A node asks members for the events and samples that it missed, and believes little of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from p2ptrain.errors import TryLater
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.node.control.series.history_server import HistoryLimits, serve_history
from p2ptrain.node.control.series.learning_events import (
    EARLIEST_S,
    STEPS_EACH,
    learn_events,
    parts_of,
)
from p2ptrain.observe.series import (
    EventRow,
    SampleRow,
    SeriesReader,
    SeriesRecorder,
    StepRow,
    ToldEventRow,
)
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.peers.outside.sample_text import sampler_of
from p2ptrain.peers.protocol_names import HISTORY_EVENTS_PROTOCOL
from p2ptrain.peers.series.event_pages import EventPage, decode_events, encode_events
from p2ptrain.peers.series.history_pages import (
    HistoryRequest,
    decode_request,
    encode_request,
)
from p2ptrain.rate_limit import Allowance
from p2ptrain.run.outside_facts import SamplePrompts
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, opening, settled

ALONE: dict[str, Any] = {
    "steps": 40,
    "rules": policy(participants_min=1),
    "samples": SamplePrompts(("Once upon a time",), 2),
}
NOW = 1_800_000_000.0
STEPS = 6
SEEN_FROM = 5
"""The first outer step that this node observed itself."""


def with_steps(r: Rig) -> None:
    """Let the members, this node, ANN and BOB, make some outer steps, in which this node and ANN
    take part. Only the last steps were observed here."""
    context = r.context
    r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer, BOB.peer)))
    for step in range(STEPS):
        state = context.ledger.snapshot
        both = Participant(context.me, 32, 2), Participant(ANN.peer, 32, 2)
        r.decide(opening(state, *both, learners=state.learners), Commit(step, 0, Digest("d" * 64)))
    context.outer.step = STEPS


def record(recorder: SeriesRecorder) -> None:
    told = (StepRow(step, time=NOW - 9, told_by=BOB.peer) for step in range(1, SEEN_FROM))
    own = (StepRow(step, time=NOW) for step in range(SEEN_FROM, STEPS + 1))
    recorder.record(*told, *own)
    recorder.flush()


def begin(r: Rig, nursery: trio.Nursery, recorder: SeriesRecorder) -> None:
    learn = partial(learn_events, first_s=0.0, page_s=0.0, wall=lambda: NOW)
    nursery.start_soon(learn, r.context, recorder)


def told(r: Rig) -> tuple[list[tuple[object, ...]], dict[int, tuple[str, str]]]:
    """Return the events and the samples, by outer step, in the series of this node. Those of one
    page are written in one transaction."""
    with SeriesReader(r.context.home.series) as reader:
        events = reader.events()
        samples = {row.step: (row.peer, row.text) for row in reader.told_samples()}
    return [(row.step, row.kind, row.peer, row.time) for _, row in events], samples


async def test_node_keeps_only_what_it_cannot_refute(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    with_steps(r)
    r.network.peers = {ANN.peer, CAI.peer}
    both = (r.context.me, ANN.peer)
    turns = {step: sampler_of(r.run.id, step, both) for step in (2, 4)}

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        events = [
            EventRow(NOW + 1e9, 4, "join", BOB.peer, "<script>"),
            EventRow(1.0, 3, "retry", "", ""),
            EventRow(NOW - 5, 2, "join", CAI.peer, "a peer that the ledger does not know"),
            EventRow(NOW - 5, SEEN_FROM, "skip", "", "observed here, so nobody asked for it"),
            EventRow(NOW - 5, 1, "warning", "", "not told"),
        ]
        samples = [
            *(SampleRow(step, 0, peer, f"by {peer}") for step in (2, 4, 6) for peer in both),
            SampleRow(3, 0, ANN.peer, "no sample was due"),
            SampleRow(2, 1, ANN.peer, "there is no such prompt"),
        ]
        return encode_events(events, samples, r.run.id, ANN)

    r.network.answer = answer
    with SeriesRecorder(r.context.home.series, r.context.run) as recorder:
        record(recorder)
        begin(r, nursery, recorder)
        await settled(lambda: bool(told(r)[0]))
    assert [peer for peer, _ in r.network.requested] == [ANN.peer]
    request = decode_request(r.network.requested[0][1])
    assert (request.first, request.last) == (1, SEEN_FROM - 1)
    events, texts = told(r)
    assert events == [(4, "join", BOB.peer, NOW), (3, "retry", "", EARLIEST_S)]
    assert texts == {step: (peer, f"by {peer}") for step, peer in turns.items()}


async def test_member_that_saw_nothing_or_lies_is_passed_over(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    with_steps(r)
    r.network.peers = {ANN.peer, BOB.peer}
    answers = iter((b"", b"nonsense", b"nonsense"))

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        return next(answers)

    r.network.answer = answer
    with SeriesRecorder(r.context.home.series, r.context.run) as recorder:
        record(recorder)
        begin(r, nursery, recorder)
        await settled(lambda: len(r.said("bad-history")) == 1)
    assert {peer for peer, _ in r.network.requested} == {ANN.peer, BOB.peer}


def test_parts_of_a_range_stay_the_same_when_it_grows() -> None:
    n = STEPS_EACH
    assert list(parts_of((1, n))) == [(1, n)]
    assert list(parts_of((5, 2 * n + 1))) == [(2 * n + 1, 2 * n + 1), (n + 1, 2 * n), (5, n)]
    assert list(parts_of((7, 6))) == []


async def asked(r: Rig, peer: Identity, first: int, last: int) -> bytes:
    request = encode_request(HistoryRequest(r.run.id, first, last))
    return await r.network.handlers[HISTORY_EVENTS_PROTOCOL](peer.peer, request)


async def test_server_tells_its_own_events_within_limits(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE)
    writer = SeriesWriter(r.context.home.series, r.context.run)
    joined = EventRow(9.0, 7, "join", BOB.peer, "It joined.")
    observed = StepRow(6, time=8.0), StepRow(7, time=9.0)
    writer.write([StepRow(5, time=7.0, told_by=ANN.peer), *observed, joined])
    writer.tell([ToldEventRow(6, "lost", CAI.peer, 8.5, ANN.peer)])
    writer.close()
    serve_history(r.context, HistoryLimits(Allowance(3, 0.001), Allowance(1500, 0.001)))
    found = decode_events(await asked(r, ANN, 1, 9), r.run.id, r.context.me)
    assert found == EventPage((ToldEventRow(7, "join", BOB.peer, 9.0, r.context.me),))
    quiet = decode_events(await asked(r, ANN, 6, 6), r.run.id, r.context.me)
    assert quiet == EventPage(), "what it was told, it does not tell on"
    assert await asked(r, ANN, 1, 5) == b""
    with pytest.raises(TryLater):
        await asked(r, ANN, 1, 9)  # ANN has asked too often.
    with pytest.raises(TryLater):
        for _ in range(9):
            await asked(r, CAI, 1, 9)  # All together have got too many bytes.
