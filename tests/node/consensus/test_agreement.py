"""The ledger's owner: effects in their order, votes on disk before they are on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.archive.ledger_on_disk import open_ledger
from p2ptrain.errors import RemoteProtocolError, StoreError, StoreFull
from p2ptrain.ledger.messages.effects import Note, Persist, Rejoin, Send
from p2ptrain.ledger.messages.events import Allowed, Heard, Joining, PeerUp, Ready, Received, Tick
from p2ptrain.ledger.messages.messages import EntriesRequest, Prepare, Refused
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.node.consensus import ledger_task
from p2ptrain.node.consensus.ledger_task import _in_runs, agree, due_events
from p2ptrain.node.gossip import gossip
from p2ptrain.node.state.ledger_port import EVENTS_MAX, PAGES_BURST, EventQueue
from p2ptrain.peers.misbehaviour_log import NOTES_BURST
from p2ptrain.peers.protocol_names import LEDGER_PROTOCOL
from p2ptrain.store import RecordLog
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, opening, rig, settled, signed, somebody


def test_neighbouring_effects_of_a_kind_share_a_write_and_keep_their_order() -> None:
    first, second, third = Persist(b"1"), Persist(b"2"), Persist(b"3")
    note, send = Note("a"), Send(ANN.peer, EntriesRequest(1))
    assert _in_runs([first, second, send, third, note]) == [
        [first, second],
        [send],
        [third],
        [note],
    ]


async def test_events_that_wait_are_taken_together_and_time_makes_a_tick() -> None:
    queue = EventQueue(lambda author: None)
    events = [Heard(ANN.peer, height) for height in range(100)]
    for event in events:
        queue.offer(event)
    assert await due_events(queue, None) == events[:64]
    assert await due_events(queue, 0.0) == events[64:]
    assert await due_events(queue, trio.current_time()) == [Tick()]


async def test_a_lone_founder_decides_and_all_of_it_is_on_disk(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        context = r.context
        nursery.start_soon(agree, context)
        await context.ledger.submit(Joining(ANN.peer))
        await settled(lambda: context.ledger.snapshot.is_member(ANN.peer))
        await settled(lambda: bool(r.network.published))
        assert len(list(context.ledger.chain_log)) == len(r.said("decided")) == 1
        assert [topic for topic, _ in r.network.published] == [f"/p2ptrain/1/{r.run.id}/ledger"]
        nursery.cancel_scope.cancel()
    ledger, _, _ = open_ledger(r.context.home, r.run, r.context.identity, 0.0)
    assert ledger.state == r.context.ledger.snapshot


async def test_the_log_of_votes_is_shortened_while_the_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_task, "VOTE_RECORDS_MAX", 4)
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        context = r.context
        nursery.start_soon(agree, context)
        for number in range(12):
            peer = somebody(number).peer
            context.admission._listed |= {peer}
            await context.ledger.submit(Allowed(context.admission.members_allowed()))
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


async def test_a_log_that_cannot_be_shortened_now_grows_and_the_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: RecordLog, records: object) -> None:
        raise StoreError("too many open files", code="FD-LIMIT")

    async with rig(tmp_path) as r:
        context, binding = r.context, r.context.ledger.core.records()
        context.ledger.vote_records = ledger_task.VOTE_RECORDS_MAX + 1
        with monkeypatch.context() as patch:
            patch.setattr(RecordLog, "rewrite", refused)
            await ledger_task._compact(context)
        assert context.ledger.vote_records == ledger_task.VOTE_RECORDS_MAX + 1
        assert [said["code"] for said in r.said("not-shortened")] == ["FD-LIMIT"]
        await ledger_task._compact(context)
        assert context.ledger.vote_records == len(binding)


async def test_a_peer_that_asks_for_entries_gets_them(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(agree, r.context)
    await r.context.ledger.submit(Joining(ANN.peer))
    await settled(lambda: r.context.ledger.snapshot.height == 1)
    reply = await r.network.handlers[LEDGER_PROTOCOL](BOB.peer, encode(EntriesRequest(1)))
    assert reply == b""
    await settled(lambda: any(peer == BOB.peer for peer, _ in r.network.requested))
    page = decode(next(data for peer, data in r.network.requested if peer == BOB.peer))
    assert page.certified == tuple(r.context.ledger.core.chain)  # type: ignore[union-attr]


async def test_noise_costs_its_sender_an_answer_and_nothing_else(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(agree, r.context)
    await settled(lambda: LEDGER_PROTOCOL in r.network.handlers)
    for noise in (b"", b"noise", b"\x80", b"{" * 100):
        with pytest.raises(RemoteProtocolError):
            await r.network.handlers[LEDGER_PROTOCOL](ANN.peer, noise)
    await r.context.ledger.submit(Joining(ANN.peer))
    await settled(lambda: r.context.ledger.snapshot.height == 1)


async def test_under_a_flood_peers_are_dropped_and_our_own_words_wait(
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
    context.ledger.core.view.down.add(ANN.peer)
    nursery.start_soon(context.ledger.submit, Ready(context.me, 0, 16, 1))
    nursery.start_soon(context.ledger.submit, PeerUp(ANN.peer))
    await trio.testing.wait_all_tasks_blocked()
    assert queue.blocked == 2
    nursery.start_soon(agree, context)
    await settled(lambda: context.me in context.ledger.core.view.ready, deadline_s=20.0)
    await settled(lambda: ANN.peer not in context.ledger.core.view.down, deadline_s=20.0)


async def test_who_floods_the_ledger_keeps_nobody_else_from_being_heard(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for _ in range(2 * EVENTS_MAX):
            r.context.ledger.offer(Received(CAI.peer, Refused(1, 0, 0, "no")))
        vote = Received(BOB.peer, Prepare(1, 1))
        r.context.ledger.offer(vote)
        assert vote in r.heard()
        (said,) = r.said("flood")
        assert said["peer"] == CAI.peer


async def test_what_the_ledger_has_taken_counts_no_more_against_its_author(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(agree, r.context)
    for _ in range(EVENTS_MAX // 256):
        for _ in range(256):
            r.context.ledger.offer(Heard(BOB.peer, 0))
        await settled(lambda: not r.context.ledger.queue.waiting)
    assert "flood" not in r.context.alerts


@pytest.mark.parametrize("question", [EntriesRequest(1), Prepare(1, 0)])
async def test_who_asks_for_page_after_page_gets_so_many_only(
    tmp_path: Path, question: EntriesRequest | Prepare
) -> None:
    async with rig(tmp_path) as r:
        r.decide(opening(r.context.ledger.snapshot, learners=[ANN.peer]))
        listener = ledger_task._listener(r.context)
        for _ in range(PAGES_BURST):
            await listener(CAI.peer, encode(question))
            await gossip._take_entry(r.context, CAI.peer, encode(question))
        assert PAGES_BURST <= len(r.heard()) < 1.5 * PAGES_BURST
        await listener(BOB.peer, encode(question))
        await listener(CAI.peer, encode(Prepare(2, 0)))
        assert r.heard() == [Received(BOB.peer, question), Received(CAI.peer, Prepare(2, 0))]
        assert [said["peer"] for said in r.said("asks-too-often")] == [CAI.peer]


async def test_who_makes_the_ledger_note_much_fills_no_journal(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(agree, r.context)
    for _ in range(5):
        for _ in range(NOTES_BURST):
            r.context.ledger.offer(Received(CAI.peer, Refused(1, 0, 0, "no")))
        await settled(lambda: not r.context.ledger.queue.waiting)
    r.context.ledger.offer(Received(BOB.peer, Refused(1, 0, 0, "no")))
    await settled(lambda: any(BOB.peer in str(note["text"]) for note in r.said("note")))
    assert NOTES_BURST < len(r.said("note")) < 2 * NOTES_BURST
    assert [said["peer"] for said in r.said("notes-kept-back")] == [CAI.peer]


async def test_a_vote_that_cannot_be_kept_is_never_sent(tmp_path: Path) -> None:
    class Full(RecordLog):
        def append(self, records: object, *, durable: bool = True) -> None:
            raise StoreFull("the disk was full")

    async with rig(tmp_path, rules=policy()) as r:
        r.context.ledger.votes = Full(r.context.home.votes)
        await r.context.ledger.submit(Joining(ANN.peer))
        with pytest.raises(BaseExceptionGroup) as caught:
            await agree(r.context)
        assert caught.group_contains(StoreFull)
        assert r.network.requested == []
        assert r.network.published == []


async def test_a_ledger_that_is_over_ends_the_task_with_the_chain_to_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_task, "LAST_WORDS_S", 0.0)
    async with rig(tmp_path) as r:
        state = r.context.ledger.snapshot
        rejoin = Rejoin(0, (signed(r.run.id, state, opening(state), ANN),))
        monkeypatch.setattr(r.context.ledger.core, "handle", lambda *_: [Note("outranked"), rejoin])
        with trio.fail_after(30):
            assert await agree(r.context) == rejoin
        (said,) = r.said("rejoining")
        assert (said["parted_at"], said["height"]) == (0, 1)
        assert r.said("note") != []
