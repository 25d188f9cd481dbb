"""A node's log has one line for each outer step. Routine states appear only with `--verbose`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.ipc.frames import Progress
from p2ptrain.ledger.chain.values import Commit, Participant, Skip
from p2ptrain.node.control.progress_lines import print_progress
from p2ptrain.observe.states import (
    CatchingUp,
    Exchanging,
    Isolated,
    Loading,
    StandingBy,
    State,
    Training,
)
from p2ptrain.store import digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, NewRig, Rig, opening

ALONE: dict[str, Any] = {"rules": policy(participants_min=1, attempts_max=1)}


async def follow(r: Rig, nursery: trio.Nursery) -> list[str]:
    """Start to print, and return the list that grows with each line."""
    lines = list[str]()
    nursery.start_soon(print_progress, r.context, lines.append)
    await trio.testing.wait_all_tasks_blocked()
    lines.clear()
    return lines


async def show(r: Rig) -> None:
    r.context.changes.notify_all()
    await trio.testing.wait_all_tasks_blocked()


def commit(r: Rig, *participants: Participant) -> None:
    state = r.context.ledger.snapshot
    r.decide(opening(state, *participants), Commit(state.step, 0, digest_of(b"update")))


async def test_each_outer_step_prints_its_loss_and_its_own_tokens(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    lines = await follow(r, nursery)
    state = r.context.ledger.snapshot
    r.decide(replace(opening(state), learners=(ANN.peer,)))
    roster = opening(
        r.context.ledger.snapshot,
        Participant(r.context.me, 32, 2),
        Participant(ANN.peer, 16, 1),
        learners=[ANN.peer],
    )
    r.decide(roster, Commit(0, 0, digest_of(b"update")))
    r.context.trainer.progress = Progress(0, 1, 2.384, 100.0, 32)
    r.context.outer.step = 1
    await show(r)
    assert lines[0] == "step 1/4  loss 2.38  2 peers  yours 32 of 48"


async def test_replayed_steps_show_their_own_tokens_and_no_loss(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    commit(r, Participant(r.context.me, 32, 2))
    commit(r, Participant(r.context.me, 16, 1))
    lines = await follow(r, nursery)
    for step in (1, 2):
        r.context.outer.step = step
        await show(r)
    assert lines == [
        "step 1/4  1 peer  yours 32 of 32  catching up, 1 update left",
        "step 2/4  1 peer  yours 16 of 16",
    ]


ROUTINE: list[State] = [
    Training(0, 2),
    StandingBy("for the others to finish their inner steps"),
    Exchanging(),
    StandingBy("for the members to commit the update"),
    Training(0, 2),
]


@pytest.mark.parametrize("verbose", [False, True])
async def test_routine_states_are_printed_with_verbose_only(
    verbose: bool, tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    r.configure(verbose=verbose)
    lines = await follow(r, nursery)
    r.context.trainer.up = True
    for state in [CatchingUp(3), Loading(), *ROUTINE, Isolated("alone"), *ROUTINE]:
        r.context.state.current = state
        await show(r)
    routine = [
        "standing by (for the others to finish their inner steps)",
        "exchanging",
        "standing by (for the members to commit the update)",
        "training (inner 0/2)",
    ] * verbose
    first = "training (inner 0/2)"
    begin = ["catching up (3 updates left)", "loading", first, *routine]
    assert lines == [*begin, "isolated: alone", first, *routine]


async def test_waiting_is_printed_while_no_trainer_runs(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    lines = await follow(r, nursery)
    for state in (Training(0, 2), StandingBy("for torchrun")):
        r.context.state.current = state
        await show(r)
    assert lines == ["training (inner 0/2)", "standing by (for torchrun)"]


async def test_skipped_step_is_called_skipped(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    lines = await follow(r, nursery)
    r.decide(opening(r.context.ledger.snapshot, Participant(r.context.me, 32, 2)), Skip(0))
    r.context.outer.step = 1
    await show(r)
    assert lines == ["step 1/4  skipped"]


async def test_end_of_the_run_is_summarised_with_thanks_and_the_next_command(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, steps=1, **ALONE)
    lines = await follow(r, nursery)
    commit(r, Participant(r.context.me, 32, 2))
    r.context.outer.step = 1
    for _ in range(2):
        await show(r)
    assert lines == [
        "step 1/1  1 peer  yours 32 of 32",
        "the run is complete: 1 outer step, 32 tokens by 1 peer",
        "thank you: 32 of these tokens are yours (100%)",
        f"write the weights to a directory: p2ptrain export --to hf DIR --home "
        f"{r.context.home.root}",
    ]
