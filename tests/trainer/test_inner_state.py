"""A restarted trainer continues as if it had never stopped, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from p2ptrain.ipc.frames import Frame, Load, Merge, Progress, Resumed, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.state.layout import Layout
from p2ptrain.trainer.formats import inner_format
from tests.process_limits import no_file_grows
from tests.rounding import of_additions

if TYPE_CHECKING:
    from tests.trainer.conftest import Driver, MakeDriver, Vectors


@pytest.fixture
def kept(config: TrainerConfig, tmp_path: Path) -> TrainerConfig:
    return replace(config, state_folder=str(tmp_path / "inner"))


def losses(answers: list[Frame]) -> list[float]:
    return [answer.loss for answer in answers if isinstance(answer, Progress)]


def resumed(answers: list[Frame]) -> list[Resumed]:
    return [answer for answer in answers if isinstance(answer, Resumed)]


def first_step_then_load(driver: Driver, paths: tuple[str, ...]) -> list[Frame]:
    return driver.send(Load(0), Train(0, paths[:3], 0), Load(1))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_losses_and_weights_after_a_restart_are_bit_identical(
    optimizer: Literal["adamw", "muon"],
    make_driver: MakeDriver,
    kept: TrainerConfig,
    vectors: Vectors,
    block_paths: tuple[str, ...],
) -> None:
    # Each inner step has a different learning rate, so a wrong position in the schedule would show.
    moving = replace(kept.inner, schedule="cosine", total_steps=9, optimizer=optimizer)
    kept = replace(kept, inner=moving)
    twin = make_driver(replace(kept, state_folder=""))
    first_step_then_load(twin, block_paths)
    uninterrupted = losses(twin.send(Train(1, block_paths[3:6], 3)))
    weights = vectors.local.tobytes()

    begun = make_driver(kept)
    assert resumed(first_step_then_load(begun, block_paths)) == [Resumed(0, None)]
    begun.send(Train(1, block_paths[3:5], 3))
    answers = make_driver(kept).send(Load(1), Train(1, block_paths[3:6], 3))
    assert resumed(answers) == [Resumed(1, 1)]
    assert losses(answers) == uninterrupted
    assert vectors.local.tobytes() == weights

    fresh = losses(
        make_driver(replace(kept, state_folder="")).send(Load(1), Train(1, block_paths[3:6], 3))
    )
    assert fresh != uninterrupted


def test_with_fragments_state_is_written_only_after_all_are_merged(
    make_driver: MakeDriver, kept: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    driver, folder = make_driver(replace(kept, fragments=3)), Path(kept.state_folder)
    driver.send(Load(0))
    written = []
    for step in range(6):
        driver.send(Train(step, block_paths[:1], step), Merge(step + 1))
        written.append([file.name for file in folder.glob("*")])
    assert written == [
        [],
        [],
        ["000000000003"],
        ["000000000003"],
        ["000000000003"],
        ["000000000006"],
    ]


def test_only_the_newest_state_is_kept_in_8_bytes_per_parameter(
    make_driver: MakeDriver, kept: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    driver = make_driver(kept)
    for step in range(3):
        driver.send(Load(step), Train(step, block_paths[:1], step))
    (only,) = Path(kept.state_folder).iterdir()
    assert only.name == "000000000002"
    assert only.stat().st_size == 4096 + 8 * vectors.layout.numel
    assert resumed(make_driver(kept).send(Load(9))) == [Resumed(9, 2)]
    assert resumed(make_driver(kept).send(Load(1))) == [Resumed(1, None)]


@pytest.mark.parametrize("damage", ["cut", "flipped", "no header", "another layout"])
def test_damaged_or_foreign_state_is_not_restored(
    damage: str, make_driver: MakeDriver, kept: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    first_step_then_load(make_driver(kept), block_paths)
    file = Path(kept.state_folder) / "000000000001"
    data = bytearray(file.read_bytes())
    match damage:
        case "cut":
            del data[-1000:]
        case "flipped":
            data[-1000] ^= 1
        case "no header":
            data[:4096] = bytes(4096)
        case "another layout":
            at = data.index(b"layout") + 10
            data[at] = ord("0") if data[at] != ord("0") else ord("1")
    file.write_bytes(data)
    assert resumed(make_driver(kept).send(Load(1))) == [Resumed(1, None)]


def test_state_that_cannot_be_written_does_not_end_the_trainer(
    make_driver: MakeDriver, kept: TrainerConfig, tmp_path: Path, block_paths: tuple[str, ...]
) -> None:
    (tmp_path / "inner").write_text("where the folder should be")
    answers = first_step_then_load(make_driver(kept), block_paths)
    trouble = "the inner optimizer's state cannot be written: File exists"
    assert resumed(answers) == [Resumed(0, None), Resumed(1, None, trouble)]


def test_state_that_does_not_fit_on_the_disk_is_removed(tmp_path: Path) -> None:
    with no_file_grows(), pytest.raises(OSError, match="too large"):
        inner_format.reserve(tmp_path / "inner" / "new", Layout.of([("a", (6,))]))
    assert list((tmp_path / "inner").iterdir()) == []


def test_restarted_joiner_continues_its_warm_up(
    make_driver: MakeDriver, kept: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    kept = replace(kept, inner=replace(kept.inner, join_warmup_steps=100))
    twin = make_driver(replace(kept, state_folder=""))
    twin.send(Load(3), Train(3, block_paths[:2], 60), Load(4), Train(4, block_paths[2:4], 62))
    uninterrupted = vectors.local.tobytes()
    make_driver(kept).send(Load(3), Train(3, block_paths[:2], 60), Load(4))
    answers = make_driver(kept).send(Load(4), Train(4, block_paths[2:4], 62))
    assert resumed(answers) == [Resumed(4, 4)]
    assert vectors.local.tobytes() == uninterrupted


def test_trainer_without_saved_state_warms_up_except_at_step_0(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    moved = []
    for step, warmup in ((0, 0), (0, 100), (3, 0), (3, 100)):
        slow = replace(config, inner=replace(config.inner, join_warmup_steps=warmup))
        make_driver(slow).send(Load(step), Train(step, block_paths[:1], 50))
        moved.append(float(np.abs(vectors.local - vectors.theta).max()))
    assert moved[0] == moved[1] == moved[2]
    # In a warm-up of 100 steps, the first step has a hundredth of the rate. The tolerance allows
    # for the rounding of two weights with magnitudes of at most 2.
    assert moved[3] == pytest.approx(moved[2] / 100, abs=of_additions(2, 2.0))
