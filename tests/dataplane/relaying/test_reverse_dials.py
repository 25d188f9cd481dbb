"""A server behind a NAT dials the client, which uses the call for its own hello."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from p2ptrain.dataplane import Credentials, DialHandle, Endpoint, Listener, PeerSocket
from p2ptrain.dataplane.relaying import (
    PURPOSE,
    FetchKey,
    RelayRefused,
    ReverseDials,
    Route,
    greet_caller,
    serve_through,
)
from p2ptrain.dataplane.sockets import ShutDownHere
from p2ptrain.errors import PeerTooSlow, PeerUnreachable
from tests.dataplane.conftest import DEADLINE_S, SHORT_S, Echo, in_thread
from tests.dataplane.relaying.conftest import ANN, BOB, CAI, RUN

KEY, OTHER_KEY = (FetchKey(RUN, bytes([number]) * 16, ANN.peer) for number in (1, 2))


@dataclass
class Sides:
    """Ann's listener, which takes calls, and Bob's, whose handlers serve what Bob dials."""

    calls: ReverseDials
    ann: Listener
    bob: Listener
    encrypted: bool

    def call(self, key: FetchKey, caller: Credentials = BOB) -> None:
        """Let the caller dial Ann."""
        host, port = self.ann.address
        there = Endpoint(ANN.peer, host, port, ANN.certificate_der)
        serve_through(
            caller,
            Route(there, there, key),
            self.bob,
            deadline_s=DEADLINE_S,
            encrypted=self.encrypted,
        )


@pytest.fixture(params=[True, False])
def sides(request: pytest.FixtureRequest, echo: Echo) -> Iterator[Sides]:
    encrypted = bool(request.param)
    ann, bob = (
        Listener(each, "127.0.0.1", 0, allowed=lambda peer: True, encrypted=encrypted)
        for each in (ANN, BOB)
    )
    for each in (BOB, CAI):
        ann.trust_certificate(each.certificate_der)
    bob.trust_certificate(ANN.certificate_der)
    bob.handle("echo", echo)
    found = Sides(ReverseDials(ANN.peer), ann, bob, encrypted)
    ann.handle(PURPOSE, found.calls)
    with ann, bob:
        yield found


def take(sides: Sides, key: FetchKey = KEY) -> PeerSocket:
    """Return Ann's connection to Bob, who calls once Ann expects it."""
    bob = Endpoint(BOB.peer, "127.0.0.1", 9, BOB.certificate_der)
    with sides.calls.expect(key, BOB.peer) as call:
        called = in_thread(partial(sides.call, key))
        sock, received = call.wait(deadline_s=DEADLINE_S, dialling=DialHandle())
        connection = greet_caller(
            ANN,
            bob,
            sock,
            {"purpose": "echo"},
            received=received,
            deadline_s=DEADLINE_S,
            encrypted=sides.encrypted,
        )
    assert called() is None
    return connection


def test_client_uses_the_call_of_the_server(sides: Sides) -> None:
    connection = take(sides)
    connection.send_frame(b"chunk")
    assert connection.receive_frame() == b"chunk"
    assert (connection.peer, connection.via) == (BOB.peer, None)
    connection.close()


@pytest.mark.parametrize(("key", "caller"), [(OTHER_KEY, BOB), (KEY, CAI)])
def test_call_that_is_not_expected_is_refused(
    sides: Sides, key: FetchKey, caller: Credentials
) -> None:
    with (
        sides.calls.expect(KEY, BOB.peer),
        pytest.raises(RelayRefused, match="does not expect this call"),
    ):
        sides.call(key, caller)


def test_node_without_a_relay_refuses_to_relay(sides: Sides) -> None:
    host, port = sides.ann.address
    ann = Endpoint(ANN.peer, host, port, ANN.certificate_der)
    cai = Endpoint(CAI.peer, "127.0.0.1", 9, CAI.certificate_der)
    key = FetchKey(RUN, bytes(16), CAI.peer)
    with pytest.raises(RelayRefused, match="does not relay"):
        serve_through(
            BOB,
            Route(ann, cai, key),
            sides.bob,
            deadline_s=DEADLINE_S,
            encrypted=sides.encrypted,
        )


def test_wait_for_a_call_ends_in_time_or_when_the_caller_gives_up() -> None:
    calls, given_up = ReverseDials(ANN.peer), DialHandle()
    given_up.give_up()
    with calls.expect(KEY, BOB.peer) as call:
        with pytest.raises(PeerTooSlow):
            call.wait(deadline_s=SHORT_S, dialling=DialHandle())
        with pytest.raises(ShutDownHere):
            call.wait(deadline_s=DEADLINE_S, dialling=given_up)


def test_number_of_expected_calls_is_bounded() -> None:
    calls = ReverseDials(ANN.peer, expected_max=1)
    with (
        calls.expect(KEY, BOB.peer),
        pytest.raises(PeerUnreachable, match="too many calls"),
        calls.expect(OTHER_KEY, BOB.peer),
    ):
        pass
