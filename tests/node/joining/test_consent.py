"""Before a node takes part in a run, its user sees what the run needs, and is asked for consent."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from p2ptrain.archive.home import Home
from p2ptrain.archive.update_format import published_formats
from p2ptrain.config.node import NodeConfig
from p2ptrain.data.blocks import encode_block
from p2ptrain.encoding import pack
from p2ptrain.errors import ConfigError
from p2ptrain.identity import load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.node.joining import consent
from p2ptrain.observe.states import size
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.run import Amendment, Run, SignedAmendment
from p2ptrain.testing.published import publish
from p2ptrain.trainer.formats.shapes import layout_of
from tests.node.rig import ANN, BOB, PaperNetwork


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return publish(Home(tmp_path / "organiser"))


@contextmanager
def terminal(typed: str, *, beforehand: str = "") -> Iterator[tuple[TextIO, Callable[[], object]]]:
    """Open a terminal. Yield it, and a function that types `typed` as a user would; call it when
    the question is shown. `beforehand` is typed before that."""
    user, ours = pty.openpty()
    os.write(user, beforehand.encode())
    with open(ours) as answers, open(user, "rb"):
        yield answers, partial(os.write, user, typed.encode())


def test_screen_says_whose_optimizer_states_joiners_fetch(run: Run, tmp_path: Path) -> None:
    state = size(8 * layout_of(run.manifest.model).numel)
    told = {
        "fresh": [],
        "donor": ["the inner optimizer of a member"],
        "donors": ["the inner optimizers of 3 members"],
    }
    for option, asked in told.items():
        each = publish(Home(tmp_path / option), join_optimizer=option)
        lines = consent.screen(each, NodeConfig(tmp_path), BOB.peer)
        assert [line for line in lines if line.startswith("joiners ")] == [
            f"joiners   fetch {what}; each such member uploads and stores {state}" for what in asked
        ]


def test_screen_of_a_seed_shows_its_memory_without_a_trainer(run: Run, tmp_path: Path) -> None:
    vectors = 8 * layout_of(run.manifest.model).numel
    update = published_formats(run.id, run.manifest)[0].payload_bytes
    lines = consent.screen(run, NodeConfig(tmp_path, seed=True), BOB.peer)
    (memory,) = (line for line in lines if line.startswith("memory"))
    needed = size(vectors + update)
    assert memory == f"memory    the node needs 150 MB, and {needed} for the model"


def test_screen_shows_traffic_of_a_step_and_of_days_of_fast_and_slow_steps(
    run: Run, tmp_path: Path
) -> None:
    """The screen once assumed ten minutes, and underestimated the traffic by a factor of 60."""
    update = published_formats(run.id, run.manifest)[0].payload_bytes
    model, inner = run.manifest.model, run.manifest.inner
    rows = np.zeros((inner.batch_sequences, model.sequence + 1), dtype=np.int64)
    blocks = run.manifest.blocks_per_step * len(encode_block(rows, model.vocab))
    up, down = 2 * update, 2 * update + blocks
    lines = "\n".join(consent.screen(run, NodeConfig(tmp_path), BOB.peer))
    seed = "\n".join(consent.screen(run, NodeConfig(tmp_path, seed=True), BOB.peer))
    assert f"up to {size(up)} up and {size(down)} down; also uploads" in lines
    assert f"downloads {size(update)} of updates, and all data once" in seed
    for words, day in (("10 s", 8640), ("60 s", 1440), ("10 min", 144)):
        assert f"{words:>6} is {size(up * day)} up and {size(down * day)} down" in lines
        assert f"{words:>6} is {size(update * day)} down" in seed


def test_screen_shows_values_as_amended(run: Run, tmp_path: Path) -> None:
    organiser = load_or_create(Home(tmp_path / "organiser").identity)
    amendments = [
        SignedAmendment.publish(organiser, Amendment(run.id, number, step, **changes), run)
        for number, step, changes in ((1, 2, {"lr": 0.05}), (2, 3, {"inner_steps": 6}))
    ]
    lines = list(consent.screen(run, NodeConfig(tmp_path), BOB.peer, amendments[::-1]))
    [inner] = [line for line in lines if line.startswith("inner ")]
    assert inner.startswith("inner     6 steps of 2 sequences, learning rate 0.05")
    assert "amended   the values above include amendment 1, 2 of the organiser" in lines
    assert run.manifest.inner.steps == 2


async def test_amendments_are_asked_of_connected_peers(run: Run, tmp_path: Path) -> None:
    organiser = load_or_create(Home(tmp_path / "organiser").identity)
    wanted = Amendment(run.id, 1, 2, lr=0.05)
    signed = SignedAmendment.publish(organiser, wanted, run)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        listed = pack([signed.to_bytes()]) if peer == BOB.peer else b"noise"
        return encode_reply(HelloReply(b"", b"", listed, False, {}))

    network = PaperNetwork(peers={ANN.peer, BOB.peer}, answer=answer)
    found = await consent.announced_amendments(network, run, tmp_path / "none")  # type: ignore[arg-type]
    assert found == (signed,)


@pytest.mark.parametrize("typed", ["y\n", "Yes\n"])
async def test_user_who_agrees_is_not_asked_again(run: Run, tmp_path: Path, typed: str) -> None:
    shown, agreed = io.StringIO(), tmp_path / "agreed"
    config = NodeConfig(tmp_path)
    with terminal(typed) as (answers, types):
        asked = partial(consent.ask_consent, run, config, BOB.peer, agreed, asking=types)
        await asked(answers=answers, shown=shown)
    await consent.ask_consent(
        run, config, BOB.peer, agreed, answers=io.StringIO(), shown=io.StringIO()
    )
    said = shown.getvalue()
    for words in (
        f"run       {run.manifest.name} ({run.id})",
        f"signed by {label(run.manifest.organiser)}",
        "memory    ",
        "disk      2 snapshots of",
        f"you are   {label(BOB.peer)}",
        "never runs code that the run or other peers send",
        "your IP address is visible to other peers",
    ):
        assert words in said
    assert said.endswith("Do you want to take part? [y/N] ")


@pytest.mark.parametrize("typed", ["\n", "n\n", "what?\n"])
async def test_any_answer_other_than_yes_declines(run: Run, tmp_path: Path, typed: str) -> None:
    config, agreed = NodeConfig(tmp_path), tmp_path / "agreed"
    asked = partial(consent.ask_consent, run, config, BOB.peer, agreed, shown=io.StringIO())
    with (
        terminal(typed, beforehand="y\n") as (answers, types),
        pytest.raises(ConfigError, match="did not agree") as caught,
    ):
        await asked(answers=answers, asking=types)
    assert (caught.value.code, caught.value.exit_code) == ("CONSENT", 2)
    assert not agreed.exists()


async def test_node_without_a_terminal_shows_the_screen_and_ends(run: Run, tmp_path: Path) -> None:
    shown = io.StringIO()
    with pytest.raises(ConfigError, match="there is no terminal on which to ask") as caught:
        config, agreed = NodeConfig(tmp_path), tmp_path / "agreed"
        answers = io.StringIO("y\n")
        await consent.ask_consent(run, config, BOB.peer, agreed, answers=answers, shown=shown)
    assert "--yes" in caught.value.do
    assert run.id in shown.getvalue()


@pytest.mark.parametrize("yes", [True, False])
async def test_organiser_and_users_who_agreed_beforehand_are_not_asked(
    run: Run, tmp_path: Path, yes: bool
) -> None:
    shown, agreed = io.StringIO(), tmp_path / "agreed"
    me = BOB.peer if yes else run.manifest.organiser
    config = NodeConfig(tmp_path, assume_yes=yes)
    await consent.ask_consent(run, config, me, agreed, answers=io.StringIO(), shown=shown)
    assert (shown.getvalue(), agreed.exists()) == ("", yes)


async def test_yes_is_remembered_except_for_an_observer(run: Run, tmp_path: Path) -> None:
    """A restart without --yes once asked again, and a service without a terminal ended."""
    config, agreed = NodeConfig(tmp_path), tmp_path / "agreed"
    ask = partial(consent.ask_consent, agreed=agreed, answers=io.StringIO(), shown=io.StringIO())
    observer = replace(config, assume_yes=True, observes=True, seed=True)
    await ask(run, observer, BOB.peer)
    assert not agreed.exists()
    await ask(run, replace(config, assume_yes=True), BOB.peer)
    await ask(run, config, BOB.peer)
    assert agreed.read_text() == run.id


async def test_consent_to_a_different_run_does_not_count(run: Run, tmp_path: Path) -> None:
    (tmp_path / "agreed").write_text("ab" * 32)
    with pytest.raises(ConfigError, match="there is no terminal on which to ask"):
        await consent.ask_consent(
            run,
            NodeConfig(tmp_path),
            BOB.peer,
            tmp_path / "agreed",
            answers=io.StringIO(),
            shown=io.StringIO(),
        )


def test_screen_of_a_seed_says_that_it_keeps_all_data(run: Run, tmp_path: Path) -> None:
    seed = "\n".join(consent.screen(run, NodeConfig(tmp_path, seed=True), BOB.peer))
    everything = NodeConfig(tmp_path, keep_snapshots=None)
    trainer = "\n".join(consent.screen(run, everything, BOB.peer))
    assert ("the trainer" in seed, "all data" in seed) == (False, True)
    assert ("the trainer" in trainer, "every snapshot" in trainer) == (True, True)
