"""What was read is credited by halves of a window: none for a small word, enough for a long one."""

from __future__ import annotations

import struct

import pytest
import trio
from libp2p.stream_muxer.yamux.yamux import (
    HEADER_SIZE,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
)

from .conftest import echo, heard, networks

TOPIC = "/test/words"
P = "/test/1"
WINDOW_BYTES = 256 << 10
"""Yamux's first; it would grow with a sender that fills it, but for bounds.py."""


@pytest.fixture
def credits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each window update gave, on all connections of this process."""
    given: list[int] = []
    write = Yamux._write_frame

    async def counting(muxed: Yamux, frame: bytes) -> None:
        _, kind, flags, _, length = struct.unpack(YAMUX_HEADER_FORMAT, frame[:HEADER_SIZE])
        if kind == TYPE_WINDOW_UPDATE and not flags:
            given.append(length)
        await write(muxed, frame)

    monkeypatch.setattr(Yamux, "_write_frame", counting)
    return given


async def test_small_words_are_read_without_a_frame_in_return(credits: list[int]) -> None:
    async with networks(2) as (a, b):
        channel = b.subscribe(TOPIC)
        b.handle(P, echo)
        await a.connect(b.addresses()[0])
        for number in range(20):
            await heard(a, TOPIC, b"%d" % number, channel)
            assert await a.request(b.peer, P, b"x", deadline_s=30) == b"x"
    assert credits == []


async def test_a_sender_never_runs_dry(credits: list[int]) -> None:
    """Four windows there and back at once, and again on the same connection."""
    payload = bytes(4 * WINDOW_BYTES)
    async with networks(2) as (a, b):
        b.handle(P, echo, bytes_max=len(payload))
        await a.connect(b.addresses()[0])

        async def ask() -> None:
            assert await a.request(b.peer, P, payload, deadline_s=60) == payload

        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(ask)
    assert min(credits) >= WINDOW_BYTES // 2
    assert len(credits) <= 2 * 16 * len(payload) // WINDOW_BYTES
