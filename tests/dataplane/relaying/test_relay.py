"""A relay joins two members, and no fault of the relay looks like a fault of the neighbour."""

from __future__ import annotations

import hashlib
import random
from functools import partial

import pytest

from p2ptrain.dataplane import Credentials, DialHandle, PeerSocket, ShutDownHere
from p2ptrain.dataplane.relaying import (
    Refusal,
    RelayLimits,
    RelayRefused,
    RelayTimes,
    RelayUnreachable,
)
from p2ptrain.dataplane.sockets import RelayFault
from p2ptrain.errors import PeerError, PeerUnreachable, RemoteProtocolError
from tests.dataplane.conftest import DEADLINE_S, SHORT_S, eventually, in_thread
from tests.dataplane.relaying.conftest import (
    ANN,
    BOB,
    CAI,
    EVE,
    RELAY,
    STEP,
    MakeTrio,
    edge_key,
    everyone,
    fetch_key,
    ring_hello,
)

MIB = 1 << 20


def exchange(sock: PeerSocket, seed: int, mib: int, theirs: int) -> bytes:
    """Send `mib` MiB that depend on `seed`, in pieces, and receive as many. Return the digest of
    what was received. The side with the smaller seed sends first."""
    draw, digest, piece = random.Random(seed), hashlib.sha256(), bytearray(MIB)
    for _ in range(mib):
        for sends in (seed < theirs, seed > theirs):
            if sends:
                sock.send_all(draw.randbytes(MIB))
            else:
                sock.receive_into(piece)
                digest.update(piece)
    return digest.digest()


def digest_of(seed: int, mib: int) -> bytes:
    draw, digest = random.Random(seed), hashlib.sha256()
    for _ in range(mib):
        digest.update(draw.randbytes(MIB))
    return digest.digest()


@pytest.mark.parametrize("encrypted", [True, False])
def test_four_streams_carry_megabytes_in_both_directions(
    make_trio: MakeTrio, encrypted: bool
) -> None:
    trio = make_trio(encrypted=encrypted)
    pairs = [trio.connect(stream) for stream in range(4)]
    running = []
    for number, (at_ann, at_bob) in enumerate(pairs):
        assert (at_ann.peer, at_ann.via) == (BOB.peer, RELAY.peer)
        assert (at_bob.peer, at_bob.via) == (ANN.peer, RELAY.peer)
        assert at_ann.is_authentic is at_bob.is_authentic is encrypted
        seeds = 2 * number, 2 * number + 1
        for sock, (mine, theirs) in ((at_ann, seeds), (at_bob, seeds[::-1])):

            def run(sock: PeerSocket = sock, mine: int = mine, theirs: int = theirs) -> object:
                return exchange(sock, mine, 3, theirs) == digest_of(theirs, 3)

            running.append(in_thread(run))
    assert [result() for result in running] == [True] * 8
    totals = trio.server.totals()
    assert totals.edges_now == 1
    assert totals.total_bytes == totals.today_bytes > 24 * MIB
    assert {peer for peer, _ in totals.by_peer} == {ANN.peer, BOB.peer}
    for at_ann, at_bob in pairs:
        at_ann.close()
        at_bob.close()
    eventually(lambda: len(trio.diary.ends) == 1)
    (ended, _) = trio.diary.ends[0]
    assert ended.relayed_bytes == trio.server.totals().total_bytes
    assert trio.server.totals().edges_now == 0
    eventually(lambda: trio.relay_listener.statistics().connections_now == 0)


def test_one_direction_goes_on_after_the_other_has_ended(make_trio: MakeTrio) -> None:
    at_ann, at_bob = make_trio(encrypted=False).connect()
    at_ann.send_all(b"the last words")
    at_ann.finish_sending()
    words = bytearray(14)
    at_bob.receive_into(words)
    assert words == b"the last words"
    at_bob.send_all(bytes(MIB))
    at_ann.receive_into(bytearray(MIB))


def test_fetch_of_chunks_is_served_by_the_listeners_handler(make_trio: MakeTrio) -> None:
    trio = make_trio()
    served = in_thread(lambda: trio.serve(fetch_key()))
    connection = trio.dial(fetch_key(), {"purpose": "echo"})
    assert served() is None
    connection.set_deadline(DEADLINE_S)
    connection.send_frame(b"chunk")
    assert connection.receive_frame() == b"chunk"


def refused_kind(call: object) -> Refusal:
    assert isinstance(call, RelayRefused)
    assert call.peer == RELAY.peer
    return call.kind


