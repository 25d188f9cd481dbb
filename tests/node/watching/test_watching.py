"""A stranger watches a run: it verifies everything, learns only what is public, and changes
nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.encoding import pack
from p2ptrain.errors import (
    NetworkUnreachable,
    NotAuthorised,
    PeerUnreachable,
    RemoteProtocolError,
    TryLater,
)
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.values import Commit, Participant, Skip
from p2ptrain.ledger.messages.messages import Entries, Pruned
from p2ptrain.ledger.messages.wire import encode
from p2ptrain.node.watching.follow import FAILED_ROUNDS_MAX, Ask, Follower
from p2ptrain.node.watching.watch_server import PEER_BURST, answer_watchers, record_of
from p2ptrain.peers.outside.sample_text import SampleText, sampler_of
from p2ptrain.peers.outside.watch_messages import (
    RECORDS_MAX,
    WatchReply,
    WatchRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from p2ptrain.peers.outside.watched_ledger import WatchedLedger
from p2ptrain.peers.protocol_names import WATCH_PROTOCOL
from p2ptrain.run.outside_facts import Public, SamplePrompts
from p2ptrain.testing.ledgers import digest, sealing
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, Rig, opening, rig, signed, somebody

STRANGER = somebody(7)
PUBLIC: dict[str, Any] = {
    "steps": 40,
    "rules": policy(participants_min=1),
    "public": Public(telemetry=True, names=True),
    "samples": SamplePrompts(("once", "upon"), 1),
}


def grow(r: Rig, steps: int, *, skipped: bool = False) -> None:
    """Let the node's ledger end outer steps, with entries that its only voter has signed."""
    for _ in range(steps):
        step = r.context.ledger.snapshot.step
        _append(r, opening(r.context.ledger.snapshot, Participant(r.context.me, 16, 1)))
        _append(r, Skip(step) if skipped else Commit(step, 0, digest(f"u{step}")))
    r.context.changes.notify_all()


def _append(r: Rig, value: Any) -> None:
    state = r.context.ledger.core.state
    r.append(signed(r.run.id, state, sealing(state, value), r.context.identity))


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """Open a node that answers observers."""
    async with rig(folder, **{**PUBLIC, **settings}) as r, trio.open_nursery() as nursery:
        nursery.start_soon(answer_watchers, r.context)
        await trio.testing.wait_all_tasks_blocked()
        yield r
        nursery.cancel_scope.cancel()


def asker(r: Rig, me: PeerId = STRANGER.peer) -> Ask:
    """Return a function with which the peer `me` asks the node. A refusal arrives as in `net`."""

    async def ask(peer: PeerId, payload: bytes) -> bytes:
        try:
            return await r.network.handlers[WATCH_PROTOCOL](me, payload)
        except NotAuthorised as exc:
            raise PeerUnreachable(exc.what, peer=peer, code="PEER-REFUSED") from exc

    return ask


def ledger_of(r: Rig) -> WatchedLedger:
    vouched = {*r.run.organisers, ANN.peer}
    rules, prompts = rules_of(r.run), len(r.context.manifest.samples.prompts)
    return WatchedLedger(r.run.id, rules, verify, vouched=vouched.__contains__, prompts=prompts)


def follower_of(r: Rig, ask: Ask | None = None, *sources: PeerId) -> Follower:
    ask = ask or asker(r)
    return Follower(r.run.id, ledger_of(r), sources or (r.context.me,), ask, Random(1))


async def test_stranger_sees_loss_tokens_and_peers_of_a_public_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        grow(r, 3)
        follower = follower_of(r)
        steps = await follower.round()
        assert [each.step for each in steps] == [1, 2]
        grow(r, 1, skipped=True)
        await trio.testing.wait_all_tasks_blocked()
        third, fourth = await follower.round()
        assert (third.tokens, third.tokens_total, third.skipped) == (16, 48, False)
        assert (fourth.tokens, fourth.tokens_total, fourth.skipped) == (0, 48, True)
        assert [each.peer for each in third.participants] == [r.context.me]
        assert fourth.head == r.context.ledger.snapshot.head
        ((signer, record),) = fourth.losses.items()
        assert signer == r.context.me
        assert record == record_of(r.context)


