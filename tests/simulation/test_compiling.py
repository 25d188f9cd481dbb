"""The compiled copy is made from the current sources and must behave as they do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from p2ptrain.errors import MachineUnfit, P2PTrainError
from p2ptrain.simulation import compiling


def test_every_module_to_be_compiled_exists() -> None:
    root = compiling.PACKAGE.parent
    missing = [name for name in compiling._modules(root) if not (root / name).is_file()]
    assert missing == []


def test_copy_that_behaves_differently_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "COMPARED", {"calm": 1})
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(compiling.PACKAGE, tmp_path / "p2ptrain", ignore=ignored)
    monkeypatch.setattr(compiling, "_REPORTS", compiling._REPORTS.replace("assert", "_ ="))
    compiling._compare(tmp_path)
    world = tmp_path / "p2ptrain/simulation/world.py"
    world.write_text(world.read_text().replace("TRAIN_S = (0.8, 1.6)", "TRAIN_S = (0.8, 1.7)"))
    with pytest.raises(P2PTrainError, match="does not behave"):
        compiling._compare(tmp_path)


def test_failed_compilation_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MachineUnfit, match="the simulator cannot be compiled here") as caught:
        compiling._run(
            tmp_path,
            compiling._BUILD,
            ["no_such_module.py"],
            "the simulator cannot be compiled here",
        )
    assert any("no_such_module" in line for line in caught.value.evidence)


def test_copy_that_is_not_compiled_is_detected(tmp_path: Path) -> None:
    """Sources that came first in the path were once mistaken for it, and campaigns ran at half the
    speed.
    """
    shutil.copytree(
        compiling.PACKAGE,
        tmp_path / "p2ptrain",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    with pytest.raises(MachineUnfit, match="the compiled copy fails"):
        compiling._compare(tmp_path)
