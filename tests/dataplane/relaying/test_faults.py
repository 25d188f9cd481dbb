"""A relay that lies, stalls, dies or changes bytes is blamed, and the neighbour never is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from p2ptrain.dataplane import DialHandle, PeerSocket, ShutDownHere
from p2ptrain.dataplane.relaying import (
    PURPOSE,
    Refusal,
    Refused,
    RelayRefused,
    RelayRequest,
    RelayTimes,
    Route,
    dial_through,
    first_that_works,
)
from p2ptrain.dataplane.relaying.messages import encode_answer
from p2ptrain.dataplane.sockets import RelayFault, RelayLost, RelayTooSlow
from p2ptrain.dataplane.tls import dial
from p2ptrain.errors import PeerError, PeerUnreachable
from tests.dataplane.conftest import DEADLINE_S, SHORT_S, eventually, in_thread
from tests.dataplane.relaying.conftest import (
    ANN,
    BOB,
    CAI,
    RELAY,
    MakeTrio,
    Trio,
    edge_key,
    fetch_key,
    ring_hello,
)

PIECE_BYTES = 4 << 10
"""Most bytes that a lying relay passes on at once. The tests send more after the change begins."""

Change = Callable[[bytes, int], bytes | None]
"""`change(piece, before)` returns the bytes to pass on instead, after `before` earlier ones in the
same direction. None ends both connections, and b"" passes nothing on."""


@dataclass
class LyingRelay:
    """Joins any two peers, and passes their bytes on through `change`."""

    change: Change
    halves: list[tuple[socket.socket, bytes]] = field(default_factory=list)
    joined: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    corked: bool = False
    """Whether Bob's answer and the first bytes after it arrive together."""

    def __call__(self, connection: PeerSocket, hello: Mapping[str, object]) -> None:
        is_bob = connection.peer == BOB.peer
        if self.corked and is_bob:
            eventually(lambda: len(self.halves) == 1)
            with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        connection.send_frame(encode_answer(None))
        self.halves.append(connection.take_clear())
        if len(self.halves) == 2:
            self._pass_on()

    def close(self) -> None:
        for sock, _ in self.halves:
            sock.close()

    def _pass_on(self) -> None:
        (one, early), (other, _) = self.halves
        assert not early
        with one, other:
            threads = [
                threading.Thread(target=self._pump, args=pair)
                for pair in ((one, other), (other, one))
            ]
            for each in threads:
                each.start()
            self.joined.release()
            for each in threads:
                each.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        before = 0
        source.settimeout(DEADLINE_S)
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                changed = self.change(piece, before)
                before += len(piece)
                if changed is None:
                    break
                sink.sendall(changed)
                with suppress(OSError):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def lying(make_trio: MakeTrio) -> Iterator[Callable[..., tuple[Trio, LyingRelay]]]:
    with ExitStack() as stack:

        def make(change: Change, *, encrypted: bool = True) -> tuple[Trio, LyingRelay]:
            trio, relay = make_trio(encrypted=encrypted), LyingRelay(change)
            trio.relay_listener.handle(PURPOSE, relay)
            stack.callback(relay.close)
            return trio, relay

        yield make


Lying = Callable[..., tuple[Trio, LyingRelay]]
HANDSHAKE_BYTES = 8 << 10
"""More bytes than a handshake and a hello take in one direction, and fewer than the tests send."""


def flipped(after: int) -> Change:
    """Flip a bit of the first byte that comes after that many others."""

    def change(piece: bytes, before: int) -> bytes:
        at = after - before
        if not 0 <= at < len(piece):
            return piece
        return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]

    return change


def assert_blames_the_relay(error: object) -> None:
    assert isinstance(error, RelayFault)
    assert error.peer == RELAY.peer


def send_and_receive(trio: Trio) -> list[object]:
    """Let Ann send a MiB to Bob, and return the errors of both."""
    at_ann, at_bob = trio.connect()
    sending = in_thread(lambda: at_ann.send_all(bytes(1 << 20)))
    receiving = in_thread(lambda: at_bob.receive_into(bytearray(1 << 20)))
    at_end = receiving()
    at_bob.close()
    sending()
    return [at_end, in_thread(lambda: at_ann.receive_into(bytearray(1)))()]


