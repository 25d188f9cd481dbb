"""A joining peer adopts the state of a member's inner optimizer, if training can produce such a
state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import RunId
from p2ptrain.ipc.frames import Frame, Hello, Load, Progress, Resumed, Train
from p2ptrain.ipc.trainer_config import InnerSpec, TrainerConfig
from p2ptrain.node.optimizer_sharing.averaged_state import AveragedState
from p2ptrain.node.optimizer_sharing.optimizer_offer import put_newest
from p2ptrain.store import Store
from p2ptrain.trainer.formats.inner_bounds import check, is_muons, ratio_max
from p2ptrain.trainer.formats.inner_format import HEADER_BYTES, WARM, newest, path_of
from p2ptrain.trainer.formats.shapes import layout_of
from p2ptrain.trainer.host.supervisor import Supervisor
from tests.trainer.conftest import INNER, MODEL
from tests.trainer.inner_states import Floats, trained, write_state
from tests.trainer.receiving import receive

if TYPE_CHECKING:
    from tests.trainer.conftest import MakeDriver, Vectors

LAYOUT = layout_of(MODEL)
RUN = RunId("a" * 64)
ADAMW, MUON = INNER, replace(INNER, optimizer="muon")


def given(donor: Path, joiner: Path, inner: InnerSpec) -> int:
    """Copy the state in one folder to another, through a store. Return its outer step."""
    with Store(joiner.parent / "store", chunk_bytes=4096) as store:
        offer = put_newest(donor, store, RUN, LAYOUT)
        assert offer is not None
        with closing(AveragedState(joiner, store, LAYOUT, inner)) as donated:
            donated.add(offer)
            donated.publish()
    return offer.step


def losses(answers: list[Frame]) -> list[float]:
    return [answer.loss for answer in answers if isinstance(answer, Progress)]


@pytest.mark.parametrize("inner", [ADAMW, MUON], ids=lambda inner: inner.optimizer)
def test_joiner_continues_from_its_donors_state_on_one_or_two_ranks(
    inner: InnerSpec,
    make_driver: MakeDriver,
    config: TrainerConfig,
    vectors: Vectors,
    tmp_path: Path,
    block_paths: tuple[str, ...],
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    donor = make_driver(replace(config, inner=inner, state_folder=str(theirs)))
    donor.send(Load(0), Train(0, block_paths[:3], 0), Load(1))
    assert given(theirs, ours, inner) == 1
    state = path_of(theirs, 1).read_bytes()
    assert path_of(ours, 1).read_bytes()[HEADER_BYTES:] == state[HEADER_BYTES:]
    told = [newest(each, LAYOUT, 1) for each in (theirs, ours)]
    assert told[0] is not None
    assert told[1] == replace(told[0], warmed=WARM), (
        "a trainer with a state does not need to warm up"
    )

    settings = replace(config, inner=inner, state_folder=str(ours))
    answers = make_driver(settings).send(Load(1), Train(1, block_paths[3:6], 3))
    assert [each for each in answers if isinstance(each, Resumed)] == [Resumed(1, 1)]
    assert losses(answers) == losses(donor.send(Train(1, block_paths[3:6], 3)))

    # Two ranks in separate processes. They write the state that they have adopted.
    if inner is ADAMW:
        settings = replace(settings, device="cpu")
        trainer = Supervisor(settings, vectors.theta_fd, vectors.local_fd, ranks=2).start()
        try:
            for frame in (Load(1), Load(2)):
                trainer.send(frame)
            heard: list[Frame] = []
            while not any(isinstance(frame, Resumed) for frame in heard):
                heard += filter(None, [receive(trainer, timeout_s=0.5)])
            assert isinstance(heard[0], Hello)
            assert (heard[0].ranks, heard[1]) == (2, Resumed(1, 1))
        finally:
            trainer.stop(deadline_s=120.0)
        assert path_of(ours, 2).read_bytes()[HEADER_BYTES:] == state[HEADER_BYTES:]


@pytest.mark.parametrize("inner", [ADAMW, MUON], ids=lambda inner: inner.optimizer)
def test_trained_states_are_close_to_the_bounds_but_within_them(
    inner: InnerSpec, tmp_path: Path
) -> None:
    held = write_state(tmp_path, LAYOUT, 3, trained(LAYOUT, inner))
    with held.open("rb") as file:
        check(file.fileno(), LAYOUT, inner)
    first, second = trained(LAYOUT, ADAMW)
    nearest = np.abs(first[second > 0]) / np.sqrt(second[second > 0])
    assert 0.9 < nearest.max() / ratio_max(ADAMW) < 1.001


def test_gradient_whose_square_underflows_is_accepted(tmp_path: Path) -> None:
    first, second = np.zeros((2, LAYOUT.numel), np.float32)
    first[LAYOUT.entries[0].offset] = 1e-23
    with write_state(tmp_path, LAYOUT, 3, (first, second)).open("rb") as file:
        check(file.fileno(), LAYOUT, ADAMW)


Tamper = Callable[[Floats, Floats, int], object]


def put(which: int, value: float) -> Tamper:
    def tamper(first: Floats, second: Floats, at: int) -> None:
        (first, second)[which][at] = value

    return tamper


def grown(factor: float) -> Tamper:
    def tamper(first: Floats, second: Floats, at: int) -> None:
        first *= np.float32(factor)
        second *= np.float32(factor**2)

    return tamper


@pytest.mark.parametrize(
    ("inner", "tamper", "refusal"),
    [
        (ADAMW, put(0, np.nan), "number that is not finite"),
        (ADAMW, put(1, np.inf), "number that is not finite"),
        (ADAMW, put(1, -1e-9), "below zero"),
        (ADAMW, put(1, 0.0), "too large for its mean of squares"),
        (ADAMW, put(0, 0.9), "too large for its mean of squares"),
        (ADAMW, put(0, -0.9), "too large for its mean of squares"),
        (ADAMW, put(1, 1.2), "longer than 1"),
        (ADAMW, put(1, 1e38), "longer than 1"),
        (ADAMW, grown(100.0), "longer than 1"),
        (MUON, put(0, np.nan), "number that is not finite"),
        (MUON, put(0, 2.0), "longer than 1"),
        (MUON, put(1, 1e-30), "which Muon does not have"),
    ],
)
def test_state_that_training_cannot_produce_is_refused(
    inner: InnerSpec, tamper: Tamper, refusal: str, tmp_path: Path
) -> None:
    inside = next(e for e in LAYOUT.entries if e.name.startswith("blocks.") and len(e.shape) == 2)
    assert is_muons(inside, MUON)
    vectors = trained(LAYOUT, inner)
    tamper(*vectors, inside.end - 1)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_state(theirs, LAYOUT, 3, vectors)
    with pytest.raises(RemoteProtocolError, match=refusal):
        given(theirs, ours, inner)
    assert list(ours.iterdir()) == []


def test_gradient_of_any_length_is_accepted_without_clipping(tmp_path: Path) -> None:
    first, second = trained(LAYOUT, ADAMW)
    second[LAYOUT.entries[0].offset] = 2.0
    file = write_state(tmp_path, LAYOUT, 3, (first, second))
    with file.open("rb") as state:
        check(state.fileno(), LAYOUT, replace(ADAMW, clip=0.0))
        with pytest.raises(RemoteProtocolError, match="longer than 1"):
            check(state.fileno(), LAYOUT, ADAMW)


@pytest.mark.parametrize("which", [0, 1])
def test_nonzero_value_between_two_parameters_is_refused(which: int, tmp_path: Path) -> None:
    entries = LAYOUT.entries
    gaps = [a.end for a, b in pairwise(entries) if a.end < b.offset]
    for at in (gaps[0], gaps[-1]):
        vectors = trained(LAYOUT, ADAMW)
        vectors[which][at] = 1e-3
        with (
            pytest.raises(RemoteProtocolError, match="outside the parameters"),
            write_state(tmp_path, LAYOUT, 3, vectors).open("rb") as file,
        ):
            check(file.fileno(), LAYOUT, ADAMW)


def test_parameter_is_read_in_pieces(tmp_path: Path) -> None:
    vectors = trained(LAYOUT, ADAMW)
    with write_state(tmp_path, LAYOUT, 3, vectors).open("rb") as file:
        check(file.fileno(), LAYOUT, ADAMW, piece_elements=100)
    vectors[0][LAYOUT.entries[0].end - 1] = 0.9
    with (
        pytest.raises(RemoteProtocolError, match="too large for its mean of squares"),
        write_state(tmp_path, LAYOUT, 3, vectors).open("rb") as file,
    ):
        check(file.fileno(), LAYOUT, ADAMW, piece_elements=100)
