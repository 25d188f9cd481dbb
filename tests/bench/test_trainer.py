"""Reports on a trainer's speed and on a machine's GPU. These tests do not time anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from p2ptrain.bench import trainer
from p2ptrain.bench.processes import ProcessFailed
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.formats.shapes import parameter_count
from scripts.research import gpu_check

ROOT = Path(__file__).parents[2]


def test_benchmark_reports_our_rate_and_its_ratio_to_other_contenders() -> None:
    asked: list[object] = []

    def run(config: TrainerConfig, names: list[str], *how: object) -> dict[str, object]:
        asked.append((config.precision, names, *how))
        return {
            "fsdp2": {"tokens_per_s": 90.0, "parameters": 4_300_000},
            "plain": {"tokens_per_s": 100.0},
            "plain_bf16": {"tokens_per_s": 90.0},
        }

    chosen = trainer.setting(2, 128, 32, 4, "bf16", "cpu")
    lines = list(trainer.measure(chosen, 3, 5, transformers=False, run=run))
    assert asked == [("bf16", ["fsdp2", "plain", "plain_bf16"], 3, 5, sys.executable)]
    assert [str(line) for line in lines] == [
        "FSDP2 with one rank, 4.3 M parameters, bf16: 90 tokens/s",
        "FSDP2 with one rank, 4.3 M parameters, bf16: 0.9 × the tokens/s of "
        "a plain loop without FSDP2",
        "FSDP2 with one rank, 4.3 M parameters, bf16: 1 × the tokens/s of "
        "a plain loop with bf16 parameters, as under FSDP2, instead of autocast",
    ]


def test_only_bf16_has_two_plain_loops_to_compare_with() -> None:
    in_bf16, in_fp32 = (trainer.setting(1, 64, 16, 2, each, "cpu") for each in ("bf16", "fp32"))
    both = ["plain", "plain_bf16", "transformers", "transformers_bf16"]
    assert trainer.others(in_bf16, transformers=True) == both
    assert trainer.others(in_fp32, transformers=True) == ["plain", "transformers"]


def test_all_installed_contenders_really_train() -> None:
    config = trainer.setting(1, 64, 16, 2, "bf16", "cpu", vocab=300)
    contenders = ["fsdp2", *trainer.others(config, transformers=False)]
    speeds = trainer.run(config, contenders, 1, 1, sys.executable)
    assert {name: each["parameters"] for name, each in speeds.items()} == dict.fromkeys(
        contenders, parameter_count(config.model)
    )
    assert all(each["tokens_per_s"] > 0 for each in speeds.values())
    assert all(5.0 < each["loss"] < 6.5 for each in speeds.values())
    # The two contenders do the same arithmetic, to the last bit: the only difference is FSDP2.
    assert speeds["plain_bf16"]["loss"] == speeds["fsdp2"]["loss"]


def test_error_of_a_failing_contender_is_reported() -> None:
    with pytest.raises(ProcessFailed, match="KeyError: 'nobody'"):
        trainer.run(trainer.setting(1, 64, 16, 2, "bf16", "cpu"), ["nobody"], 1, 1, sys.executable)


def test_models_of_the_gpu_check_have_about_their_nominal_sizes() -> None:
    sizes = {name: parameter_count(config.model) for name, config in gpu_check.models().items()}
    assert 1.4e8 < sizes["150M"] < 2.2e8
    assert 0.95e9 < sizes["1B"] < 1.15e9


def test_failing_part_is_reported_and_the_other_parts_still_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(limit_s: float) -> dict[str, object]:
        raise ProcessFailed("no such kernel image")

    report = gpu_check.check("A GPU", {"one": fails, "two": lambda limit_s: {"ok": True}})
    assert (report["gpu"], report["ok"]) == ("A GPU", False)
    assert report["parts"] == {
        "one": {"ok": False, "reason": "no such kernel image", "seconds": 0.0},
        "two": {"ok": True, "seconds": 0.0},
    }
    one, two = map(json.loads, capsys.readouterr().err.splitlines())
    assert one | two == report["parts"], "each part is printed when it is done"


def test_part_without_time_left_is_not_started() -> None:
    report = gpu_check.check("A GPU", gpu_check.parts(), limit_s=gpu_check.LEAVE_S)
    assert {each["reason"] for each in report["parts"].values()} == {
        "the time limit was reached before this part"
    }


def test_part_that_exceeds_its_time_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text(
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with pytest.raises(ProcessFailed) as caught:
        gpu_check.command(10.0, "sleeps", PYTHONPATH=path)
    begun, *_, why = str(caught.value).splitlines()
    assert why == "not done after 10 s"
    told = {each.pid: each.info["status"] for each in psutil.process_iter(["status"])}
    assert told.get(int(begun), psutil.STATUS_ZOMBIE) == psutil.STATUS_ZOMBIE


def test_measured_batch_is_halved_until_it_fits_on_the_gpu() -> None:
    tried: list[int] = []

    def run(config: TrainerConfig, *how: object, limit_s: float) -> dict[str, dict[str, object]]:
        tried.append(config.micro_batch)
        if len(tried) < 3:
            raise ProcessFailed(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
            )
        return {"fsdp2": {"mfu": 0.5}}

    found = gpu_check.speed(gpu_check.models()["1B"], 9.0, run)
    assert (tried, found) == ([0, 8, 4], {"mfu": 0.5, "micro_batch": 4})


def test_contenders_report_why_they_failed_and_use_equal_batches() -> None:
    asked: list[tuple[str | int, ...]] = []

    def run(
        config: TrainerConfig, names: list[str], *how: object, limit_s: float
    ) -> dict[str, object]:
        asked.append((*names, config.micro_batch))
        if config.micro_batch == 0 or names == ["plain"]:
            raise ProcessFailed("CUDA out of memory")
        return {names[0]: {"tokens_per_s": 9.0}}

    found = gpu_check.beside(gpu_check.models()["1B"], 9.0, run, transformers=False)
    assert asked == [("fsdp2", 0), ("fsdp2", 8), ("plain", 8), ("plain_bf16", 8)]
    assert found == {
        "fsdp2": {"tokens_per_s": 9.0, "micro_batch": 8},
        "plain": {"reason": "CUDA out of memory"},
        "plain_bf16": {"tokens_per_s": 9.0},
    }


def test_missed_target_is_reported_but_is_not_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = {"fsdp2": 97.0, "plain": 80.0, "plain_bf16": 100.0, "transformers": 98.0}
    beside = {name: {"tokens_per_s": rate} for name, rate in rates.items()}
    beside["transformers_bf16"] = {"reason": "CUDA out of memory"}  # type: ignore[dict-item]
    todo: dict[str, dict[str, Any]] = {"speed-1B": {"mfu": 0.39}, "beside-1B": beside}

    def measured(told: dict[str, Any]) -> Callable[[float], dict[str, Any]]:
        return lambda limit_s: told

    report = gpu_check.check("A GPU", {part: measured(told) for part, told in todo.items()})
    missed = [each for each in report["targets"] if each["met"] is False]
    assert missed == [
        {"what": "MFU of 1B", "asked": 0.40, "found": 0.39, "met": False},
        {
            "what": "tokens/s of 1B ÷ those of transformers",
            "asked": 1.0,
            "found": 97.0 / 98.0,
            "met": False,
        },
    ]
    assert [each["what"] for each in report["targets"] if each["met"]] == [
        "tokens/s of 1B ÷ those of plain"
    ]
    unknown = [each for each in report["targets"] if each["met"] is None]
    assert [each["found"] for each in unknown] == [None, None], "150M was not measured"
    assert json.loads(capsys.readouterr().err.splitlines()[-1]) == {"missed": missed}
    assert report["ok"]


def test_tests_that_start_training_processes_are_listed_in_the_gpu_check() -> None:
    there = {
        path.stem.removeprefix("test_")
        for path in (ROOT / "tests" / "trainer").glob("test_*.py")
        if re.search(r"\b(driver|make_driver|ranks: Ranks)\b", path.read_text())
    }
    assert there == {*gpu_check.ON_GPU, *gpu_check.MEASURED_BY_A_CPU}


def test_check_without_a_gpu_says_so_and_exits_with_0() -> None:
    program = [sys.executable, "-m", "scripts.research.gpu_check"]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PATH": ""}
    done = subprocess.run(program, cwd=ROOT, env=hidden, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told == {
        "gpu": None,
        "ok": True,
        "reason": "this machine has no GPU; nothing was checked",
    }


def test_gpu_that_torch_cannot_use_is_a_failure_with_torchs_reason() -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PATH": ""}
    told = subprocess.run(
        [sys.executable, "-c", gpu_check.ASK],
        env=hidden,
        capture_output=True,
        text=True,
        check=True,
    )
    name, why = json.loads(told.stdout)
    assert name == ""
    report = gpu_check.without_gpu(why, shown=True)
    assert (report["ok"], report["torch"]) == (False, why)
    assert why.startswith(f"torch {torch.__version__}: ")


def test_demo_on_a_gpu_differs_only_in_its_outer_steps() -> None:
    shipped = (ROOT / "configs" / "demo.toml").read_text()
    before, after = tomllib.loads(shipped), tomllib.loads(gpu_check.longer(shipped))
    before["outer"]["steps"] = gpu_check.OUTER_STEPS
    assert after == before


def test_demo_reports_the_claims_that_it_missed_and_names_the_gpu() -> None:
    facts = {"outer_steps": 48, "val_loss_first": 7.0, "val_loss_last": 5.0, "run_s": 60.0}

    def demo(limit_s: float, *words: str) -> dict[str, object]:
        told = facts | {"ok": False, "devices": {"ann": "H200", "ben": "H200", "cat": "cpu"}}
        told["claims"] = {"it went well": False, "it came to an end": True}
        Path(words[-1]).write_text(json.dumps(told))
        raise ProcessFailed("one claim did not hold")

    found = gpu_check.swarm(60.0, demo)
    assert (found["ok"], found["sharing"], found["missed"]) == (False, 2, ["it went well"])
