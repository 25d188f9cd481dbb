"""Ann and Bob, a relay between them, and a neighbour who does not take part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from p2ptrain.dataplane import (
    Credentials,
    DialHandle,
    Endpoint,
    Listener,
    PeerSocket,
    RingInbox,
    RingKey,
)
from p2ptrain.dataplane.relaying import (
    PURPOSE,
    EdgeKey,
    EndedEdge,
    FetchKey,
    Pace,
    Refused,
    RelayKey,
    RelayLimits,
    RelayLog,
    RelayRequest,
    RelayServer,
    RelayTimes,
    RelayView,
    Route,
    dial_through,
    serve_through,
)
from p2ptrain.ids import RunId
from tests.dataplane.conftest import DEADLINE_S, Echo, identity, in_thread

RUN = RunId("a" * 64)
STEP, ATTEMPT = 5, 2
PATIENT = RelayTimes(wait_s=DEADLINE_S, answer_s=DEADLINE_S, grace_s=DEADLINE_S, idle_s=DEADLINE_S)
"""Limits that honest ends never reach, even on a busy machine."""
RELAY, ANN, BOB, CAI, EVE = (Credentials.create(identity(number)) for number in range(11, 16))
"""Eve is not a member, and Cai does not take part in the attempt."""


def everyone(**changes: object) -> RelayView:
    given = {
        "run": RUN,
        "members": {each.peer for each in (RELAY, ANN, BOB, CAI)},
        "step": STEP,
        "attempt": ATTEMPT,
        "participants": (ANN.peer, BOB.peer),
    }
    return RelayView(**(given | changes))  # type: ignore[arg-type]


def edge_key(stream: int = 0, **changes: object) -> EdgeKey:
    given = {"run": RUN, "step": STEP, "attempt": ATTEMPT, "stream": stream, "dialler": ANN.peer}
    return EdgeKey(**(given | changes))  # type: ignore[arg-type]


def ring_hello(stream: int = 0) -> dict[str, object]:
    return RingKey(RUN, STEP, ATTEMPT, stream, ANN.peer).to_hello()


@dataclass
class Diary(RelayLog):
    """Records what the relay reports."""

    joins: list[RelayRequest] = field(default_factory=list)
    ends: list[tuple[EndedEdge, str]] = field(default_factory=list)
    refusals: list[tuple[RelayRequest, Refused]] = field(default_factory=list)

    def joined(self, request: RelayRequest) -> None:
        self.joins.append(request)

    def ended(self, ended: EndedEdge, reason: str) -> None:
        self.ends.append((ended, reason))

    def refused(self, request: RelayRequest, refused: Refused) -> None:
        self.refusals.append((request, refused))


@dataclass
class Trio:
    """A relay at `relay`, and Bob's listener, whose handlers serve what comes through the relay."""

    server: RelayServer
    relay: Endpoint
    relay_listener: Listener
    bob: Listener
    inbox: RingInbox
    diary: Diary
    encrypted: bool
    opened: list[PeerSocket] = field(default_factory=list)
    """Connections that are closed at the end of the test."""

    def close(self) -> None:
        for each in self.opened:
            each.close()

    def route(self, to: Credentials, key: RelayKey) -> Route:
        peer = Endpoint(to.peer, "127.0.0.1", 9, to.certificate_der)
        return Route(self.relay, peer, key)

    def dial(
        self,
        key: RelayKey,
        hello: Mapping[str, object],
        *,
        dialler: Credentials = ANN,
        to: Credentials = BOB,
        deadline_s: float = DEADLINE_S,
        dialling: DialHandle | None = None,
    ) -> PeerSocket:
        connection = dial_through(
            dialler,
            self.route(to, key),
            hello,
            deadline_s=deadline_s,
            encrypted=self.encrypted,
            dialling=dialling,
        )
        self.opened.append(connection)
        return connection

    def serve(
        self,
        key: RelayKey,
        *,
        dialler: Credentials = ANN,
        deadline_s: float = DEADLINE_S,
        dialling: DialHandle | None = None,
    ) -> None:
        serve_through(
            BOB,
            self.route(dialler, key),
            self.bob,
            deadline_s=deadline_s,
            encrypted=self.encrypted,
            dialling=dialling,
        )

    def connect(self, stream: int = 0) -> tuple[PeerSocket, PeerSocket]:
        """Return both ends of one stream of the ring: Ann's, who has dialled, and Bob's."""
        served = in_thread(lambda: self.serve(edge_key(stream)))
        at_ann = self.dial(edge_key(stream), ring_hello(stream))
        key = RingKey(RUN, STEP, ATTEMPT, stream, ANN.peer)
        at_bob = self.inbox.wait_for_socket(key, deadline_s=DEADLINE_S)
        assert served() is None
        self.opened.append(at_bob)
        for each in (at_ann, at_bob):
            each.set_deadline(DEADLINE_S)
        return at_ann, at_bob


MakeTrio = Callable[..., Trio]


@pytest.fixture
def make_trio() -> Iterator[MakeTrio]:
    with ExitStack() as stack:

        def make(
            *,
            view: Callable[[], RelayView] = everyone,
            limits: RelayLimits | None = None,
            times: RelayTimes = PATIENT,
            pace: Pace | None = None,
            encrypted: bool = True,
            relay_at: Callable[[tuple[str, int]], tuple[str, int]] = lambda address: address,
        ) -> Trio:
            """`relay_at` may put something between the peers and the relay."""
            diary = Diary()
            listening, bob = (
                stack.enter_context(
                    Listener(each, "127.0.0.1", 0, allowed=lambda peer: True, encrypted=encrypted)
                )
                for each in (RELAY, BOB)
            )
            for each in (ANN, BOB, CAI, EVE):
                listening.trust_certificate(each.certificate_der)
                bob.trust_certificate(each.certificate_der)
            server = stack.enter_context(
                RelayServer(view, limits, pace=pace, times=times, log=diary)
            )
            listening.handle(PURPOSE, server)
            inbox = RingInbox()
            bob.handle("ring", inbox.handle)
            bob.handle("echo", Echo([], threading.Semaphore(0)))
            host, port = relay_at(listening.address)
            relay = Endpoint(RELAY.peer, host, port, RELAY.certificate_der)
            trio = Trio(server, relay, listening, bob, inbox, diary, encrypted)
            stack.callback(trio.close)
            return trio

        yield make


def fetch_key(number: int = 1, dialler: Credentials = ANN) -> FetchKey:
    return FetchKey(RUN, bytes([number]) * 16, dialler.peer)
