"""A node asks members for the history that it lacks, and answers others within limits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.errors import PeerUnreachable, RemoteProtocolError, TryLater
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.node.control.series.history_server import HistoryLimits, serve_history
from p2ptrain.node.control.series.learning import learn_history
from p2ptrain.node.gossip.gossip import take_heartbeat
from p2ptrain.observe.series import PeerStepRow, SeriesReader, SeriesRecorder, StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.peers.heartbeat import encode
from p2ptrain.peers.protocol_names import HISTORY_PROTOCOL
from p2ptrain.peers.series.history_pages import (
    HistoryPage,
    HistoryRequest,
    decode_page,
    decode_request,
    encode_page,
    encode_request,
)
from p2ptrain.peers.series.step_report import StepReport
from p2ptrain.rate_limit import Allowance
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, opening, settled

ALONE: dict[str, Any] = {"steps": 40, "rules": policy(participants_min=1)}
NOW = 1_800_000_000.0
STEPS = 3


def with_steps(r: Rig) -> None:
    """Let the members, this node, ANN and BOB, make some outer steps, and apply them."""
    context = r.context
    r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer, BOB.peer)))
    for step in range(STEPS):
        state = context.ledger.snapshot
        me = Participant(context.me, 32, 2)
        r.decide(opening(state, me, learners=state.learners), Commit(step, 0, Digest("d" * 64)))
    context.outer.step = STEPS


def told(first: int = 1, last: int = STEPS, **changes: object) -> HistoryPage:
    """Return the page of an honest teller, with `changes` of each row."""
    rows = (StepRow(step, time=NOW - 100 + step, tokens=7) for step in range(first, last + 1))
    steps = tuple(replace(row, **changes) for row in rows)  # type: ignore[arg-type]
    return HistoryPage(steps, tuple(PeerStepRow(row.step, ANN.peer, train_ms=5) for row in steps))


def learnt(r: Rig) -> list[StepRow]:
    with SeriesReader(r.context.home.series) as reader:
        return [row for row in reader.steps_between(1, STEPS) if row.time is not None]


def begin(r: Rig, nursery: trio.Nursery, recorder: SeriesRecorder) -> None:
    learn = partial(learn_history, first_s=0.0, page_s=0.0, wall=lambda: NOW)
    nursery.start_soon(learn, r.context, recorder)


async def test_gaps_are_filled_page_by_page_from_members_only(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    with_steps(r)
    r.network.peers = {ANN.peer, CAI.peer}

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        asked = decode_request(payload)
        return encode_page(told(max(1, asked.last - 1), asked.last), r.run.id, ANN)

    r.network.answer = answer
    with SeriesRecorder(r.context.home.series, r.context.run) as recorder:
        recorder.record(StepRow(1), StepRow(2), StepRow(3))
        recorder.flush()
        begin(r, nursery, recorder)
        await settled(lambda: len(learnt(r)) == STEPS)
    assert {peer for peer, _ in r.network.requested} == {ANN.peer}
    requests = [decode_request(payload) for _, payload in r.network.requested]
    assert [(each.first, each.last) for each in requests] == [(1, 3), (1, 1)]
    assert [(row.tokens, row.told_by) for row in learnt(r)] == [(32, ANN.peer)] * STEPS


@pytest.mark.parametrize(
    "lie",
    [
        lambda run: encode_page(told(), run, CAI),
        lambda run: encode_page(told(time=NOW + 1e6), run, BOB),
        lambda run: encode_page(told(1, STEPS + 5), run, BOB),
        lambda run: b"nonsense",
    ],
)
async def test_liar_is_reported_and_another_member_is_asked(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery, lie: Any
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    with_steps(r)
    r.network.peers = {ANN.peer, BOB.peer}
    honest = trio.Event()

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        if peer == BOB.peer:
            honest.set()
            return bytes(lie(r.run.id))
        await honest.wait()  # So that the liar answers first.
        return encode_page(told(), r.run.id, ANN)

    r.network.answer = answer
    with SeriesRecorder(r.context.home.series, r.context.run) as recorder:
        recorder.record(StepRow(3))
        recorder.flush()
        begin(r, nursery, recorder)
        await settled(lambda: len(learnt(r)) == STEPS)
    assert [each["peer"] for each in r.said("bad-history")] == [BOB.peer]


async def test_members_of_older_versions_cost_nothing(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    with_steps(r)
    r.network.peers = {ANN.peer, BOB.peer}

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        raise PeerUnreachable("it does not know this protocol", peer=peer)

    r.network.answer = answer
    with SeriesRecorder(r.context.home.series, r.context.run) as recorder:
        begin(r, nursery, recorder)
        await settled(lambda: len(r.network.requested) == 2)
        await trio.testing.wait_all_tasks_blocked()
    assert r.said("bad-history") == []


async def asked(r: Rig, peer: Identity, **changes: object) -> bytes:
    request = HistoryRequest(r.run.id, 1, 9)
    made = replace(request, **changes)  # type: ignore[arg-type]
    return await r.network.handlers[HISTORY_PROTOCOL](peer.peer, encode_request(made))


async def test_server_answers_with_signed_pages_within_limits(
    tmp_path: Path, new_rig: NewRig
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    writer = SeriesWriter(r.context.home.series, r.context.run)
    writer.write([*told().steps, *told().peers])
    writer.close()
    serve_history(r.context, HistoryLimits(Allowance(2, 0.001), Allowance(1500, 0.001)))
    page = decode_page(await asked(r, ANN), r.run.id, r.context.me)
    assert [row.step for row in page.steps] == [1, 2, 3]
    assert await asked(r, BOB, run=Digest("f" * 64)) == b""
    with pytest.raises(RemoteProtocolError):
        await r.network.handlers[HISTORY_PROTOCOL](ANN.peer, b"nonsense")
    await asked(r, ANN)
    with pytest.raises(TryLater):
        await asked(r, ANN)  # ANN has asked too often.
    with pytest.raises(TryLater):
        for _ in range(3):
            await asked(r, CAI)  # All together have got too many bytes.


async def test_reports_of_members_only_are_noted(tmp_path: Path, new_rig: NewRig) -> None:
    r = await new_rig(tmp_path, **ALONE, welcoming=True)
    with_steps(r)
    report = StepReport(3, train_ms=7)
    for who in (ANN, CAI):
        beat = heartbeat(r.run.id, step_report=report)
        await take_heartbeat(r.context, who.peer, encode(beat))
    assert r.context.state.arrived == {ANN.peer: report}
