"""The ledger's task carries out the ledger's effects in order, and writes votes to disk before it
sends them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.archive.ledger_on_disk import open_ledger
from p2ptrain.errors import RemoteProtocolError, StoreError, StoreFull
from p2ptrain.ledger.messages.effects import Note, Persist, Rejoin, Send
from p2ptrain.ledger.messages.events import PeerHeight, Received, Tick
from p2ptrain.ledger.messages.messages import EntriesRequest, Prepare, Refused
from p2ptrain.ledger.messages.peer_reports import Joining, PeerUp, Ready
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.node.consensus import inbox
from p2ptrain.node.consensus.ledger_task import (
    VOTE_RECORDS_MAX,
    due_events,
    hear_messages,
    in_runs,
    run_ledger,
    shorten_votes,
)
from p2ptrain.node.state.ledger_port import EVENTS_MAX, PAGES_BURST, EventQueue
from p2ptrain.peers.misbehaviour_log import NOTES_BURST
from p2ptrain.peers.protocol_names import LEDGER_PROTOCOL
from p2ptrain.store import RecordLog
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, opening, rig, settled, signed, somebody


def test_adjacent_effects_of_one_type_are_grouped_in_order() -> None:
    first, second, third = Persist(b"1"), Persist(b"2"), Persist(b"3")
    note, send = Note("a"), Send(ANN.peer, EntriesRequest(1))
    assert in_runs([first, second, send, third, note]) == [
        [first, second],
        [send],
        [third],
        [note],
    ]


async def test_queue_returns_up_to_64_events_or_one_tick_if_there_are_none() -> None:
    queue = EventQueue(lambda author: None)
    events = [PeerHeight(ANN.peer, height) for height in range(100)]
    for event in events:
        queue.offer(event)
    assert await due_events(queue, None) == events[:64]
    assert await due_events(queue, 0.0) == events[64:]
    assert await due_events(queue, trio.current_time()) == [Tick()]


async def test_single_founder_decides_an_entry_and_writes_it_to_disk(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        context = r.context
        nursery.start_soon(run_ledger, context)
        await context.ledger.submit(Joining(ANN.peer))
        await settled(lambda: context.ledger.snapshot.is_member(ANN.peer))
        await settled(lambda: bool(r.network.published))
        assert len(list(context.ledger.chain_log)) == len(r.said("decided")) == 1
        assert [topic for topic, _ in r.network.published] == [f"/p2ptrain/1/{r.run.id}/ledger"]
        nursery.cancel_scope.cancel()
    ledger, _, _ = open_ledger(r.context.home, r.run, r.context.identity, 0.0)
    assert ledger.state == r.context.ledger.snapshot


async def test_vote_log_is_shortened_while_the_node_runs(tmp_path: Path) -> None:
    joiners = [somebody(number).peer for number in range(12)]
    async with rig(tmp_path, allowed=joiners) as r, trio.open_nursery() as nursery:
        context = r.context
        nursery.start_soon(partial(run_ledger, context, vote_records_max=4))
        for peer in joiners:
            await context.ledger.submit(Joining(peer))
            await settled(lambda peer=peer: context.ledger.snapshot.is_member(peer))  # type: ignore[misc]
        await settled(
            lambda: context.ledger.vote_records <= 4 and len(list(context.ledger.chain_log)) == 12
        )
        assert len(list(context.ledger.votes)) == context.ledger.vote_records
        nursery.cancel_scope.cancel()
    ledger, _, votes = open_ledger(r.context.home, r.run, r.context.identity, 0.0)
    assert ledger.state.height == 12
    assert list(votes) == ledger.records()


async def test_node_continues_if_its_vote_log_cannot_be_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: RecordLog, records: object) -> None:
        raise StoreError("too many open files", code="FD-LIMIT")

    async with rig(tmp_path) as r:
        context, binding = r.context, r.context.ledger.core.records()
        context.ledger.vote_records = VOTE_RECORDS_MAX + 1
        with monkeypatch.context() as patch:
            patch.setattr(RecordLog, "rewrite", refused)
            await shorten_votes(context)
        assert context.ledger.vote_records == VOTE_RECORDS_MAX + 1
        assert [said["code"] for said in r.said("not-shortened")] == ["FD-LIMIT"]
        await shorten_votes(context)
        assert context.ledger.vote_records == len(binding)


async def test_peer_that_requests_entries_gets_a_page_of_them(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.context)
    await r.context.ledger.submit(Joining(ANN.peer))
    await settled(lambda: r.context.ledger.snapshot.height == 1)
    reply = await r.network.handlers[LEDGER_PROTOCOL](BOB.peer, encode(EntriesRequest(1)))
    assert reply == b""
    await settled(lambda: any(peer == BOB.peer for peer, _ in r.network.requested))
    page = decode(next(data for peer, data in r.network.requested if peer == BOB.peer))
    assert page.certified == tuple(r.context.ledger.core.chain)  # type: ignore[union-attr]


async def test_malformed_message_is_refused_and_the_node_continues(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.context)
    await settled(lambda: LEDGER_PROTOCOL in r.network.handlers)
    for noise in (b"", b"noise", b"\x80", b"{" * 100):
        with pytest.raises(RemoteProtocolError):
            await r.network.handlers[LEDGER_PROTOCOL](ANN.peer, noise)
    await r.context.ledger.submit(Joining(ANN.peer))
    await settled(lambda: r.context.ledger.snapshot.height == 1)


async def test_if_the_queue_is_full_peers_events_are_dropped_and_ours_wait(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    context, queue = r.context, r.context.ledger.queue
    request = Received(ANN.peer, EntriesRequest(1))
    for _ in range(2 * EVENTS_MAX):
        context.ledger.offer(request)
    assert "flood" in context.alerts
    assert queue.waiting < EVENTS_MAX
    for _ in range(EVENTS_MAX - queue.waiting):
        await queue.submit(request)
    context.ledger.core.reports.down.add(ANN.peer)
    nursery.start_soon(context.ledger.submit, Ready(context.me, 0, 16, 1))
    nursery.start_soon(context.ledger.submit, PeerUp(ANN.peer))
    await trio.testing.wait_all_tasks_blocked()
    assert queue.blocked == 2
    nursery.start_soon(run_ledger, context)
    await settled(lambda: context.me in context.ledger.core.reports.ready, deadline_s=20.0)
    await settled(lambda: ANN.peer not in context.ledger.core.reports.down, deadline_s=20.0)


async def test_peer_that_floods_does_not_displace_events_of_others(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for _ in range(2 * EVENTS_MAX):
            r.context.ledger.offer(Received(CAI.peer, Refused(1, 0, 0, "no")))
        vote = Received(BOB.peer, Prepare(1, 1))
        r.context.ledger.offer(vote)
        assert vote in r.heard()
        (said,) = r.said("flood")
        assert said["peer"] == CAI.peer


async def test_peer_that_floods_does_not_delay_events_of_others(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        noise, vote = Received(CAI.peer, Refused(1, 0, 0, "no")), Received(BOB.peer, Prepare(1, 1))
        for _ in range(EVENTS_MAX):
            r.context.ledger.offer(noise)
        r.context.ledger.offer(vote)
        await r.context.ledger.submit(PeerUp(ANN.peer))
        assert r.heard()[:4] == [noise, vote, PeerUp(ANN.peer), noise]


async def test_processed_events_no_longer_count_towards_a_flood(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.context)
    for _ in range(EVENTS_MAX // 256):
        for _ in range(256):
            r.context.ledger.offer(PeerHeight(BOB.peer, 0))
        await settled(lambda: not r.context.ledger.queue.waiting)
    assert "flood" not in r.context.alerts


@pytest.mark.parametrize("question", [EntriesRequest(1), Prepare(1, 0)])
async def test_requests_for_entries_are_rate_limited_per_peer(
    tmp_path: Path, question: EntriesRequest | Prepare
) -> None:
    async with rig(tmp_path) as r:
        r.decide(opening(r.context.ledger.snapshot, learners=[ANN.peer]))
        hear_messages(r.context)
        listener = r.network.handlers[LEDGER_PROTOCOL]
        for _ in range(PAGES_BURST):
            await listener(CAI.peer, encode(question))
            inbox.receive(r.context, CAI.peer, question)
        assert PAGES_BURST <= len(r.heard()) < 1.5 * PAGES_BURST
        await listener(BOB.peer, encode(question))
        await listener(CAI.peer, encode(Prepare(2, 0)))
        assert r.heard() == [Received(BOB.peer, question), Received(CAI.peer, Prepare(2, 0))]
        assert [said["peer"] for said in r.said("asks-too-often")] == [CAI.peer]


async def test_journal_notes_caused_by_one_peer_are_rate_limited(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.context)
    for _ in range(5):
        for _ in range(NOTES_BURST):
            r.context.ledger.offer(Received(CAI.peer, Refused(1, 0, 0, "no")))
        await settled(lambda: not r.context.ledger.queue.waiting)
    r.context.ledger.offer(Received(BOB.peer, Refused(1, 0, 0, "no")))
    await settled(lambda: any(BOB.peer in str(note["text"]) for note in r.said("note")))
    assert NOTES_BURST < len(r.said("note")) < 2 * NOTES_BURST
    assert [said["peer"] for said in r.said("notes-kept-back")] == [CAI.peer]


async def test_vote_that_cannot_be_written_is_never_sent(tmp_path: Path) -> None:
    class Full(RecordLog):
        def append(self, records: object, *, durable: bool = True) -> None:
            raise StoreFull("the disk was full")

    async with rig(tmp_path, rules=policy()) as r:
        r.context.ledger.votes = Full(r.context.home.votes)
        await r.context.ledger.submit(Joining(ANN.peer))
        with pytest.raises(BaseExceptionGroup) as caught:
            await run_ledger(r.context)
        assert caught.group_contains(StoreFull)
        assert r.network.requested == []
        assert r.network.published == []


async def test_ledger_task_returns_the_chain_that_must_replace_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as r:
        state = r.context.ledger.snapshot
        rejoin = Rejoin(0, (signed(r.run.id, state, opening(state), ANN),))
        monkeypatch.setattr(r.context.ledger.core, "handle", lambda *_: [Note("outranked"), rejoin])
        with trio.fail_after(30):
            assert await run_ledger(r.context, last_words_s=0.0) == rejoin
        (said,) = r.said("rejoining")
        assert (said["parted_at"], said["height"]) == (0, 1)
        assert r.said("note") != []
