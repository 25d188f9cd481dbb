"""`p2ptrain run amend`: what it signs, what it refuses, and why."""

from __future__ import annotations

import json
import socket
from functools import partial
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.commands import run_amend
from p2ptrain.cli.commands.run_amend import RunProgress, course_of
from p2ptrain.cli.control_client import send_command
from p2ptrain.errors import RemoteProtocolError, TryLater
from p2ptrain.identity import load_or_create
from p2ptrain.run import (
    Amendment,
    Run,
    SignedAmendment,
    load_amendments,
    load_run,
)
from p2ptrain.run.files import AMENDMENTS_MAX, save_amendments
from p2ptrain.sync import SyncSpec
from p2ptrain.testing.published import policy, publish
from tests.cli.conftest import Command, fake_node
from tests.cli.histories import make_history

STEPS = ("--from-step", 3)


def says(step: int, *agreed: str) -> bytes:
    """Return a node's answer: the run is in outer step `step`, and has agreed on `agreed`."""
    return json.dumps({"newer": False, "step": step, "agreed": agreed}).encode() + b"\n"


def kept(home: Path) -> list[Amendment]:
    where = Home(home)
    run = load_run(where.manifest)
    assert run is not None
    return [each.amendment for each in load_amendments(where.amendments, run)]


def test_amendment_is_numbered_signed_kept_and_shown(
    p2ptrain: Command, organiser_home: Path
) -> None:
    home = ("--home", organiser_home)
    outcome = p2ptrain("run", "amend", "tiny", *STEPS, "--lr", 0.01, *home, "--json")
    assert (outcome.code, outcome.json["number"], outcome.json["lr"]) == (0, 1, 0.01)
    assert "no node is running in this home" in outcome.err
    assert p2ptrain("run", "amend", "tiny", "--from-step", 5, "--codec", "fp16", *home).code == 0
    assert [(each.number, each.step, each.changes) for each in kept(organiser_home)] == [
        (1, 3, {"lr": 0.01}),
        (2, 5, {"codec": "fp16"}),
    ]
    shown = p2ptrain("run", "show", *home).out
    assert "amended   2: codec fp16 from outer step 5 on" in shown
    facts = p2ptrain("run", "show", *home, "--json").json
    assert facts["amendments"][0] == {"number": 1, "from_step": 3, "lr": 0.01}


def test_new_codec_has_its_default_block_unless_the_run_set_one(
    p2ptrain: Command, organiser_home: Path
) -> None:
    block: tuple[object, ...] = ("--codec-block", 128)
    words = (("int4", ()), ("int8", ()), ("int8", block), ("int4", ()))
    for step, (codec, more) in enumerate(words, 2):
        changes = ("--from-step", step, "--codec", codec, *more, "--home", organiser_home)
        assert p2ptrain("run", "amend", "tiny", *changes).code == 0
    assert [each.changes for each in kept(organiser_home)] == [
        {"codec": "int4", "codec_block": 64},
        {"codec": "int8", "codec_block": 256},
        {"codec": "int8", "codec_block": 128},
        {"codec": "int4"},
    ]


def test_running_node_is_asked_for_its_progress_and_notified(
    p2ptrain: Command, organiser_home: Path
) -> None:
    reply = says(1)
    with fake_node(organiser_home, reply, reply) as requests:
        outcome = p2ptrain("run", "amend", "tiny", *STEPS, "--lr", 0.01, "--home", organiser_home)
    assert outcome.code == 0
    assert [each["command"] for each in requests] == ["reload-amendments"] * 2
    (organiser_home / "control.sock").unlink()
    with fake_node(organiser_home, says(4)):
        late = p2ptrain(
            "run", "amend", "tiny", "--from-step", 5, "--lr", 0.02, "--home", organiser_home
        )
    assert late.err.startswith("error[AMEND-LATE]")
    assert "--from-step 6, or a later step" in late.err
    assert len(kept(organiser_home)) == 1


