"""Separate tests of frames, requests and verdicts."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import codec as codec_of
from p2ptrain.ring import ReduceRequest
from p2ptrain.ring.blame import Blame, SharedVerdict
from p2ptrain.ring.wire import (
    ABORT_BYTES_MAX,
    HEADER_BYTES,
    Header,
    Kind,
    decode_blame,
    decode_header,
    encode_blame,
)

PEERS = tuple(PeerId(name) for name in "abc")
REQUEST = ReduceRequest(RunId("cd" * 32), 3, 0, PEERS, 1, (1, 2, 3), 1000, codec_of("int8", 256))

bytes4 = st.integers(0, 2**32 - 1)


headers = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    stream=st.integers(0, 255),
    part=st.integers(0, 65_535),
    index=bytes4,
    length=bytes4,
    step=bytes4,
    attempt=bytes4,
    tag=st.binary(min_size=8, max_size=8),
)


@given(headers)
def test_header_survives_encoding(header: Header) -> None:
    assert len(header.encode()) == HEADER_BYTES
    assert decode_header(header.encode()) == header


@example(bytes([max(Kind)]).ljust(HEADER_BYTES, b"\0"))
@example(bytes([max(Kind) + 1]).ljust(HEADER_BYTES, b"\0"))
@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_arbitrary_bytes_are_a_header_or_a_remote_protocol_error(data: bytes) -> None:
    if data[0] in set(Kind):
        assert decode_header(data).encode() == data
    else:
        with pytest.raises(RemoteProtocolError):
            decode_header(data)


@given(st.lists(st.sampled_from(PEERS), max_size=3), st.text(max_size=50))
def test_blame_survives_encoding(suspects: list[PeerId], reason: str) -> None:
    data = encode_blame(Blame(tuple(suspects), reason))
    read = decode_blame(data, PEERS)
    assert read.suspects == tuple(suspects)
    assert read.heard, "a blame from a neighbour must be marked as heard"
    assert len(read.reason) == len(reason)
    assert read.reason.isprintable()


@given(st.binary(max_size=ABORT_BYTES_MAX + 10))
def test_arbitrary_bytes_are_refused_as_a_blame(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_blame(data, PEERS)


def test_longest_blame_fits_the_bound() -> None:
    peers = tuple(PeerId(f"12D3KooW{number:044}") for number in range(40))
    data = encode_blame(Blame(peers, "€" * 1000))
    assert len(data) <= ABORT_BYTES_MAX
    assert decode_blame(data, peers) == Blame(peers[:16], "€" * 200, heard=True)


def test_neighbours_are_the_adjacent_peers_in_the_ring() -> None:
    ends = [replace(REQUEST, me=me) for me in range(3)]
    assert [each.neighbours for each in ends] == [("b", "c"), ("a", "c"), ("a", "b")]


def test_tag_is_equal_for_all_peers_and_unique_to_a_reduce() -> None:
    tags = {replace(REQUEST, me=me, silence_s=me + 1.0).tag() for me in range(3)}
    assert len(tags) == 1
    others = {
        replace(REQUEST, **change).tag()
        for change in (
            {"run": RunId("ef" * 32)},
            {"step": 4},
            {"attempt": 1},
            {"weights": (1, 2, 4)},
            {"peers": ("a", "c", "b")},
            {"numel": 1001},
            {"codec": codec_of("int8", 128)},
            {"schedule": "direct"},
            {"streams": 3},
            {"lanes": 2},
            {"segment_bytes": 1000},
            {"influence_max": 1.0},
        )
    }
    assert len(others | tags) == 13


@pytest.mark.parametrize(
    "change",
    [
        {"me": 3},
        {"me": -1},
        {"peers": ("a", "a", "b")},
        {"weights": (1, 2)},
        {"weights": (1, -2, 3)},
        {"weights": (0, 0, 0)},
        {"step": -1},
        {"step": 2**32},
        {"attempt": -1},
        {"numel": -1},
        {"schedule": "star"},
        {"streams": 0},
        {"streams": 65},
        {"lanes": 0},
        {"lanes": 3},
        {"segment_bytes": 0},
        {"deadline_s": 0.0},
        {"silence_s": 0.0},
        {"influence_max": 0.0},
        {"influence_max": float("nan")},
    ],
    ids=str,
)
def test_invalid_request_cannot_be_made(change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        replace(REQUEST, **change)  # type: ignore[arg-type]


def test_first_verdict_is_final() -> None:
    calls: list[str] = []
    verdict = SharedVerdict(lambda: calls.append("settled"))
    assert (verdict.settled, verdict.blame) == (False, None)
    first = Blame((PEERS[0],), "first")
    assert verdict.settle(first)
    assert not verdict.settle(Blame((PEERS[1],), "second"))
    assert (verdict.settled, verdict.blame, calls) == (True, first, ["settled"])


def test_header_has_28_bytes() -> None:
    assert struct.calcsize("<BBHIIII8s") == HEADER_BYTES == 28
