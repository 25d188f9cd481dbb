"""Bytes from the socket are accepted only if they are exactly one of our frames."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc import frames
from p2ptrain.ipc.wire import FRAME_BYTES_MAX, FrameReader, encode

TALK = (frames.Load(1), frames.Train(1, ("a", "b"), 0), frames.Progress(1, 0, 2.5, 10.0, 64))


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_frames_do_not_depend_on_how_the_bytes_are_split(cuts: list[int]) -> None:
    stream = b"".join(encode(frame) for frame in TALK)
    borders = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader, arrived = FrameReader(), []
    for start, end in pairwise(borders):
        arrived += reader.feed(stream[start:end])
    reader.end()
    assert arrived == list(TALK)


@given(noise=st.binary(max_size=200))
def test_noise_raises_only_protocol_errors(noise: bytes) -> None:
    try:
        FrameReader().feed(framed(noise))
    except RemoteProtocolError:
        return
    raise AssertionError("noise was accepted as a frame")


@given(place=st.integers(4, 60), flip=st.integers(1, 255))
def test_damaged_frame_is_refused_or_decodes_as_another_valid_frame(place: int, flip: int) -> None:
    data = bytearray(encode(TALK[2]))
    data[place % (len(data) - 4) + 4] ^= flip
    try:
        arrived = FrameReader().feed(bytes(data))
    except RemoteProtocolError:
        return
    assert [type(frame) for frame in arrived] == [frames.Progress]


def test_oversized_frame_is_refused_by_its_length_alone() -> None:
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        FrameReader().feed(struct.pack(">I", FRAME_BYTES_MAX + 1))


def test_stream_may_end_after_a_frame_but_not_inside_one() -> None:
    whole, cut = FrameReader(), FrameReader()
    whole.feed(encode(TALK[0]))
    whole.end()
    assert cut.feed(encode(TALK[0])[:-1]) == []
    with pytest.raises(RemoteProtocolError, match="into a frame"):
        cut.end()


TRAIN = {
    "kind": "train",
    "step": 1,
    "block_paths": ["a"],
    "first_inner_step": 0,
    "ahead": False,
    **dict.fromkeys(("share", "outer_lr", "outer_momentum"), 0.0),
}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([1, 2], "not a map"),
        ({"step": 1}, "not a map with a kind"),
        ({"kind": 7}, "not a map with a kind"),
        ({"kind": "reboot"}, "has the unknown kind"),
        ({"kind": "load"}, "has the wrong fields"),
        ({"kind": "load", "step": 1, "also": 2}, "has the wrong fields"),
        ({"kind": "load", "step": "one"}, "invalid"),
        ({**TRAIN, "block_paths": "ab"}, "invalid"),
        ({**TRAIN, "block_paths": [["a"]]}, "invalid"),
        ({**TRAIN, "ahead": 0}, "invalid"),
        ({**TRAIN, "share": "all"}, "invalid"),
    ],
)
def test_map_that_is_not_a_frame_is_refused_with_a_reason(value: object, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        FrameReader().feed(framed(pack(value)))


def test_two_frames_in_one_body_are_refused() -> None:
    body = encode(TALK[0])[4:]
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(framed(body + body))