@pytest.mark.parametrize("dialler", [EVE, CAI])
def test_peer_that_does_not_take_part_is_refused(make_trio: MakeTrio, dialler: Credentials) -> None:
    trio, key = make_trio(), edge_key(dialler=dialler.peer)
    dialled = in_thread(lambda: trio.dial(key, ring_hello(), dialler=dialler))
    assert refused_kind(dialled()) is Refusal.NOT_ALLOWED
    served = in_thread(lambda: trio.serve(key, dialler=dialler))
    assert refused_kind(served()) is Refusal.NOT_ALLOWED
    assert trio.diary.joins == []
    assert trio.server.totals().total_bytes == 0
    assert trio.bob.statistics().accepted == 0


def test_stranger_cannot_use_the_relay_for_a_fetch(make_trio: MakeTrio) -> None:
    trio = make_trio()
    key = fetch_key(dialler=EVE)
    call = in_thread(lambda: trio.dial(key, {"purpose": "echo"}, dialler=EVE))
    assert refused_kind(call()) is Refusal.NOT_ALLOWED


def test_end_that_waits_in_vain_is_dropped_and_nobody_is_blamed(make_trio: MakeTrio) -> None:
    trio = make_trio(times=RelayTimes(wait_s=SHORT_S))
    call = in_thread(lambda: trio.dial(edge_key(), ring_hello()))
    assert refused_kind(call()) is Refusal.ABSENT
    eventually(lambda: trio.relay_listener.statistics().connections_now == 0)


def test_end_that_leaves_while_it_waits_frees_its_place(make_trio: MakeTrio) -> None:
    trio, dialling = make_trio(), DialHandle()
    call = in_thread(lambda: trio.dial(edge_key(), ring_hello(), dialling=dialling))
    eventually(lambda: trio.relay_listener.statistics().connections_now == 1)
    dialling.give_up()
    assert isinstance(call(), ShutDownHere)
    eventually(lambda: trio.relay_listener.statistics().connections_now == 0)


def test_relay_that_is_behind_joins_the_ends_when_it_has_caught_up(make_trio: MakeTrio) -> None:
    views = [everyone(attempt=ATTEMPT_BEFORE, participants=())]
    trio = make_trio(view=lambda: views[-1])
    served = in_thread(lambda: trio.serve(edge_key()))
    dialled = in_thread(lambda: trio.dial(edge_key(), ring_hello()))
    eventually(lambda: trio.relay_listener.statistics().connections_now == 2)
    views.append(everyone())
    connection = dialled()
    assert isinstance(connection, PeerSocket)
    assert served() is None


ATTEMPT_BEFORE = 1


def test_edge_ends_some_time_after_its_attempt(make_trio: MakeTrio) -> None:
    views = [everyone()]
    times = RelayTimes(DEADLINE_S, DEADLINE_S, grace_s=0.05, idle_s=DEADLINE_S)
    trio = make_trio(view=lambda: views[-1], times=times)
    at_ann, _ = trio.connect()
    views.append(everyone(attempt=3))
    with pytest.raises(RelayFault) as caught:
        at_ann.receive_into(bytearray(1))
    assert caught.value.peer == RELAY.peer
    eventually(lambda: [reason for _, reason in trio.diary.ends] == ["this attempt is over"])


def test_third_edge_is_refused_at_both_ends(make_trio: MakeTrio) -> None:
    trio = make_trio(limits=RelayLimits(edges=1))
    at_ann, at_bob = trio.connect()
    key = fetch_key()
    assert refused_kind(in_thread(lambda: trio.serve(key))()) is Refusal.FULL
    at_ann.close()
    at_bob.close()
    eventually(lambda: trio.server.totals().edges_now == 0)
    # The other end of the refused edge hears the same, although there is room now.
    call = in_thread(lambda: trio.dial(key, {"purpose": "echo"}))
    assert refused_kind(call()) is Refusal.FULL


