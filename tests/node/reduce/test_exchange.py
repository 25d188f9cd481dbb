"""When a node takes part in a reduce, which work it averages, and when it gives up and whom it
blames."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.dataplane.tls import tls_context
from p2ptrain.encoding import pack
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.values import Commit, Participant, Roster
from p2ptrain.ledger.messages.peer_reports import Ready, ReduceFailed
from p2ptrain.ledger.policy.policy import reconsider
from p2ptrain.node.connecting.ways import AGAIN_S
from p2ptrain.node.control.status import status
from p2ptrain.node.gossip import gossip
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.reduce.due_reduce import reduce_due
from p2ptrain.node.reduce.reduce_request import request_of
from p2ptrain.node.reduce.reduce_task import (
    give_up,
    run_reduces,
    while_it_matters,
    why_moot,
)
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.timing import ReduceTiming, Timing
from p2ptrain.peers.heartbeat import ReduceReport
from p2ptrain.peers.heartbeat_delta import FullHeartbeat, decode_beat
from p2ptrain.ring import SILENCE_S
from p2ptrain.ring.wait_for import REDUCE_S_MIN
from p2ptrain.store import digest_of
from p2ptrain.sync.trainer_orders import LocalWork
from p2ptrain.testing.ledgers import small_rules
from p2ptrain.testing.published import policy
from tests.dataplane.conftest import certificate_in_the_name_of, named
from tests.node.rig import ANN, BOB, NewRig, Rig, entry_of, heartbeat, opening, rig, settled

RULES = small_rules("a b")
A, B = RULES.founders
START = genesis(RULES)
OPENED = Roster(0, 0, RULES.founders, (), (Participant(A, 200, 2), Participant(B, 100, 1)))
OPEN = apply(RULES, START, entry_of(START, OPENED))
WORK = LocalWork(0, (0, 1), 200)


@pytest.mark.parametrize(
    ("peer", "outer_step", "work", "due"),
    [
        (A, 0, WORK, True),
        (A, None, WORK, False),  # θ is not loaded.
        (A, 1, WORK, False),  # θ is of a different step.
        (A, 0, None, False),  # The node has restarted since it reported ready.
        (A, 0, replace(WORK, step=1), False),
        (A, 0, replace(WORK, tokens=100), False),  # The roster names 200 tokens.
        (A, 0, LocalWork(0, (0,), 100), False),
        (A, 0, LocalWork(0, (2, 3), 200), False),  # The node has leased other blocks.
        (B, 0, LocalWork(0, (2,), 100), True),
        (PeerId("c"), 0, WORK, False),
    ],
)
def test_node_takes_part_only_with_exactly_the_work_in_the_roster(
    peer: PeerId, outer_step: int | None, work: LocalWork | None, due: bool
) -> None:
    assert reduce_due(OPEN, outer_step, peer, work) == (OPENED if due else None)
    assert reduce_due(START, outer_step, peer, work) is None


async def test_attempt_is_not_needed_if_the_ledger_advanced_or_a_peer_is_down(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        context = r.context
        roster = opening(context.ledger.snapshot, Participant(context.me, 16, 1))
        r.decide(roster)
        assert why_moot(context, roster) is None
        ann = Participant(ANN.peer, 16, 1)
        with_ann = replace(roster, learners=(ANN.peer,), participants=(*roster.participants, ann))
        r.set_chain(roster=with_ann)
        context.peers.detector.watch(ANN.peer, context.now())
        assert why_moot(context, with_ann) is None
        context.peers.detector.hint_lost(ANN.peer, context.now())
        reason = why_moot(context, with_ann)
        assert reason is not None
        assert reason.suspects == (ANN.peer,)
        assert why_moot(context, with_ann, awaited=()) is None
        r.set_chain(roster=None)
        reason = why_moot(context, with_ann)
        assert reason is not None
        assert reason.suspects == ()


async def test_request_for_a_reduce_follows_from_the_roster(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        roster = opening(r.context.ledger.snapshot, Participant(r.context.me, 16, 1))
        request = request_of(r.context, r.context.outer_step(roster.step), roster)
        assert (request.peers, request.weights, request.me) == ((r.context.me,), (16,), 0)
        assert request.deadline_s >= REDUCE_S_MIN


async def test_single_participant_stores_and_reports_its_update_once(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=policy(participants_min=1))
    context = r.context
    context.outer.step = 0
    assert context.trainer.arena is not None
    context.trainer.arena.local[:] = context.trainer.arena.theta - np.float32(0.01)
    r.decide(opening(context.ledger.snapshot, Participant(context.me, 16, 1)))
    nursery.start_soon(run_reduces, context)
    await trio.testing.wait_all_tasks_blocked()
    assert r.said("exchange-started") == []  # The node does not have any work to average yet.
    context.trainer.work = LocalWork(0, (0,), 16)
    context.changes.notify_all()
    await settled(lambda: context.reduce.report is not None)
    report = context.reduce.report
    assert report is not None
    assert report.update is not None
    assert context.store.holds_blob(report.update)
    done = r.said("exchange-done")[0]
    assert {"seconds", "scatter_s", "gather_s", "arithmetic_s", "cpu_s"} <= done.keys()
    assert (done["sent_bytes"], done["received_bytes"]) == (0, 0)
    shown = await status(context)
    assert shown.exchange["cpu_s"] == done["cpu_s"]
    assert shown.exchanged.startswith("the last took ")
    length = 0.01 * math.sqrt(context.layout.numel)
    assert shown.learning == {
        "norm": pytest.approx(length, rel=1e-3),
        "mean_norm": pytest.approx(length, rel=1e-2),
        "cosine": pytest.approx(1.0, rel=1e-3),
        "quantisation_error": done["quantisation_error"],
    }
    assert {name: done[name] for name in shown.learning} == shown.learning
    context.changes.notify_all()
    await trio.testing.wait_all_tasks_blocked()
    assert len(r.said("exchange-started")) == 1


async def test_unreachable_peer_is_suspected_and_theta_is_unlocked(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    r.wait_for(edge_s=0.5)
    context = r.context
    context.outer.step = 0
    context.peers.detector.watch(ANN.peer, context.now())
    ours, theirs = Participant(context.me, 16, 1), Participant(ANN.peer, 16, 1)
    roster = opening(context.ledger.snapshot, ours, theirs, learners=[ANN.peer])
    r.set_chain(roster=roster)
    context.trainer.work = LocalWork(0, (0,), 16)
    nursery.start_soon(run_reduces, context)
    await settled(lambda: bool(r.said("exchange-failed")))
    assert r.said("exchange-failed")[0]["suspects"] == (ANN.peer,)
    assert not context.outer.lock.locked()
    await settled(lambda: r.context.ledger.queue.waiting > 0)
    assert r.heard() == [ReduceFailed(context.me, 0, 0, (ANN.peer,))]


@pytest.mark.parametrize("they_dial", [True, False])
async def test_neighbour_that_never_opens_its_streams_is_suspected(
    tmp_path: Path, they_dial: bool
) -> None:
    """In one case, the neighbour should dial and does not. In the other case, this node dials it,
    and it does not answer."""
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        r.wait_for(edge_s=0.4, reduce=ReduceTiming(dial_s=0.4))
        context = r.context
        with socket.create_server(("127.0.0.1", 0)) as silent:
            host, port = silent.getsockname()
            place = Endpoint(ANN.peer, host, port, context.plane.endpoint.certificate_der)
            beat = heartbeat(r.run.id, endpoint=pack(place.to_wire()))
            context.peers.table.note_heartbeat(ANN.peer, beat, context.now())
            context.peers.detector.note_arrival(ANN.peer, context.now())
            context.outer.step = 0
            ours, theirs = Participant(context.me, 16, 1), Participant(ANN.peer, 16, 1)
            order = (theirs, ours) if they_dial else (ours, theirs)
            roster = opening(context.ledger.snapshot, *order, learners=[ANN.peer])
            r.set_chain(roster=roster)
            context.trainer.work = LocalWork(0, (0,), 16)
            nursery.start_soon(run_reduces, context)
            await settled(lambda: bool(r.said("exchange-failed")))
            assert r.said("exchange-failed")[0]["suspects"] == (ANN.peer,)
            assert len(context.plane.ring_inbox) == 0
            nursery.cancel_scope.cancel()


def put_into_a_roster(r: Rig, *others: PeerId) -> None:
    """Let the ledger open a reduce among this node and `others`, and give this node the work for
    it."""
    context = r.context
    context.outer.step = 0
    each = [Participant(name, 16, 1) for name in (context.me, *others)]
    roster = opening(context.ledger.snapshot, *each, learners=others)
    r.set_chain(roster=roster)
    context.trainer.work = LocalWork(0, (0,), 16)


@contextmanager
def answering(context: Context, answer: bytes) -> Iterator[Endpoint]:
    """Open Ann's data plane, which answers every hello with `answer`, and yield its endpoint."""
    credentials = Credentials.create(ANN)
    tls = tls_context(credentials, [context.plane.credentials.certificate_der], server=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_all() -> None:
            with suppress(OSError):  # The error ends the thread when the socket is shut down.
                while True:
                    raw, _ = listening.accept()
                    with suppress(OSError), tls.wrap_socket(raw, server_side=True) as secured:
                        secured.recv(1 << 14)
                        secured.sendall(answer)
                        secured.recv(1)

        thread = threading.Thread(target=answer_all)
        thread.start()
        host, port = listening.getsockname()
        yield Endpoint(ANN.peer, host, port, credentials.certificate_der)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("answer", [b"\0\0\0\1\1", b"\0\0\0\1\x80", b"\xff\xff\xff\xff", None])
async def test_neighbour_with_a_bad_answer_or_certificate_is_suspected(
    tmp_path: Path, answer: bytes | None
) -> None:
    """The neighbour, Ann, answers with an invalid frame. If `answer` is None, she announces a
    certificate that Bob has made."""
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        r.wait_for(edge_s=0.4)
        context = r.context
        with answering(context, answer or b"") as place:
            if answer is None:
                false = certificate_in_the_name_of(BOB, named("bob"), named("bob"))
                place = replace(place, certificate_der=false)
            beat = heartbeat(r.run.id, endpoint=pack(place.to_wire()))
            context.peers.table.note_heartbeat(ANN.peer, beat, context.now())
            context.peers.detector.note_arrival(ANN.peer, context.now())
            put_into_a_roster(r, ANN.peer)
            nursery.start_soon(run_reduces, context)
            await settled(lambda: bool(r.said("exchange-failed")))
            nursery.cancel_scope.cancel()
        assert r.said("exchange-failed")[0]["suspects"] == (ANN.peer,)
        heard = decode_beat(
            context.own_heartbeat.saying.encode_next(
                gossip.describe(context, context.identities.incarnation, 0)
            )
        )
        assert isinstance(heard, FullHeartbeat)
        assert heard.heartbeat.reduce == ReduceReport(0, 0, None, (ANN.peer,))


async def test_participant_without_a_valid_peer_id_is_not_suspected(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """In an open run, a lying proposer can put a participant with an invalid peer id into a
    roster."""
    r = await new_rig(tmp_path)
    context, nobody = r.context, PeerId("nobody")
    put_into_a_roster(r, ANN.peer, nobody)
    nursery.start_soon(run_reduces, context)
    await settled(lambda: bool(r.said("exchange-failed")))
    assert r.said("exchange-failed")[0]["suspects"] == (ANN.peer,)
    heard = decode_beat(
        context.own_heartbeat.saying.encode_next(
            gossip.describe(context, context.identities.incarnation, 0)
        )
    )
    assert isinstance(heard, FullHeartbeat)


async def test_attempt_that_is_no_longer_needed_is_not_begun(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=policy(participants_min=1))
    context = r.context
    context.outer.step = 0
    context.trainer.work = LocalWork(0, (0,), 16)
    r.decide(opening(context.ledger.snapshot, Participant(context.me, 16, 1)))
    async with context.outer.lock:
        nursery.start_soon(run_reduces, context)
        await settled(lambda: bool(r.said("exchange-started")))
        r.decide(Commit(0, 0, digest_of(b"by others")))
    await settled(lambda: bool(r.said("exchange-failed")))
    assert r.said("exchange-connected") == []


async def test_node_that_lost_the_work_in_the_roster_reports_a_failure(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    context = r.context
    context.outer.step = 0
    context.peers.detector.watch(ANN.peer, context.now())
    ours, theirs = Participant(context.me, 16, 1), Participant(ANN.peer, 16, 1)
    roster = opening(context.ledger.snapshot, ours, theirs, learners=[ANN.peer])
    r.set_chain(roster=roster)
    nursery.start_soon(run_reduces, context)
    await trio.testing.wait_all_tasks_blocked()
    # This process has not reported its work as ready yet, but can still do so.
    assert r.heard() == []
    context.ledger.core.reports.note(Ready(context.me, 0, 16, 1))
    context.changes.notify_all()
    await settled(lambda: bool(r.said("exchange-failed")))
    lost = ReduceFailed(context.me, 0, 0, (context.me,))
    await settled(lambda: r.context.ledger.queue.waiting > 0)
    assert r.heard() == [lost]
    assert r.said("exchange-started") == []
    context.changes.notify_all()
    await trio.testing.wait_all_tasks_blocked()
    assert len(r.said("exchange-failed")) == 1


async def test_restarted_node_reports_a_failure_and_offers_its_new_work(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """The roster counts on more work than the restarted node has trained again. The node reports
    that its attempt failed, since no other participant may be able to report this, and then that
    the new work is ready, so that the next attempt uses it."""
    r = await new_rig(tmp_path, rules=policy(participants_min=1))
    context = r.context
    context.outer.step, now = 0, context.now()
    state = r.decide(opening(context.ledger.snapshot, Participant(context.me, 32, 2)))
    nursery.start_soon(run_reduces, context)
    context.trainer.work = work = LocalWork(0, state.leases[context.me][:1], 16)
    ready = Ready(context.me, 0, 16, 1)
    reports, rules = context.ledger.core.reports, context.ledger.rules
    reports.note(ready)
    context.changes.notify_all()
    await settled(lambda: r.context.ledger.queue.waiting > 1)
    heard = r.heard()
    assert heard == [ReduceFailed(context.me, 0, 0, (context.me,)), ready]
    assert context.trainer.work == work
    for event in heard:
        assert isinstance(event, Ready | ReduceFailed)
        reports.note(event)
    wish, _ = reconsider(rules, state, reports, now)
    assert isinstance(wish.value, Roster)
    assert wish.value.participants == (Participant(context.me, 16, 1),)
    r.decide(wish.value)
    context.changes.notify_all()
    await settled(lambda: bool(r.said("exchange-done")))
    assert len(r.said("exchange-failed")) == 1


async def test_attempt_is_not_needed_if_a_participant_lost_its_work(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        context = r.context
        context.peers.detector.watch(ANN.peer, context.now())
        ours, theirs = Participant(context.me, 16, 1), Participant(ANN.peer, 16, 1)
        roster = opening(context.ledger.snapshot, ours, theirs, learners=[ANN.peer])
        r.set_chain(roster=roster)
        context.ledger.core.reports.note(ReduceFailed(ANN.peer, 0, 0, (context.me,)))
        assert why_moot(context, roster) is None
        context.ledger.core.reports.note(ReduceFailed(ANN.peer, 0, 0, (ANN.peer,)))
        reason = why_moot(context, roster)
        assert reason is not None
        assert reason.suspects == (ANN.peer,)


async def test_work_that_contains_nan_is_not_offered_again(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, rules=policy(participants_min=1))
    context = r.context
    assert context.trainer.arena is not None
    context.outer.step = 0
    context.trainer.work = LocalWork(0, (0,), 16)
    context.trainer.arena.local[0] = float("nan")
    r.decide(opening(context.ledger.snapshot, Participant(context.me, 16, 1)))
    nursery.start_soon(run_reduces, context)
    await settled(lambda: r.context.ledger.queue.waiting > 0)
    assert r.heard() == [ReduceFailed(context.me, 0, 0, (context.me,))]
    assert context.trainer.work is None


async def test_participant_that_is_slightly_late_finishes_its_own_reduce(
    tmp_path: Path,
) -> None:
    """The other participants have already committed the update. Over a slow connection, fetching it
    would take as long as the entire reduce did."""
    async with rig(tmp_path, rules=policy(participants_min=1)) as r, trio.open_nursery() as nursery:
        context = r.context
        roster = opening(context.ledger.snapshot, Participant(context.me, 16, 1))
        r.decide(roster)
        last_bytes = trio.Event()
        made: list[str] = []

        async def reduce() -> str:
            await last_bytes.wait()
            return "the update"

        async def late() -> None:
            made.append(await while_it_matters(context, roster, reduce, 60.0))

        nursery.start_soon(late)
        r.decide(Commit(0, 0, digest_of(b"update")))
        context.changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
        assert made == []
        last_bytes.set()
        await settled(lambda: made == ["the update"])
        with pytest.raises(ReduceAborted, match="without it"):
            await while_it_matters(context, roster, trio.sleep_forever)


async def test_fetch_of_an_update_waits_for_a_running_reduce(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        context, done = r.context, trio.Event()

        async def wait() -> None:
            await update_blobs.own_result(context, 3)
            done.set()

        context.reduce.averaging = 3
        await update_blobs.own_result(context, 4)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        context.reduce.averaging = None
        context.changes.notify_all()
        await settled(done.is_set)


@pytest.mark.parametrize(("heard", "reported"), [(False, (ANN.peer,)), (True, ())])
async def test_neighbours_accusation_is_not_repeated_as_our_own(
    tmp_path: Path, heard: bool, reported: tuple[PeerId, ...]
) -> None:
    """Otherwise a liar that sends ABORT with an accusation would make all participants report it as
    their own."""
    async with rig(tmp_path) as r:
        await give_up(r.context, ReduceAborted(0, 0, (ANN.peer,), "it was silent", heard=heard))
        assert r.context.reduce.report == ReduceReport(0, 0, None, reported)
        assert r.said("exchange-failed")[0]["suspects"] == (ANN.peer,)


def test_connecting_peer_gives_up_before_it_is_blamed_for_silence() -> None:
    """A peer sends nothing before all of its connections are open. So an honest peer must give up
    connecting before its neighbours blame it for silence. Otherwise a participant that never opens
    one of its connections could get an honest peer blamed."""
    assert Timing().edge_s + AGAIN_S < SILENCE_S - 1.0