def test_rate_change_must_start_one_step_later_if_trainers_train_ahead(
    p2ptrain: Command, tmp_path: Path
) -> None:
    home = Home(tmp_path / "ahead")
    publish(home, steps=99, sync=SyncSpec(overlap_steps=2))
    words = ("run", "amend", "swarm", "--home", home.root, "--from-step")
    assert p2ptrain(*words, 2, "--codec", "fp16").code == 0
    early = p2ptrain(*words, 2, "--lr", 0.05)
    assert early.err.startswith("error[AMEND-LATE]")
    assert "--from-step 3, or a later step" in early.err
    assert p2ptrain(*words, 3, "--lr", 0.05).code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*STEPS,), "AMEND-VALUE"),
        ((*STEPS, "--lr", "0"), "AMEND-VALUE"),
        ((*STEPS, "--lr", "nan"), "AMEND-VALUE"),
        ((*STEPS, "--codec", "int3"), "AMEND-VALUE"),
        ((*STEPS, "--inner-steps", "1000000"), "AMEND-VALUE"),
        ((*STEPS, "--outer-momentum", "1"), "AMEND-VALUE"),
        (("--from-step", "1000000", "--lr", "0.1"), "AMEND-VALUE"),
        (("--from-step", "1", "--lr", "0.1"), "AMEND-LATE"),
        (("--from-step", "-4", "--lr", "0.1"), "AMEND-VALUE"),
    ],
    ids=str,
)
def test_invalid_amendment_is_refused_and_not_signed(
    words: tuple[str, ...], code: str, p2ptrain: Command, organiser_home: Path
) -> None:
    outcome = p2ptrain("run", "amend", "tiny", *words, "--home", organiser_home)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error[{code}]")
    assert kept(organiser_home) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lr", "101"), "its lr is 101.0; it should be above 0 and at most 100\n"),
        (("--codec", "int3"), "its codec is int3; it should be one of fp32, fp16, int8, int4\n"),
        (
            ("--outer-momentum", "1"),
            "its outer_momentum is 1.0; it should be at least 0 and below 1\n",
        ),
        (("--codec-block", "31"), "its codec_block is 31; it should be 32 to 4096\n"),
        # The number depends on this Python's standard library, which is the run's data.
        (("--inner-steps", "9999"), "inner_steps is 9999; it should be at most 1"),
        (("--inner-steps", "9999"), "inner steps, 1 fragment, overlap 0, learning rate "),
        ((), "the amendment changes nothing\n  do      give a new value, such as --lr 0.001"),
    ],
    ids=str,
)
def test_refusal_says_which_values_would_be_valid(
    words: tuple[str, ...], said: str, p2ptrain: Command, organiser_home: Path
) -> None:
    outcome = p2ptrain("run", "amend", "tiny", *STEPS, *words, "--home", organiser_home)
    assert said in outcome.err


@pytest.mark.parametrize(
    ("change", "meant", "words"),
    [
        (("--lr", "0.5"), 0.02, "the inner learning rate would change from 0.003 to 0.5"),
        (("--outer-lr", "0.01"), 0.5, "the outer learning rate would change from 0.7 to 0.01"),
    ],
    ids=["up", "down"],
)
def test_large_change_of_a_rate_needs_confirmation(
    change: tuple[str, str], meant: float, words: str, p2ptrain: Command, organiser_home: Path
) -> None:
    home, (option, far) = ("--home", organiser_home), change
    slip = p2ptrain("run", "amend", "tiny", *STEPS, *change, *home)
    assert slip.err.startswith(f"error[AMEND-FAR] {words}")
    assert kept(organiser_home) == []
    assert p2ptrain("run", "amend", "tiny", *STEPS, option, meant, *home).code == 0
    said = ("--from-step", 4, option, far, "--far")
    assert p2ptrain("run", "amend", "tiny", *said, *home).code == 0
    assert [list(each.changes.values()) for each in kept(organiser_home)] == [[meant], [float(far)]]


def test_amendment_without_effect_or_out_of_order_is_refused(
    p2ptrain: Command, organiser_home: Path
) -> None:
    home = ("--home", organiser_home)
    assert p2ptrain("run", "amend", "tiny", "--from-step", 4, "--lr", 0.01, *home).code == 0
    again = p2ptrain("run", "amend", "tiny", "--from-step", 5, "--lr", 0.01, *home)
    assert "it changes nothing" in again.err
    before = p2ptrain("run", "amend", "tiny", "--from-step", 4, "--lr", 0.02, *home)
    assert before.err.startswith("error[AMEND-ORDER]")
    assert len(kept(organiser_home)) == 1


@pytest.fixture
def ten_steps_on(tmp_path: Path) -> Home:
    """Return the home of a run that is in outer step 10. The home also holds an amendment for step
    4 that the members did not agree on in time."""
    home = Home(tmp_path / "ten")
    run = publish(home, rules=policy(participants_min=1), steps=999)
    make_history(home, run, 10)
    late = Amendment(run.id, 1, 4, outer_lr=0.07)
    save_amendments(
        home.amendments, [SignedAmendment.publish(load_or_create(home.identity), late, run)]
    )
    return home


def test_amendment_that_was_not_agreed_in_time_can_be_repeated(
    p2ptrain: Command, ten_steps_on: Home
) -> None:
    words = ("run", "amend", "swarm", "--home", ten_steps_on.root)
    assert p2ptrain(*words, "--from-step", 12, "--outer-lr", 0.07).code == 0
    assert [(each.number, each.step) for each in kept(ten_steps_on.root)] == [(1, 4), (2, 12)]
    again = p2ptrain(*words, "--from-step", 13, "--outer-lr", 0.07)
    assert "it changes nothing" in again.err, "members can still agree on the second amendment"


def test_size_of_a_change_is_relative_to_the_rate_in_force(
    p2ptrain: Command, ten_steps_on: Home
) -> None:
    leap = ("--from-step", 12, "--outer-lr", 0.05, "--home", ten_steps_on.root)
    assert "from 0.7 to" in p2ptrain("run", "amend", "swarm", *leap).err


