"""A receiver sends window updates for half a window at a time: none after a short message, and
enough during a long message."""

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
"""Yamux's initial window. In plain libp2p a sender can make the window grow by filling it;
bounds.py prevents that."""


@pytest.fixture
def credits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the bytes granted by each window update in this process."""
    given: list[int] = []
    write = Yamux._write_frame

    async def counting(muxed: Yamux, frame: bytes) -> None:
        _, kind, flags, _, length = struct.unpack(YAMUX_HEADER_FORMAT, frame[:HEADER_SIZE])
        if kind == TYPE_WINDOW_UPDATE and not flags:
            given.append(length)
        await write(muxed, frame)

    monkeypatch.setattr(Yamux, "_write_frame", counting)
    return given


async def test_short_messages_are_read_without_a_window_update(credits: list[int]) -> None:
    async with networks(2) as (a, b):
        channel = b.subscribe(TOPIC)
        b.handle(P, echo)
        await a.connect(b.addresses()[0])
        for number in range(20):
            await heard(a, TOPIC, b"%d" % number, channel)
            assert await a.request(b.peer, P, b"x", deadline_s=30) == b"x"
    assert credits == []


async def test_sender_never_runs_out_of_window(credits: list[int]) -> None:
    """Four requests send four windows of data each way at the same time, twice on the same
    connection."""
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
