"""Another thread can cancel a dial, before it begins and during the handshake."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from p2ptrain.dataplane import Credentials, DialHandle, Endpoint, dial
from p2ptrain.errors import PeerUnreachable

LONG_S = 60.0
SOON_S = 20.0
"""Time limit in seconds of a cancelled dial. It is far shorter than the dial's own deadline, and
far longer than a busy machine needs."""


def test_dial_of_a_frozen_peer_is_cancelled_at_once(
    client: Credentials, server: Credentials
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen, ThreadPoolExecutor(1) as pool:
        host, port = frozen.getsockname()
        endpoint = Endpoint(server.peer, host, port, server.certificate_der)
        dialling = DialHandle()
        work = partial(
            dial, client, endpoint, {"purpose": "x"}, deadline_s=LONG_S, dialling=dialling
        )
        begun_s = time.monotonic()
        dialled = pool.submit(work)
        accepted, _ = frozen.accept()
        with accepted:
            accepted.recv(1)  # The dialler now waits for the server's half of the handshake.
            dialling.give_up()
            with pytest.raises(PeerUnreachable):
                dialled.result()
        assert time.monotonic() - begun_s < SOON_S


def test_dial_that_was_cancelled_before_it_began_fails_at_once(
    client: Credentials, server: Credentials
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        host, port = frozen.getsockname()
        endpoint = Endpoint(server.peer, host, port, server.certificate_der)
        dialling = DialHandle()
        dialling.give_up()
        with pytest.raises(PeerUnreachable, match="gave up"):
            dial(client, endpoint, {"purpose": "x"}, deadline_s=LONG_S, dialling=dialling)


def test_connection_that_is_in_use_is_not_ended_by_giving_up_its_dial() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        dialling = DialHandle()
        dialling.branch().register(ours)
        assert dialling.release()
        dialling.give_up()
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
        assert not dialling.release()