def test_agreed_amendment_counts_after_its_step_has_begun(
    p2ptrain: Command, ten_steps_on: Home
) -> None:
    words = ("run", "amend", "swarm", "--from-step", 12, "--home", ten_steps_on.root)
    where, run = ten_steps_on, load_run(ten_steps_on.manifest)
    assert run is not None
    [held] = load_amendments(where.amendments, run)
    with fake_node(where.root, says(10, held.digest)):
        assert "it changes nothing" in p2ptrain(*words, "--outer-lr", 0.07).err
    where.control.unlink()
    with fake_node(where.root, says(10, "ab" * 32)):
        lacking = p2ptrain(*words, "--outer-lr", 0.5)
    assert (lacking.code, lacking.err.split()[0]) == (75, "error[AMEND-MISSING]")
    assert len(kept(where.root)) == 1


def test_step_with_one_digit_too_many_needs_confirmation(
    p2ptrain: Command, ten_steps_on: Home
) -> None:
    words = ("run", "amend", "swarm", "--codec", "fp16", "--home", ten_steps_on.root)
    slip = p2ptrain(*words, "--from-step", 120)
    assert slip.err.startswith(
        "error[AMEND-FAR] outer step 120 is 110 outer steps ahead: outer step 10 is"
    )
    assert len(kept(ten_steps_on.root)) == 1
    assert p2ptrain(*words, "--from-step", 120, "--far").code == 0


def test_error_for_an_amendment_after_the_end_names_the_last_step(
    p2ptrain: Command, organiser_home: Path
) -> None:
    words = ("run", "amend", "tiny", "--from-step", 6, "--lr", 0.01, "--home", organiser_home)
    outcome = p2ptrain(*words)
    assert "ends before outer step 6\n  seen    its last outer step is 5" in outcome.err
    assert kept(organiser_home) == []


def test_number_of_signed_amendments_is_bounded(p2ptrain: Command, organiser_home: Path) -> None:
    home = ("--home", organiser_home)
    assert p2ptrain("run", "amend", "tiny", "--from-step", 4, "--lr", 0.01, *home).code == 0
    where = Home(organiser_home)
    run = load_run(where.manifest)
    assert run is not None
    save_amendments(where.amendments, AMENDMENTS_MAX * load_amendments(where.amendments, run))
    again = p2ptrain("run", "amend", "tiny", "--from-step", 5, "--lr", 0.02, *home)
    assert again.err.startswith("error[AMEND-VALUE]")
    assert f"the run already has {AMENDMENTS_MAX} amendments" in again.err
    assert len(kept(organiser_home)) == AMENDMENTS_MAX


def test_only_the_organiser_can_amend_and_only_its_own_run(
    p2ptrain: Command, organiser_home: Path
) -> None:
    home = ("--home", organiser_home)
    assert p2ptrain("run", "amend", "other", *STEPS, "--lr", 0.01, *home).code == 3
    (organiser_home / "identity.key").unlink()
    load_or_create(organiser_home / "identity.key")
    outcome = p2ptrain("run", "amend", "tiny", *STEPS, "--lr", 0.01, *home)
    assert (outcome.code, kept(organiser_home)) == (6, [])
    assert outcome.err.startswith("error[AUTH-ORGANISER]")


@pytest.fixture
def organised(organiser_home: Path) -> tuple[Home, Run]:
    where = Home(organiser_home)
    run = load_run(where.manifest)
    assert run is not None
    return where, run


def test_current_step_comes_from_the_homes_ledger_if_no_node_runs(
    organised: tuple[Home, Run],
) -> None:
    assert course_of(*organised) == RunProgress(0, ())


def test_no_amendment_is_signed_if_the_node_is_silent(
    p2ptrain: Command,
    organised: tuple[Home, Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, _ = organised
    monkeypatch.setattr(run_amend, "send_command", partial(send_command, deadline_s=0.05))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(where.control))
        silent.listen()
        with pytest.raises(TryLater) as caught:
            course_of(*organised)
        outcome = p2ptrain("run", "amend", "tiny", *STEPS, "--lr", 0.01, "--home", where.root)
    assert caught.value.code == "NODE-SILENT"
    assert (outcome.code, outcome.err.split()[0]) == (75, "error[NODE-SILENT]")
    assert kept(where.root) == []


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"{}",
        b"[]",
        b'{"step":"2","agreed":[]}',
        b'{"step":2}',
        b'{"step":true,"agreed":[]}',
        b'{"step":2,"agreed":[4]}',
        b'{"error":"the disk is full"}',
    ],
    ids=str,
)
def test_reply_without_the_current_step_is_an_error(
    reply: bytes, organised: tuple[Home, Run]
) -> None:
    where, _ = organised
    with fake_node(where.root, reply + b"\n"), pytest.raises(RemoteProtocolError):
        course_of(*organised)