def test_changed_byte_is_noticed_and_the_relay_is_blamed(lying: Lying) -> None:
    trio, _ = lying(flipped(HANDSHAKE_BYTES))
    for error in send_and_receive(trio):
        assert_blames_the_relay(error)


@pytest.mark.parametrize("after", [0, 40, 300])
def test_changed_handshake_is_noticed_and_the_relay_is_blamed(lying: Lying, after: int) -> None:
    trio, _ = lying(flipped(after))
    served = in_thread(lambda: trio.serve(edge_key()))
    dialled = in_thread(lambda: trio.dial(edge_key(), ring_hello()))
    for error in (served(), dialled()):
        assert_blames_the_relay(error)


def test_changed_length_without_encryption_is_blamed_on_the_relay(lying: Lying) -> None:
    changes: list[bytes] = []
    trio, _ = lying(lambda piece, before: changes.pop() if changes else piece, encrypted=False)
    at_ann, at_bob = trio.connect()
    changes.append(b"\xff\xff\xff\xff")
    at_ann.send_frame(b"chunk")
    with pytest.raises(RelayLost):
        at_bob.receive_frame()


def test_relay_that_stalls_is_too_slow(lying: Lying) -> None:
    trio, _ = lying(lambda piece, before: piece if before < HANDSHAKE_BYTES else b"")
    at_ann, at_bob = trio.connect()
    sending = in_thread(lambda: at_ann.send_all(bytes(1 << 20)))
    at_bob.set_deadline(SHORT_S)
    with pytest.raises(RelayTooSlow) as caught:
        at_bob.receive_into(bytearray(1 << 20))
    assert_blames_the_relay(caught.value)
    at_bob.close()
    sending()


def test_relay_that_stalls_before_the_handshake_is_too_slow(lying: Lying) -> None:
    trio, _ = lying(lambda piece, before: b"")
    served = in_thread(lambda: trio.serve(edge_key(), deadline_s=SHORT_S))
    dialled = in_thread(lambda: trio.dial(edge_key(), ring_hello(), deadline_s=SHORT_S))
    for error in (served(), dialled()):
        assert_blames_the_relay(error)


def test_relay_that_dies_midway_is_blamed(lying: Lying) -> None:
    trio, _ = lying(lambda piece, before: piece if before < HANDSHAKE_BYTES else None)
    for error in send_and_receive(trio):
        assert_blames_the_relay(error)


def test_relay_that_joins_the_wrong_peers_is_blamed(lying: Lying) -> None:
    """Cai answers in Bob's place. He proves that he is Cai, so only the relay can be at fault."""
    trio, _ = lying(lambda piece, before: piece)
    served = in_thread(lambda: trio.serve(fetch_key()))
    dialled = in_thread(lambda: trio.dial(fetch_key(2), {"purpose": "echo"}, to=CAI))
    for error in (served(), dialled()):
        assert_blames_the_relay(error)


def test_bytes_that_arrive_with_the_relays_answer_are_not_lost(lying: Lying) -> None:
    trio, relay = lying(lambda piece, before: piece)
    relay.corked = True
    at_ann, at_bob = trio.connect()
    at_ann.send_frame(b"chunk")
    assert at_bob.receive_frame() == b"chunk"


def test_relay_that_never_answers_is_too_slow(make_trio: MakeTrio) -> None:
    trio = make_trio()
    trio.relay_listener.handle(PURPOSE, lambda connection, hello: _hold(connection))
    with pytest.raises(RelayTooSlow) as caught:
        trio.dial(edge_key(), ring_hello(), deadline_s=SHORT_S)
    assert_blames_the_relay(caught.value)


def _hold(connection: PeerSocket) -> None:
    connection.set_deadline(DEADLINE_S)
    with suppress(PeerError):
        connection.receive_into(bytearray(1))


