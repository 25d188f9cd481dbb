"""Now and then, one member lets its trainer continue the run's prompts, and all members keep the
texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import RunId
from p2ptrain.ipc import frames
from p2ptrain.ipc.frames import Generate
from p2ptrain.ledger.chain.values import Commit, Participant
from p2ptrain.node.control.series.recording import record_series
from p2ptrain.node.training.sampling import chosen, take_sample
from p2ptrain.node.training.trainer_task import train
from p2ptrain.observe.series import SampleRow, SeriesReader, SeriesUnavailable
from p2ptrain.peers.outside.sample_book import SAMPLES_MAX, SampleBook
from p2ptrain.peers.outside.sample_text import TOKENS_MAX, SampleText, read_sample, shown
from p2ptrain.peers.protocol_names import samples_topic
from p2ptrain.run.outside_facts import SamplePrompts
from p2ptrain.store import digest_of
from p2ptrain.testing.fake_trainer import FakeTrainers, TrainerRemote, token_of
from p2ptrain.testing.published import WORDS, policy
from tests.node.rig import ANN, BOB, Rig, opening, rig, settled
from tests.node.training.test_training import know_data

PROMPTS = SamplePrompts(("once upon", "a time"), 1)


@asynccontextmanager
async def node(
    folder: Path,
    remote: TrainerRemote | None = None,
    tokenizer: bytes | None = None,
    samples: SamplePrompts = PROMPTS,
) -> AsyncIterator[Rig]:
    """Open a founder, with a trainer if there is a remote control for it."""
    alone = policy(participants_min=1)
    async with (
        rig(folder, rules=alone, steps=90, samples=samples) as r,
        trio.open_nursery() as nursery,
    ):
        know_data(r)
        if tokenizer is not None:
            digest = r.context.store.put_blob("tokenizer", [tokenizer], {})
            manifest = replace(r.context.manifest, tokenizer=digest)
            r.surround(run=replace(r.run, manifest=manifest))
        r.context.outer.step = 0
        if remote is not None:
            nursery.start_soon(partial(train, r.context, FakeTrainers(r.context, remote)))
        yield r
        nursery.cancel_scope.cancel()


def close(r: Rig) -> None:
    """Let the ledger commit the work of this node alone, so that it is its turn to sample."""
    state, work = r.context.ledger.snapshot, r.context.trainer.work
    assert work is not None
    blocks = len(work.blocks)
    r.decide(opening(state, Participant(r.context.me, 16 * blocks, blocks)))
    r.decide(Commit(state.step, 0, digest_of(b"%d" % state.step)))
    r.context.outer.step = state.step + 1
    r.context.changes.notify_all()


def asked(remote: TrainerRemote) -> list[Generate]:
    return [frame for frame in remote.obeyed if isinstance(frame, Generate)]


def published(r: Rig) -> list[tuple[Any, SampleText]]:
    topic = samples_topic(r.context.run)
    return [read_sample(payload) for to, payload in r.network.published if to == topic]


async def test_chosen_member_publishes_a_signed_text_for_each_prompt(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with node(tmp_path, remote) as r:
        await settled(lambda: r.context.trainer.work is not None)
        assert asked(remote) == [], "the first weights are not sampled"
        close(r)
        await settled(lambda: r.said("sampled"))
        assert [(each.request, each.prompts) for each in asked(remote)] == [(1, ((0, 1), (2, 3)))]
        assert r.context.trainer.arena is not None
        end = WORDS[token_of(r.context.trainer.arena.theta, len(WORDS))]
        texts = [" ".join((*[last] * (TOKENS_MAX - 1), end)) for last in ("upon", "time")]
        expected = [
            SampleText(r.context.run, 1, number, shown(text)) for number, text in enumerate(texts)
        ]
        told = published(r)
        assert [signer for signer, _ in told] == [r.context.me] * 2
        assert [sample.text.split() for _, sample in told] == [
            each.text.split() for each in expected
        ]
        kept = r.context.trainer.samples.after(0)
        assert [read_sample(each)[1] for each in kept] == [sample for _, sample in told]
        assert not r.context.trainer.theta_in_use or r.context.trainer.work is None


async def test_tokenizer_that_does_not_fit_costs_only_the_sample(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with node(tmp_path, remote, tokenizer=b"{}") as r:
        await settled(lambda: r.context.trainer.work is not None)
        close(r)
        await settled(lambda: r.said("not-sampled"))
        await settled(lambda: r.context.trainer.work is not None)
        assert (asked(remote), published(r)) == ([], [])


async def test_member_does_nothing_when_it_is_not_its_turn(tmp_path: Path) -> None:
    remote = TrainerRemote()
    async with node(tmp_path, remote, samples=SamplePrompts(("once",), 2)) as r:
        await settled(lambda: r.context.trainer.work is not None)
        close(r)
        await settled(lambda: r.said("share-evaluated"))
        await trio.testing.wait_all_tasks_blocked()
        assert chosen(r.context, 1) is None
        assert asked(remote) == []


def learn(r: Rig, *peers: Identity) -> None:
    """Let these peers commit an outer step together with this node."""
    state = r.context.ledger.snapshot
    who = [Participant(each.peer, 16, 1) for each in peers]
    mine = Participant(r.context.me, 16, 1)
    others = tuple(each.peer for each in peers)
    if not all(state.is_member(each) for each in others):
        r.decide(replace(opening(state), learners=others))
    state = r.context.ledger.snapshot
    everybody = sorted([*who, mine], key=lambda each: each.peer)
    r.decide(opening(state, *everybody, learners=state.learners))
    r.decide(Commit(state.step, 0, digest_of(b"%d" % state.step)))
    r.context.changes.notify_all()


def sample_of(r: Rig, who: Identity, **changes: Any) -> bytes:
    usual = SampleText(r.context.run, max(1, r.context.ledger.snapshot.step), 0, "…")
    return replace(usual, **changes).to_bytes(who)


async def until(r: Rig, holds: Callable[[], bool], *peers: Identity) -> None:
    learn(r, *peers)
    while not holds():
        learn(r, *peers)


async def test_only_the_text_of_the_chosen_member_is_kept(tmp_path: Path) -> None:
    async with node(tmp_path) as r:
        learn(r, ANN, BOB)
        await until(
            r, lambda: chosen(r.context, r.context.ledger.snapshot.step) == ANN.peer, ANN, BOB
        )
        for liar, changes in (
            (BOB, {}),
            (ANN, {"prompt": 2}),
            (ANN, {"step": r.context.ledger.snapshot.step - 1}),
        ):
            known = chosen(r.context, r.context.ledger.snapshot.step - 1)
            if changes.get("step") and known == ANN.peer:
                continue
            with pytest.raises(RemoteProtocolError):
                await take_sample(r.context, liar.peer, sample_of(r, liar, **changes))
        with pytest.raises(RemoteProtocolError):
            await take_sample(r.context, BOB.peer, sample_of(r, ANN))
        await take_sample(r.context, ANN.peer, sample_of(r, ANN, run=RunId("a" * 64)))
        await take_sample(r.context, ANN.peer, sample_of(r, ANN, step=99))
        assert r.context.trainer.samples.after(0) == ()
        right = sample_of(r, ANN)
        await take_sample(r.context, ANN.peer, right)
        await take_sample(r.context, ANN.peer, sample_of(r, ANN, text="second thoughts"))
        assert r.context.trainer.samples.after(0) == (right,)


async def test_samples_are_recorded_in_the_series(tmp_path: Path) -> None:
    async with node(tmp_path) as r, trio.open_nursery() as nursery:
        nursery.start_soon(record_series, r.context)
        learn(r)
        text = SampleText(r.context.run, 1, 0, "a time")
        r.context.trainer.samples.note(ANN.peer, text, text.to_bytes(ANN))
        r.context.changes.notify_all()

        def recorded() -> list[SampleRow]:
            with suppress(SeriesUnavailable), SeriesReader(r.context.home.series) as reader:
                return list(reader.samples())
            return []

        await settled(recorded)
        assert recorded() == [SampleRow(1, 0, ANN.peer, "a time")]
        nursery.cancel_scope.cancel()


async def test_sample_may_arrive_before_the_outer_step_is_known(tmp_path: Path) -> None:
    async with node(tmp_path) as r, trio.open_nursery() as nursery:
        early = sample_of(r, r.context.identity, step=1)
        nursery.start_soon(take_sample, r.context, r.context.me, early)
        await trio.testing.wait_all_tasks_blocked()
        assert r.context.trainer.samples.after(0) == ()
        learn(r)
        await settled(lambda: r.context.trainer.samples.after(0) == (early,))


def test_book_keeps_the_newest_samples_in_order() -> None:
    book, run = SampleBook(), RunId("b" * 64)
    for step in (*range(SAMPLES_MAX, 0, -1), SAMPLES_MAX + 1):
        sample = SampleText(run, step, 0, "x")
        assert book.note(ANN.peer, sample, b"%d" % step)
        assert not book.note(BOB.peer, sample, b"other")
    assert list(book.kept) == [(step, 0) for step in range(2, SAMPLES_MAX + 2)]
    assert not book.note(ANN.peer, SampleText(run, 1, 0, "x"), b"too old")
    assert book.after(SAMPLES_MAX) == (b"%d" % (SAMPLES_MAX + 1),)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\nb", "a\nb"),
        ("<b>\x1b[2J\u202e\x00", "<b>�[2J��"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_samples_are_bounded_and_printable(text: str, seen: str) -> None:
    assert shown(text) == seen
    if text != seen:
        with pytest.raises(ValueError, match="unprintable"):
            SampleText(RunId("c" * 64), 1, 0, text)


def test_frames_are_checked_like_all_others() -> None:
    with pytest.raises(ValueError, match="prompts"):
        frames.Generate(1, ((),), 4, 1.0)
    with pytest.raises(ValueError, match="prompts"):
        frames.Generate(1, ((1,),) * 9, 4, 1.0)
    with pytest.raises(ValueError, match="token"):
        frames.Generate(1, ((-1,),), 4, 1.0)
    with pytest.raises(ValueError, match="limit_s"):
        frames.Generate(1, ((1,),), 4, float("nan"))
    with pytest.raises(ValueError, match="count"):
        frames.Generate(-1, ((1,),), 4, 1.0)
    with pytest.raises(ValueError, match="count"):
        frames.Generated(-1, ())
    with pytest.raises(ValueError, match="trouble"):
        frames.Generated(1, (), "x" * 5000)
