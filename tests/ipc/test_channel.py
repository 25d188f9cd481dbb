"""The channel: frames over a socketpair, whatever the other side does."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.channel import Channel, ChannelClosed
from p2ptrain.ipc.frames import Load, Stop, Train
from p2ptrain.ipc.wire import FrameReader, encode

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_frames_arrive_in_order(pair: Pair) -> None:
    left, right = Channel(pair[0]), Channel(pair[1])
    for frame in (Load(1), Train(1, ("a",), 0), Stop()):
        left.send(frame)
    assert [right.receive(1.0) for _ in range(3)] == [Load(1), Train(1, ("a",), 0), Stop()]
    assert right.receive(0.0) is None


def test_receive_waits_even_on_a_nonblocking_socket(pair: Pair) -> None:
    pair[1].setblocking(False)
    assert Channel(pair[1]).receive(0.01) is None
    Channel(pair[0]).send(Load(2))
    assert Channel(pair[1]).receive(1.0) == Load(2)


def test_incomplete_frame_is_not_delivered_yet(pair: Pair) -> None:
    receiver, data = Channel(pair[1]), encode(Load(3))
    pair[0].sendall(data[:5])
    assert receiver.receive(0.01) is None
    pair[0].sendall(data[5:])
    assert receiver.receive(1.0) == Load(3)


def test_frames_sent_before_a_close_arrive_before_it(pair: Pair) -> None:
    Channel(pair[0]).send(Load(4))
    pair[0].close()
    receiver = Channel(pair[1])
    assert receiver.receive(1.0) == Load(4)
    with pytest.raises(ChannelClosed):
        receiver.receive(1.0)


def test_close_inside_a_frame_counts_as_a_close(pair: Pair) -> None:
    pair[0].sendall(encode(Load(5))[:-1])
    pair[0].close()
    with pytest.raises(ChannelClosed, match="in the middle of a frame"):
        Channel(pair[1]).receive(1.0)


def test_malformed_data_is_distinguished_from_a_close(pair: Pair) -> None:
    pair[0].sendall(b"\xff" * 64)
    with pytest.raises(RemoteProtocolError):
        Channel(pair[1]).receive(1.0)


def test_sending_to_a_closed_side_raises_an_error_not_sigpipe(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(ChannelClosed):
        Channel(pair[0]).send(Stop())


def test_sending_gives_up_on_a_side_that_never_reads(pair: Pair) -> None:
    deaf = Channel(pair[0])
    with pytest.raises(ChannelClosed, match="did not accept"):
        for step in range(100):
            deaf.send(Train(step, ("x" * 4000,) * 16, 0), deadline_s=0.05)


LEASE = Train(1, ("/" + 128 * "x",) * 2000, 0)
"""A frame that is longer than a socket's buffer."""


def test_send_of_a_long_frame_waits_and_calls_meanwhile_repeatedly(pair: Pair) -> None:
    """The reader does not read for a while, like a trainer that restores its optimizer. The sender
    meanwhile calls `look` at each interval."""
    reader, arrived, looks = FrameReader(), [], 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks >= 5:
            arrived.extend(reader.feed(pair[1].recv(1 << 20)))

    Channel(pair[0], ask_every_s=0.001).send(LEASE, meanwhile=look)
    while not arrived:
        arrived.extend(reader.feed(pair[1].recv(1 << 20)))
    assert looks >= 5
    assert arrived == [LEASE]


def test_rest_of_an_interrupted_frame_is_sent_before_the_next_one(pair: Pair) -> None:
    class Ended(Exception):
        pass

    def end() -> None:
        raise Ended

    sender, reader = Channel(pair[0], ask_every_s=0.001), FrameReader()
    with pytest.raises(Ended):
        sender.send(LEASE, meanwhile=end)
    assert reader.feed(pair[1].recv(1 << 20)) == []
    sender.send(Stop())
    assert reader.feed(pair[1].recv(1 << 20)) == [LEASE, Stop()]


def test_error_says_that_the_channel_was_closed_on_this_side(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(ChannelClosed, match="this side"):
        Channel(pair[0]).receive(0.0)
