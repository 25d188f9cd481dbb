"""`p2ptrain simulate` counts runs, reports failed seeds, and says how to replay a failed seed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from p2ptrain.simulation import campaign
from tests.cli.conftest import Command
from tests.simulation.defects.mutants import MUTANTS


def test_successful_runs_are_counted(p2ptrain: Command) -> None:
    outcome = p2ptrain("simulate", "--seeds", "3", "--steps", "4", "--profile", "lossy", "--json")
    assert outcome.code == 0
    facts = json.loads(outcome.out.splitlines()[-1])
    counted = {name: facts[name] for name in ("seeds", "outer_steps", "violations", "stuck")}
    assert counted == {"seeds": 3, "outer_steps": 12, "violations": 0, "stuck": 0}
    assert facts["outer_steps_per_s"] > 0


def test_several_cores_give_the_same_results_as_one(p2ptrain: Command) -> None:
    options = ("simulate", "--seeds", "24", "--steps", "2", "--profile", "torn", "--json")
    one, two = (json.loads(p2ptrain(*options, "--processes", n).out) for n in ("1", "2"))
    for facts in (one, two):
        del facts["elapsed_s"], facts["cpu_s"], facts["outer_steps_per_s"]
    assert one == two


def test_processes_of_a_campaign_end_without_a_traceback() -> None:
    words = ("simulate", "--profile", "calm", "--peers", "3", "--seeds", "60", "--steps", "2")
    command = [sys.executable, "-m", "p2ptrain.cli", *words, "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    # A slow machine also prints how many seeds are done.
    assert re.fullmatch(r"(\d+ of 60 seeds, 0 failed\n)*", done.stderr)


def test_failing_seed_is_reported_with_its_replay_command_and_transcript(p2ptrain: Command) -> None:
    mutant = next(it for it in MUTANTS if it.name == "commit-without-bytes")
    with mutant.planted():
        outcome = p2ptrain(
            "simulate", "--seeds", "2", "--first-seed", "5", "--steps", "6", "--profile", "crashes"
        )
    assert outcome.code == 1
    assert "2 violations, 0 stuck" in outcome.out
    assert "seed 5 failed: CommitsAreHeld" in outcome.err
    assert (
        "replay: p2ptrain simulate --seeds 1 --first-seed 5 "
        "--peers 5 --steps 6 --profile crashes" in outcome.err
    )
    assert "=> CommitsAreHeld" in outcome.err


def test_unknown_profile_is_refused(p2ptrain: Command) -> None:
    outcome = p2ptrain("simulate", "--profile", "heaven")
    assert outcome.code == 2
    assert "chaos" in outcome.err


CALM = tuple("simulate --first-seed 7 --steps 1 --peers 3 --profile calm --json".split())


def counts(line: str) -> dict[str, object]:
    facts = json.loads(line)
    return {name: facts[name] for name in ("seeds", "first_seed", "outer_steps", "violations")}


def test_interrupted_campaign_resumes_where_it_stopped(p2ptrain: Command, tmp_path: Path) -> None:
    file = tmp_path / "calm.jsonl"
    whole = p2ptrain(*CALM, "--seeds", "45", "--results", str(file)).out
    plan, first, second, third, end = file.read_text().splitlines()
    assert [json.loads(it)["batch"]["seeds"] for it in (first, second, third)] == [20, 20, 5]
    assert counts(whole) == counts(end)

    file.write_text("\n".join([plan, first.replace('"outer_steps": 20', '"outer_steps": 1000')]))
    file.write_text(file.read_text() + "\n" + second[:30])
    again = p2ptrain(*CALM, "--seeds", "45", "--results", str(file)).out
    assert counts(again) == {**counts(whole), "outer_steps": 1025}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [it["batch"]["first_seed"] for it in lines[1:4]] == [7, 27, 47]


HEARS_CTRL_C = """
import signal, sys
from p2ptrain.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
"""A program that runs `p2ptrain` and handles SIGINT. If these tests run in the background, SIGINT
is ignored otherwise."""


def test_ctrl_c_leaves_no_process_and_reports_the_progress(tmp_path: Path) -> None:
    file = tmp_path / "calm.jsonl"
    words = [sys.executable, "-c", HEARS_CTRL_C, *CALM, "--seeds", "1000000"]
    words += ["--processes", "2", "--results", str(file)]
    campaign = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        ends_s = time.monotonic() + 200
        while not file.exists() or len(file.read_text().splitlines()) < 2:
            assert time.monotonic() < ends_s, "no batch was finished"
            with pytest.raises(subprocess.TimeoutExpired):
                campaign.wait(0.05)
        children = psutil.Process(campaign.pid).children(recursive=True)
        # As a terminal does, signal every process of the group.
        os.killpg(campaign.pid, signal.SIGINT)
        out, err = campaign.communicate(timeout=200)
    finally:
        campaign.kill()
    assert len(children) >= 2
    assert psutil.wait_procs(children, timeout=100)[1] == []
    assert (campaign.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert err.splitlines()[-1].endswith(" of 1000000 seeds, 0 failed")
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(kept) >= 2
    assert {len(it) for it in kept[1:]} == {1}, "every stored batch is complete"


def test_results_of_a_different_campaign_are_not_resumed(p2ptrain: Command, tmp_path: Path) -> None:
    file = tmp_path / "calm.jsonl"
    p2ptrain(*CALM, "--seeds", "1", "--results", str(file))
    outcome = p2ptrain(*CALM, "--seeds", "1", "--steps", "2", "--results", str(file))
    assert outcome.code == 2
    assert "a different campaign" in outcome.err
    file.write_text("no results\n")
    assert p2ptrain(*CALM, "--results", str(file)).code == 2


def test_stored_failures_are_reported_again_without_rerunning(
    p2ptrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[range] = []

    def run_batch(plan: campaign.CampaignPlan, seeds: range) -> campaign.CampaignSums:
        ran.append(seeds)
        return run_for_real(plan, seeds)

    run_for_real = campaign.run_batch
    monkeypatch.setattr(campaign, "run_batch", run_batch)
    options = ("--profile", "crashes", "--steps", "6", "--results", str(tmp_path / "crashes.jsonl"))
    mutant = next(it for it in MUTANTS if it.name == "commit-without-bytes")
    with mutant.planted():
        first = p2ptrain("simulate", "--seeds", "2", "--first-seed", "5", *options)
        again = p2ptrain("simulate", "--seeds", "2", "--first-seed", "5", *options)
    assert (first.code, again.code) == (1, 1)
    assert "seed 5 failed: CommitsAreHeld" in first.err
    assert first.err == again.err
    assert ran == [range(5, 7)]