async def test_records_carry_losses_and_observers_take_the_median(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        grow(r, 1)
        ledger = ledger_of(r)
        (step,) = ledger.add(r.context.ledger.core.chain)
        record = record_of(r.context)
        assert record is not None
        told = [
            replace(record, loss=loss, held_out=2.0, held_out_step=held).to_bytes(who)
            for who, loss, held in (
                (r.context.identity, 2.5, 1),
                (ANN, 9.0, 0),
                (STRANGER, 0.1, 1),
            )
        ]
        (fault,) = ledger.note_records(told)
        assert fault.startswith(f"{STRANGER.peer} signed a record, but is not known")
        assert (step.loss, step.held_out) == (5.75, (1, 2.0))


@pytest.mark.parametrize(
    "lie",
    [
        {"tokens": 17},
        {"head": Digest("a" * 64)},
        {"height": 1},
        {"participants": 2},
        {"run": Digest("b" * 64)},
    ],
    ids=str,
)
async def test_record_that_contradicts_the_ledger_is_ignored(
    tmp_path: Path, lie: dict[str, Any]
) -> None:
    async with serving(tmp_path) as r:
        grow(r, 1)
        ledger = ledger_of(r)
        (step,) = ledger.add(r.context.ledger.core.chain)
        record = record_of(r.context)
        assert record is not None
        assert len(ledger.note_records([replace(record, **lie).to_bytes(r.context.identity)])) == 1
        assert ledger.note_records([b"noise"]) != []
        later = replace(record, step=9).to_bytes(r.context.identity)
        assert ledger.note_records([later]) == [], "the step is not known yet"
        assert step.losses == {}


async def test_run_that_is_not_public_refuses_strangers_but_not_readers(tmp_path: Path) -> None:
    async with serving(tmp_path, public=Public()) as r:
        grow(r, 2)
        with pytest.raises(NotAuthorised, match="does not let strangers watch"):
            await follower_of(r).round()
        assert len(await follower_of(r, asker(r, ANN.peer)).round()) == 1


async def test_names_are_told_only_if_the_run_allows_it(tmp_path: Path) -> None:
    for number, names in enumerate((True, False)):
        public = Public(telemetry=True, names=names)
        async with serving(tmp_path / str(number), public=public) as r:
            grow(r, 1)
            record = record_of(r.context)
            assert record is not None
            assert record.peers == ((r.context.me,) if names else ())


async def test_forged_entries_are_refused_and_another_node_is_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        grow(r, 2)
        honest, chain = asker(r), r.context.ledger.core.chain
        state = ledger_of(r).state
        forged = signed(r.run.id, state, chain[0].entry.value, STRANGER)

        async def ask(peer: PeerId, payload: bytes) -> bytes:
            if peer == BOB.peer:
                page = encode(Entries(9, (forged,)))
                return encode_reply(WatchReply(page, (b"junk",) * 3, (b"junk",)))
            return await honest(peer, payload)

        follower = follower_of(r, ask, BOB.peer, r.context.me)
        seen = [step for _ in range(4) for step in await follower.round()]
        assert [each.step for each in seen] == [1, 2]
        only = follower_of(r, ask, BOB.peer)
        for _ in range(FAILED_ROUNDS_MAX - 1):
            assert await only.round() == []
        with pytest.raises(NetworkUnreachable) as caught:
            await only.round()
        assert "not a voter" in caught.value.evidence[0]


async def test_node_that_lies_about_its_height_does_not_keep_the_observer(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        grow(r, 1)
        calls = list[int]()
        honest = asker(r)

        async def ask(peer: PeerId, payload: bytes) -> bytes:
            calls.append(decode_request(payload).from_height)
            reply = decode_reply(await honest(peer, payload))
            return encode_reply(replace(reply, page=encode(Entries(10**9, ()))))

        assert await follower_of(r, ask).round() == []
        assert calls == [1]


async def test_pruned_ledger_asks_for_a_checkpoint(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:

        async def ask(peer: PeerId, payload: bytes) -> bytes:
            pruned = Pruned(90, 40, Digest("a" * 64))
            return encode_reply(WatchReply(encode(pruned), (), ()))

        with pytest.raises(TryLater) as caught:
            await follower_of(r, ask).round()
        assert caught.value.do.startswith("give --trust-checkpoint")


async def test_questions_are_rate_limited_and_change_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        grow(r, 1)
        await trio.testing.wait_all_tasks_blocked()
        before = (r.heard(), r.diary.records[:], dict(r.network.addresses_by_peer))
        ask, question = asker(r), encode_request(WatchRequest(r.run.id, 1, 0, 0))
        for _ in range(PEER_BURST):
            assert decode_reply(await ask(r.context.me, question)).records
        with pytest.raises(TryLater):
            await ask(r.context.me, question)
        another = asker(r, somebody(8).peer)
        with pytest.raises(RemoteProtocolError):
            await another(r.context.me, pack({"run": "x"}))
        with pytest.raises(PeerUnreachable):
            await another(r.context.me, encode_request(WatchRequest(RunId("c" * 64), 1, 0, 0)))
        assert (r.heard(), r.diary.records, r.network.addresses_by_peer) == before
        assert len(r.context.peers.table) == 0
        assert r.network.published == []


async def test_only_the_newest_records_are_kept_and_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=RECORDS_MAX + 8) as r:
        for _ in range(RECORDS_MAX + 4):
            grow(r, 1)
            await trio.testing.wait_all_tasks_blocked()
        reply = await asker(r)(r.context.me, encode_request(WatchRequest(r.run.id, 1, 0, 0)))
        assert len(decode_reply(reply).records) == RECORDS_MAX


async def test_sample_counts_only_if_the_chosen_member_signed_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        grow(r, 1)
        ledger = ledger_of(r)
        (step,) = ledger.add(r.context.ledger.core.chain)
        assert sampler_of(r.run.id, 1, step.samplers) == r.context.me

        def sample(who: Identity, **changes: Any) -> bytes:
            return replace(SampleText(r.run.id, 1, 1, "a time\n…"), **changes).to_bytes(who)

        me = r.context.identity
        lies = [sample(ANN), sample(me, prompt=2), sample(me, run=Digest("d" * 64)), b"noise"]
        assert len(ledger.note_samples(lies)) == len(lies)
        assert ledger.note_samples([sample(me, step=7), sample(me), sample(me, text="x")]) == []
        assert step.samples == {1: (me.peer, "a time\n…")}


def test_sampler_rarely_changes_when_a_member_leaves() -> None:
    run, members = RunId("e" * 64), [somebody(number).peer for number in range(20, 28)]
    chosen = {step: sampler_of(run, step, members) for step in range(64)}
    assert len(set(chosen.values())) == len(members)
    for step, peer in chosen.items():
        left = [each for each in members if each != members[0]]
        assert peer == members[0] or sampler_of(run, step, left) == peer
    assert sampler_of(run, 1, ()) is None


async def test_run_end_is_noticed(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=2) as r:
        grow(r, 2)
        follower = follower_of(r)
        seen = [*await follower.round()]
        await trio.testing.wait_all_tasks_blocked()
        seen += await follower.round()
        assert [each.step for each in seen] == [1, 2]
        assert follower.ended
