"""The task that owns the ledger: effects in their order, and votes on disk before they are sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from p2ptrain.archive.ledger_on_disk import open_ledger
from p2ptrain.errors import RemoteProtocolError, StoreError, StoreFull
from p2ptrain.ledger.messages.effects import Note, Persist, Rejoin, Send
from p2ptrain.ledger.messages.events import PeerHeight, Received
from p2ptrain.ledger.messages.messages import EntriesRequest, Prepare, Refused
from p2ptrain.ledger.messages.peer_reports import AllowedPeers, Joining, PeerUp, Ready
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.node.assembly import EVENTS_MAX
from p2ptrain.node.consensus import ledger_task
from p2ptrain.node.consensus.ledger_task import _due, _in_runs, run_ledger
from p2ptrain.node.gossip import gossip
from p2ptrain.node.state.context import PAGES_BURST
from p2ptrain.peers.misbehaviour_log import NOTES_BURST
from p2ptrain.peers.protocol_names import LEDGER_PROTOCOL
from p2ptrain.store import RecordLog
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, opening, rig, settled, signed, somebody


def test_adjacent_effects_of_a_kind_share_a_write_in_order() -> None:
    first, second, third = Persist(b"1"), Persist(b"2"), Persist(b"3")
    note, send = Note("a"), Send(ANN.peer, EntriesRequest(1))
    assert _in_runs([first, second, send, third, note]) == [
        [first, second],
        [send],
        [third],
        [note],
    ]


async def test_waiting_events_are_taken_together_and_time_makes_a_tick() -> None:
    way_in, out = trio.open_memory_channel[object](200)
    for number in range(100):
        way_in.send_nowait(number)
    assert await _due(out, None) == list(range(64))  # type: ignore[arg-type]
    assert await _due(out, 0.0) == list(range(64, 100))  # type: ignore[arg-type]
    (tick,) = await _due(out, trio.current_time())  # type: ignore[arg-type]
    assert type(tick).__name__ == "Tick"


async def test_single_founder_decides_and_everything_is_on_disk(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        parts = r.parts
        nursery.start_soon(run_ledger, parts, r.events)
        await parts.send_event(Joining(ANN.peer))
        await settled(lambda: parts.ledger.state.is_member(ANN.peer))
        await settled(lambda: bool(r.network.published))
        assert len(list(parts.chain_log)) == len(r.said("decided")) == 1
        assert [topic for topic, _ in r.network.published] == [f"/p2ptrain/1/{r.run.id}/ledger"]
        nursery.cancel_scope.cancel()
    ledger, _, _ = open_ledger(r.parts.home, r.run, r.parts.identity, 0.0)
    assert ledger.state == r.parts.ledger.state


async def test_log_of_votes_is_shortened_while_the_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_task, "VOTE_RECORDS_MAX", 4)
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        parts = r.parts
        nursery.start_soon(run_ledger, parts, r.events)
        for number in range(12):
            peer = somebody(number).peer
            parts.admission._listed |= {peer}
            await parts.send_event(AllowedPeers(parts.admission.members_allowed()))
            await parts.send_event(Joining(peer))
            await settled(lambda peer=peer: parts.ledger.state.is_member(peer))  # type: ignore[misc]
        await settled(lambda: parts.vote_records <= 4 and len(list(parts.chain_log)) == 12)
        assert len(list(parts.votes)) == parts.vote_records
        nursery.cancel_scope.cancel()
    ledger, _, votes = open_ledger(r.parts.home, r.run, r.parts.identity, 0.0)
    assert ledger.state.height == 12
    assert list(votes) == ledger.records()


async def test_node_continues_if_its_log_cannot_be_shortened_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: RecordLog, records: object) -> None:
        raise StoreError("too many open files", code="FD-LIMIT")

    async with rig(tmp_path) as r:
        parts, binding = r.parts, r.parts.ledger.records()
        parts.vote_records = ledger_task.VOTE_RECORDS_MAX + 1
        with monkeypatch.context() as patch:
            patch.setattr(RecordLog, "rewrite", refused)
            await ledger_task._compact(parts)
        assert parts.vote_records == ledger_task.VOTE_RECORDS_MAX + 1
        assert [said["code"] for said in r.said("not-shortened")] == ["FD-LIMIT"]
        await ledger_task._compact(parts)
        assert parts.vote_records == len(binding)


async def test_peer_that_asks_for_entries_gets_them(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.parts, r.events)
    await r.parts.send_event(Joining(ANN.peer))
    await settled(lambda: r.parts.ledger.state.height == 1)
    reply = await r.network.handlers[LEDGER_PROTOCOL](BOB.peer, encode(EntriesRequest(1)))
    assert reply == b""
    await settled(lambda: any(peer == BOB.peer for peer, _ in r.network.requested))
    page = decode(next(data for peer, data in r.network.requested if peer == BOB.peer))
    assert page.certified == tuple(r.parts.ledger.chain)  # type: ignore[union-attr]


async def test_noise_costs_only_an_answer_to_its_sender(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.parts, r.events)
    await settled(lambda: LEDGER_PROTOCOL in r.network.handlers)
    for noise in (b"", b"noise", b"\x80", b"{" * 100):
        with pytest.raises(RemoteProtocolError):
            await r.network.handlers[LEDGER_PROTOCOL](ANN.peer, noise)
    await r.parts.send_event(Joining(ANN.peer))
    await settled(lambda: r.parts.ledger.state.height == 1)


async def test_under_a_flood_peers_messages_are_dropped_and_ours_wait(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    parts, queued = r.parts, r.parts.events.statistics
    request = Received(ANN.peer, EntriesRequest(1))
    for _ in range(2 * EVENTS_MAX):
        parts.send_event_nowait(request)
    assert "flood" in parts.standing.warnings
    assert queued().current_buffer_used < EVENTS_MAX
    for _ in range(EVENTS_MAX - queued().current_buffer_used):
        parts.events.send_nowait(request)
    parts.ledger.reports.down.add(ANN.peer)
    nursery.start_soon(parts.send_event, Ready(parts.me, 0, 16, 1))
    nursery.start_soon(parts.send_event, PeerUp(ANN.peer))
    await trio.testing.wait_all_tasks_blocked()
    assert queued().tasks_waiting_send == 2
    nursery.start_soon(run_ledger, parts, r.events)
    await settled(lambda: parts.me in parts.ledger.reports.ready, deadline_s=20.0)
    await settled(lambda: ANN.peer not in parts.ledger.reports.down, deadline_s=20.0)


async def test_flooding_peer_does_not_silence_others(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        for _ in range(2 * EVENTS_MAX):
            r.parts.send_event_nowait(Received(CAI.peer, Refused(1, 0, 0, "no")))
        vote = Received(BOB.peer, Prepare(1, 1))
        r.parts.send_event_nowait(vote)
        assert vote in r.heard()
        (said,) = r.said("flood")
        assert said["peer"] == CAI.peer


async def test_processed_messages_no_longer_count_against_their_author(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.parts, r.events)
    for _ in range(EVENTS_MAX // 256):
        for _ in range(256):
            r.parts.send_event_nowait(PeerHeight(BOB.peer, 0))
        await settled(lambda: not r.parts.events.statistics().current_buffer_used)
    assert "flood" not in r.parts.standing.warnings


@pytest.mark.parametrize("question", [EntriesRequest(1), Prepare(1, 0)])
async def test_pages_for_one_peer_are_rate_limited(
    tmp_path: Path, question: EntriesRequest | Prepare
) -> None:
    async with rig(tmp_path) as r:
        r.decide(opening(r.parts.ledger.state, learners=[ANN.peer]))
        listener = ledger_task._listener(r.parts)
        for _ in range(PAGES_BURST):
            await listener(CAI.peer, encode(question))
            await gossip._take_entry(r.parts, CAI.peer, encode(question))
        assert PAGES_BURST <= len(r.heard()) < 1.5 * PAGES_BURST
        await listener(BOB.peer, encode(question))
        await listener(CAI.peer, encode(Prepare(2, 0)))
        assert r.heard() == [Received(BOB.peer, question), Received(CAI.peer, Prepare(2, 0))]
        assert [said["peer"] for said in r.said("asks-too-often")] == [CAI.peer]


async def test_notes_caused_by_one_peer_do_not_fill_the_journal(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    nursery.start_soon(run_ledger, r.parts, r.events)
    for _ in range(5):
        for _ in range(NOTES_BURST):
            r.parts.send_event_nowait(Received(CAI.peer, Refused(1, 0, 0, "no")))
        await settled(lambda: not r.parts.events.statistics().current_buffer_used)
    r.parts.send_event_nowait(Received(BOB.peer, Refused(1, 0, 0, "no")))
    await settled(lambda: any(BOB.peer in str(note["text"]) for note in r.said("note")))
    assert NOTES_BURST < len(r.said("note")) < 2 * NOTES_BURST
    assert [said["peer"] for said in r.said("notes-kept-back")] == [CAI.peer]


async def test_vote_that_cannot_be_written_is_never_sent(tmp_path: Path) -> None:
    class Full(RecordLog):
        def append(self, records: object, *, durable: bool = True) -> None:
            raise StoreFull("the disk was full")

    async with rig(tmp_path, rules=policy()) as r:
        r.parts.votes = Full(r.parts.home.votes)
        await r.parts.send_event(Joining(ANN.peer))
        with pytest.raises(BaseExceptionGroup) as caught:
            await run_ledger(r.parts, r.events)
        assert caught.group_contains(StoreFull)
        assert r.network.requested == []
        assert r.network.published == []


async def test_healed_ledger_ends_the_task_with_the_chain_to_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_task, "LAST_WORDS_S", 0.0)
    async with rig(tmp_path) as r:
        state = r.parts.ledger.state
        rejoin = Rejoin(0, (signed(r.run.id, state, opening(state), ANN),))
        monkeypatch.setattr(r.parts.ledger, "handle", lambda *_: [Note("outranked"), rejoin])
        with trio.fail_after(30):
            assert await run_ledger(r.parts, r.events) == rejoin
        (said,) = r.said("rejoining")
        assert (said["parted_at"], said["height"]) == (0, 1)
        assert r.said("note") != []
