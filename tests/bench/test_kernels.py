"""The kernel benchmark, with vectors small enough for a test."""

from __future__ import annotations

import json
from types import ModuleType

import numpy as np
import pytest

from p2ptrain import kernels
from p2ptrain.bench import peers
from p2ptrain.bench.accuracy import relative_errors
from p2ptrain.bench.kernels import BLOCKS, measure, moved_bytes
from p2ptrain.bench.timing import best_times
from p2ptrain.cli.main import main
from p2ptrain.errors import MachineUnfit

KERNELS = {
    *("quantise", "dequantise", "difference", "add", "add a vector", "sum up"),
    "add, with residuals",
    "outer step",
}


@pytest.mark.needs_torch
def test_command_reports_every_kernel_of_every_codec(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "kernels", "--elements", "100000", "--rounds", "1", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(line["value"] > 0 for line in lines if line["against"])
    best = kernels.VARIANTS[0]
    beside_memcpy = [line["measure"] for line in lines if line["unit"] == "× in elements"]
    codecs = {f"{name}, blocks of {BLOCKS[name]}, {best}" for name in kernels.CODECS}
    assert sorted(beside_memcpy) == sorted(f"{name}: {each}" for name in codecs for each in KERNELS)
    sizes = {line["measure"]: line["value"] for line in lines if "bytes per" in line["unit"]}
    int8 = f"int8, blocks of 256, {best}: encoded"
    assert sizes[int8] == pytest.approx(1 + 4 / 256, rel=1e-3)
    others = {line["against"] for line in lines if line["unit"] == "× as fast as"}
    assert {"torch"} <= others <= {"pypiquant", "torch"}


def test_report_is_also_available_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers.PEERS, "pypiquant", lambda src, load: None)
    words = ["--elements", "20000", "--rounds", "1", "--variant", kernels.VARIANTS[-1]]
    assert main(["bench", "kernels", *words, "--block", "128"]) == 0
    told = capsys.readouterr()
    assert f"kernels for {kernels.VARIANTS[-1]}; memcpy copies" in told.out
    assert "int4, blocks of 128," in told.out
    assert "-m pip install pypiquant" in told.err


def test_unsupported_kernel_variant_is_an_error() -> None:
    with pytest.raises(MachineUnfit):
        measure(1000, 1, "avx1024")


@pytest.mark.parametrize("name", peers.PEERS)
def test_contender_that_is_not_installed_is_left_out(name: str) -> None:
    def missing(module: str) -> ModuleType:
        raise ImportError(module)

    assert peers.PEERS[name](np.zeros(8, np.float32), missing) is None


def test_int8_error_is_a_hundredth_and_grows_with_heavy_tails() -> None:
    errors = {
        name: relative_errors(kernels.codec(name, 256), 2**17) for name in ("fp32", "fp16", "int8")
    }
    assert errors["fp32"]["gaussian"] < 1e-6
    assert errors["fp16"]["gaussian"] < 1e-3
    assert 0.008 < errors["int8"]["gaussian"] <= 0.012
    assert errors["int8"]["gaussian"] < errors["int8"]["student_t3"] <= 0.03


def test_contenders_take_turns_in_every_round() -> None:
    turns: list[str] = []
    times = best_times({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 3)
    assert turns == ["a", "b"] * 3
    assert set(times) == {"a", "b"}
    assert all(0 <= spent < 1 for spent in times.values())


def test_bytes_moved_match_a_count_by_hand() -> None:
    assert moved_bytes(1.0)["quantise"] == 5
    assert moved_bytes(1.0)["add"] == 10
    assert moved_bytes(1.0)["add a vector"] == 6
    assert moved_bytes(0.5)["outer step"] == 16.5