def test_given_up_dial_blames_nobody(make_trio: MakeTrio) -> None:
    trio, dialling = make_trio(), DialHandle()
    call = in_thread(lambda: trio.serve(edge_key(), dialling=dialling))
    eventually(lambda: trio.relay_listener.statistics().connections_now == 1)
    dialling.give_up()
    assert isinstance(call(), ShutDownHere)
    assert isinstance(in_thread(lambda: trio.serve(edge_key(), dialling=dialling))(), ShutDownHere)


def test_peer_that_speaks_before_it_is_joined_is_dropped(make_trio: MakeTrio) -> None:
    trio = make_trio()
    hello = RelayRequest(ANN.peer, BOB.peer, edge_key()).to_hello()
    connection = dial(ANN, trio.relay, hello, deadline_s=DEADLINE_S)
    trio.opened.append(connection)
    connection.send_frame(b"early")
    eventually(lambda: trio.relay_listener.statistics().connections_now == 0)
    with pytest.raises(PeerError):
        connection.receive_frame()
    assert trio.server.totals().total_bytes == 0


def test_next_relay_is_tried_when_the_first_one_fails(make_trio: MakeTrio) -> None:
    """The first relay refuses. The second one joins the ends, which both tried the first."""
    first, second = make_trio(), make_trio()
    first.relay_listener.handle(PURPOSE, _full)
    trios, dialling = {first.relay: first, second.relay: second}, DialHandle()
    routes = [each.route(BOB, fetch_key()) for each in (first, second)]

    def serve(route: Route, deadline_s: float, join_s: float) -> None:
        trios[route.relay].serve(fetch_key())

    def ask(route: Route, deadline_s: float, join_s: float) -> PeerSocket:
        return dial_through(
            ANN, route, {"purpose": "echo"}, deadline_s=deadline_s, join_s=join_s, dialling=dialling
        )

    served = in_thread(
        lambda: first_that_works(routes, serve, deadline_s=DEADLINE_S, dialling=dialling)
    )
    found = first_that_works(routes, ask, deadline_s=DEADLINE_S, dialling=dialling)
    second.opened.append(found)
    assert served() is None
    assert found.peer == BOB.peer


def _full(connection: PeerSocket, hello: Mapping[str, object]) -> None:
    connection.send_frame(encode_answer(Refused(Refusal.FULL, "busy")))


def test_failure_of_all_relays_names_them_all(make_trio: MakeTrio) -> None:
    trio = make_trio()
    trio.relay_listener.handle(PURPOSE, _full)
    routes, dialling = [trio.route(BOB, fetch_key())] * 2, DialHandle()

    def ask(route: Route, deadline_s: float, join_s: float) -> PeerSocket:
        return dial_through(ANN, route, {"purpose": "echo"}, deadline_s=deadline_s, join_s=join_s)

    with pytest.raises(RelayRefused) as caught:
        first_that_works(routes, ask, deadline_s=DEADLINE_S, dialling=dialling)
    assert caught.value.kind is Refusal.FULL
    assert caught.value.evidence == (f"{RELAY.peer}: the relay refused: busy",)
    with pytest.raises(RelayFault, match="no member offers"):
        first_that_works([], ask, deadline_s=DEADLINE_S, dialling=dialling)


def test_error_of_the_peer_itself_ends_the_search(make_trio: MakeTrio) -> None:
    trio = make_trio(times=RelayTimes(wait_s=DEADLINE_S))
    served = in_thread(lambda: trio.serve(fetch_key()))
    routes = [trio.route(BOB, fetch_key())] * 2

    def ask(route: Route, deadline_s: float, join_s: float) -> PeerSocket:
        return dial_through(ANN, route, {"purpose": "no such"}, deadline_s=deadline_s)

    with pytest.raises(PeerUnreachable) as caught:
        first_that_works(routes, ask, deadline_s=DEADLINE_S, dialling=DialHandle())
    assert caught.value.peer == BOB.peer
    served()
