"""Every frame survives encoding, and an invalid frame cannot be constructed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from p2ptrain.ids import Digest
from p2ptrain.ipc import frames
from p2ptrain.ipc.wire import FrameReader, encode

DIGEST = Digest("ab" * 32)

ONE_OF_EACH = (
    frames.Load(7),
    frames.Train(7, ("/store/ab/cd", "/store/ef/gh"), 70),
    frames.Train(7, ("/store/ab/cd",), 72, ahead=True),
    frames.Train(7, (), 72, False, 0.25, 0.7, 0.9),
    frames.Rates(0.001),
    frames.Rates(0.001, 1200, 800, 3, 2),
    frames.Merge(8),
    frames.Rebase(8),
    frames.Evaluate(3, ("/store/x",)),
    frames.Generate(3, ((1, 2), (3,)), 64, 3.0),
    frames.Stop(),
    frames.Hello(0, 2, DIGEST, 869_504, "cpu", 4),
    frames.Resumed(7, 6),
    frames.Resumed(0, None, "the disk is full"),
    frames.Progress(7, 71, 6.25, 9000.5, 2048),
    frames.Progress(7, 71, 6.25, 9000.5, 2048, 0.25, 0.41, 0.001, 1.5),
    frames.FragmentReady(7, 10_240, ("/store/ab/cd", "/store/ef/gh"), 6.0),
    frames.Evaluated(3, 5.5, 1024),
    frames.Generated(3, ((4,), ())),
    frames.Failed("NAN", "the loss is nan at inner step 71"),
    frames.Failed("DATA", "a block is refused", 3),
)


@pytest.mark.parametrize("frame", ONE_OF_EACH, ids=lambda frame: frame.kind)
def test_frame_survives_encoding(frame: frames.Frame) -> None:
    assert FrameReader().feed(encode(frame)) == [frame]


def test_table_of_kinds_contains_every_frame() -> None:
    assert set(frames.KINDS.values()) == {type(frame) for frame in ONE_OF_EACH}
    assert all(frame.kind == kind for kind, frame in frames.KINDS.items())


@pytest.mark.parametrize(
    ("frame", "fields"),
    [
        (frames.Load, {"step": -1}),
        (frames.Load, {"step": True}),
        (frames.Load, {"step": 2**60}),
        (frames.Load, {"step": "7"}),
        (frames.Train, {"step": 0, "block_paths": ["a"], "first_inner_step": 0}),
        (frames.Train, {"step": 0, "block_paths": (), "first_inner_step": 0, "ahead": 1}),
        *(
            (frames.Train, {"step": 0, "block_paths": (), "first_inner_step": 0, **wrong})
            for wrong in (
                {"share": -0.5},
                {"share": 1.5},
                {"share": math.nan},
                {"outer_lr": -1.0},
                {"outer_lr": math.inf},
                {"outer_momentum": 1.0},
            )
        ),
        (frames.Rates, {"lr": 0.0}),
        (frames.Rates, {"lr": math.nan}),
        (frames.Rates, {"lr": 0.1, "since": -1}),
        (frames.Rates, {"lr": 0.1, "reached": -1}),
        (frames.Rates, {"lr": 0.1, "inner_steps": 0}),
        (frames.Rates, {"lr": 0.1, "schedule_steps": 0}),
        (frames.Merge, {"step": -1}),
        (frames.Train, {"step": 0, "block_paths": (1,), "first_inner_step": 0}),
        (frames.Train, {"step": 0, "block_paths": ("a",) * 16_385, "first_inner_step": 0}),
        (frames.Evaluate, {"request": 0, "block_paths": ("x" * 5000,)}),
        (frames.Hello, {"rank": 2, "ranks": 2, "layout_digest": DIGEST, "parameters": 1}),
        (frames.Hello, {"rank": 0, "ranks": 1, "layout_digest": "ab", "parameters": 1}),
        (
            frames.Hello,
            {"rank": 0, "ranks": 1, "layout_digest": DIGEST, "parameters": 1, "micro_batch": 0},
        ),
        *(
            (
                frames.Progress,
                {
                    "step": 0,
                    "inner_step": 0,
                    "loss": 1.0,
                    "tokens_per_s": 1.0,
                    "tokens": 1,
                    **wrong,
                },
            )
            for wrong in (
                {"mfu": math.nan},
                {"data_wait_s": math.inf},
                {"learning_rate": math.nan},
                {"gradient_norm": math.inf},
            )
        ),
        (frames.FragmentReady, {"step": 0, "tokens": 1, "block_paths": ("a",), "loss": math.nan}),
        (frames.FragmentReady, {"step": 0, "tokens": 1, "block_paths": 1, "loss": 1.0}),
        (frames.Evaluated, {"request": 0, "loss": math.inf, "tokens": 1}),
        (frames.Evaluated, {"request": 0, "loss": "low", "tokens": 1}),
        (frames.Failed, {"code": "X" * 33, "text": ""}),
    ],
)
def test_invalid_frame_cannot_be_constructed(
    frame: type[frames.Frame], fields: dict[str, Any]
) -> None:
    if frame is frames.Hello:
        fields = {"device": "cpu", "micro_batch": 1} | fields
    with pytest.raises(ValueError):
        frame(**fields)