def test_kept_edge_ends_when_another_pair_needs_its_place(make_trio: MakeTrio) -> None:
    views = [everyone()]
    times = RelayTimes(DEADLINE_S, DEADLINE_S, grace_s=0.05, idle_s=DEADLINE_S)
    trio = make_trio(view=lambda: views[-1], times=times, limits=RelayLimits(edges=1))
    at_ann, at_bob = trio.connect()
    views.append(everyone(step=STEP + 1, attempt=0))
    at_ann.send_all(b"the next reduce")
    at_bob.receive_into(bytearray(15))
    views.append(everyone(step=STEP + 2, attempt=0, participants=()))
    served = in_thread(lambda: trio.serve(fetch_key()))
    trio.dial(fetch_key(), {"purpose": "echo"})
    assert served() is None
    with pytest.raises(RelayFault):
        at_bob.receive_into(bytearray(1))
    eventually(lambda: len(trio.diary.ends) == 1)
    assert trio.diary.ends[0][1] == "it was idle, and another pair needs its place"


def test_edge_ends_soon_after_the_days_bytes_are_used_up(make_trio: MakeTrio) -> None:
    trio = make_trio(limits=RelayLimits(bytes_per_day=32 * MIB))
    at_ann, at_bob = trio.connect()

    def send() -> None:
        while True:
            at_ann.send_all(bytes(64 << 10))

    def receive() -> None:
        while True:
            at_bob.receive_into(bytearray(64 << 10))

    running = in_thread(send), in_thread(receive)
    assert [isinstance(result(), RelayFault) for result in running] == [True, True]
    totals = trio.server.totals()
    assert 32 * MIB <= totals.today_bytes <= 1.1 * 32 * MIB
    assert trio.server.offered == 0
    eventually(lambda: len(trio.diary.ends) == 1)
    assert trio.diary.ends[0][1] == "this relay has used up its bytes of today"


def test_slow_reader_does_not_block_another_pair(make_trio: MakeTrio) -> None:
    trio = make_trio()
    slow_ann, _ = trio.connect(0)
    at_ann, at_bob = trio.connect(1)
    flood = in_thread(lambda: slow_ann.send_all(bytes(64 * MIB)))
    eventually(lambda: trio.server.totals().total_bytes > MIB)
    sent = in_thread(lambda: at_ann.send_all(bytes(32 * MIB)))
    at_bob.receive_into(bytearray(32 * MIB))
    assert sent() is None
    slow_ann.shutdown()
    assert isinstance(flood(), ShutDownHere)


def test_idle_edge_is_ended(make_trio: MakeTrio) -> None:
    times = RelayTimes(DEADLINE_S, DEADLINE_S, DEADLINE_S, idle_s=SHORT_S)
    _, at_bob = make_trio(times=times).connect()
    with pytest.raises(RelayFault):
        at_bob.receive_into(bytearray(1))


def test_relay_that_stops_is_blamed_and_not_the_neighbour(make_trio: MakeTrio) -> None:
    trio = make_trio()
    at_ann, at_bob = trio.connect()
    waiting = [in_thread(partial(each.receive_into, bytearray(1))) for each in (at_ann, at_bob)]
    trio.server.__exit__()
    for result in waiting:
        error = result()
        assert isinstance(error, RelayFault)
        assert error.peer == RELAY.peer


def test_neighbours_own_refusal_is_the_neighbours(make_trio: MakeTrio) -> None:
    trio = make_trio()
    served = in_thread(lambda: trio.serve(fetch_key()))
    with pytest.raises(PeerUnreachable) as caught:
        trio.dial(fetch_key(), {"purpose": "unknown"})
    assert not isinstance(caught.value, RelayFault)
    assert caught.value.peer == BOB.peer
    assert isinstance(served(), RelayFault)


def test_relay_that_nobody_listens_at_is_blamed(make_trio: MakeTrio) -> None:
    trio = make_trio(relay_at=lambda address: ("127.0.0.1", 1))
    with pytest.raises(RelayUnreachable) as caught:
        trio.dial(edge_key(), ring_hello())
    assert caught.value.peer == RELAY.peer


def test_malformed_requests_are_refused(make_trio: MakeTrio) -> None:
    trio = make_trio()
    route = trio.route(BOB, edge_key(dialler=CAI.peer))
    with pytest.raises((RemoteProtocolError, PeerError)):
        trio.dial(route.key, ring_hello())
    assert trio.diary.joins == []


def test_repeated_request_replaces_the_earlier_one(make_trio: MakeTrio) -> None:
    trio = make_trio()
    first = in_thread(lambda: trio.dial(edge_key(), ring_hello()))
    eventually(lambda: trio.relay_listener.statistics().connections_now == 1)
    second = in_thread(lambda: trio.dial(edge_key(), ring_hello()))
    assert refused_kind(first()) is Refusal.OTHER
    trio.serve(edge_key())
    assert isinstance(second(), PeerSocket)
