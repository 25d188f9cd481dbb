"""Of two neighbours that connect at the same time, only one decides which connection is used."""

from __future__ import annotations

import pytest

from p2ptrain.dataplane import Credentials, Endpoint, RingInbox, RingKey, SocketWait
from p2ptrain.dataplane.inbox import PURPOSES, SECOND_PURPOSE
from p2ptrain.errors import PeerLost, PeerUnreachable
from p2ptrain.ids import RunId

from .conftest import DEADLINE_S, ListenerFactory, connect, eventually
from .test_punching import Background

RUN = RunId("ab" * 32)


@pytest.fixture
def inbox() -> RingInbox:
    return RingInbox()


@pytest.fixture
def endpoint(listening: ListenerFactory, inbox: RingInbox) -> Endpoint:
    listener, endpoint = listening()
    for purpose in PURPOSES:
        listener.handle(purpose, inbox.handle, inbox.refusal)
    return endpoint


@pytest.fixture
def key(client: Credentials) -> RingKey:
    return RingKey(RUN, 3, 0, 1, client.peer)


def test_claimed_stream_cannot_be_opened_by_the_neighbour(
    client: Credentials, endpoint: Endpoint, inbox: RingInbox, key: RingKey
) -> None:
    assert inbox.claim(key)
    for purpose in PURPOSES:
        with pytest.raises(PeerUnreachable, match="open already"):
            connect(client, endpoint, key.to_hello(purpose))
    assert len(inbox) == 0
    inbox.release(key)
    connect(client, endpoint, key.to_hello(SECOND_PURPOSE)).close()


def test_stream_that_the_neighbour_has_opened_cannot_be_claimed(
    client: Credentials, endpoint: Endpoint, inbox: RingInbox, key: RingKey
) -> None:
    ours = connect(client, endpoint, key.to_hello())
    assert not inbox.claim(key), "its hello was accepted, whether or not the socket is parked"
    eventually(lambda: len(inbox) == 1)
    assert not inbox.claim(key)
    inbox.wait_for_socket(key, deadline_s=DEADLINE_S).close()
    assert inbox.claim(key), "another connection replaces the one that was taken"
    ours.close()


def test_wait_can_be_ended_without_giving_up_the_attempt(
    client: Credentials, endpoint: Endpoint, inbox: RingInbox, key: RingKey, background: Background
) -> None:
    wait, early = SocketWait(), SocketWait()
    inbox.end_wait(early)
    with pytest.raises(PeerLost):
        inbox.wait_for_socket(key, deadline_s=DEADLINE_S, wait=early)
    waiting = background(lambda: inbox.wait_for_socket(key, deadline_s=DEADLINE_S, wait=wait))
    inbox.end_wait(wait)
    assert isinstance(waiting(), PeerLost)
    ours = connect(client, endpoint, key.to_hello())
    inbox.wait_for_socket(key, deadline_s=DEADLINE_S).close()
    ours.close()
