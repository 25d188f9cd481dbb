"""Every peer soon names the neighbour at fault, and no thread is left running."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from p2ptrain.dataplane import Uplink
from p2ptrain.encoding import pack
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ring import SCHEDULES, ReduceStatistics, Schedule, Segment, lane, watch
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.wire import HEADER_BYTES, Header, Kind, encode_blame
from tests.ring.conftest import Build, Outcome, Ring

HOSTILE = 1
"""The peer that misbehaves. In rings of three or more it is between two honest peers."""

SOON_S = 25.0
"""Time limit in seconds within which peers must notice a fault. It is less than half of the time
after which they suspect a silent peer.
"""

Frame = tuple[Header, bytes]


def first_frame(ring: Ring, scale: float = 1.0) -> Frame:
    """Return the first segment that the hostile peer must send to its neighbour. All its codes are
    zero, and the scale of its first block is `scale`.
    """
    request = ring.requests[HOSTILE]
    segment: Segment = request.plan().lanes[0][HOSTILE][0]
    return frame_of(ring, Kind.SUM, segment, scale)


def frame_of(ring: Ring, kind: Kind, segment: Segment, scale: float = 1.0) -> Frame:
    request = ring.requests[HOSTILE]
    body = bytearray(segment.bytes)
    body[:4] = struct.pack("<f", scale)
    header = Header(
        kind, 0, segment.part, segment.index, segment.bytes, request.step, request.attempt,
        request.tag(),
    )  # fmt: skip
    return header, bytes(body)


def altered(**fields: Any) -> Callable[[Ring], bytes]:
    def frame(ring: Ring) -> bytes:
        header, body = first_frame(ring)
        return replace(header, **fields).encode() + body

    return frame


def with_scale(scale: float) -> Callable[[Ring], bytes]:
    def frame(ring: Ring) -> bytes:
        header, body = first_frame(ring, scale)
        return header.encode() + body

    return frame


def overwhelming(ring: Ring) -> bytes:
    """Return a segment with valid scales and with codes that bring the sum out of range."""
    header, body = first_frame(ring, 2.0**94)
    return header.encode() + body[:4] + bytes([127]) * (len(body) - 4)


def abort_with(body: bytes, length: int | None = None) -> Callable[[Ring], bytes]:
    def frame(ring: Ring) -> bytes:
        header, _ = first_frame(ring)
        size = len(body) if length is None else length
        return replace(header, kind=Kind.ABORT, length=size).encode() + body

    return frame


def unknown_kind(ring: Ring) -> bytes:
    header, body = first_frame(ring)
    return b"\x09" + header.encode()[1:] + body


def noise(ring: Ring) -> bytes:
    return np.random.default_rng(0).bytes(5000)


def behind_the_last(ring: Ring) -> bytes:
    header, body = first_frame(ring)
    return replace(header, kind=Kind.DONE, length=0).encode() + header.encode() + body


def twice(ring: Ring) -> bytes:
    header, body = first_frame(ring)
    return 2 * (header.encode() + body)


def cut_short(ring: Ring) -> bytes:
    header, body = first_frame(ring)
    return header.encode() + body[: len(body) // 2]


BAD_FRAMES = {
    "a NaN scale": with_scale(float("nan")),
    "an infinite scale": with_scale(float("inf")),
    "a negative scale": with_scale(-1.0),
    "sums out of range": overwhelming,
    "another attempt": altered(attempt=0),
    "another step": altered(step=8),
    "another reduce": altered(tag=b"12345678"),
    "another stream": altered(stream=1),
    "a byte too long": altered(length=4001),
    "an oversize frame": altered(length=2**32 - 1),
    "no length": altered(length=0),
    "a later segment": altered(index=1),
    "a segment that does not exist": altered(index=10**6),
    "a part that does not exist": altered(part=99),
    "a part that another peer sends": altered(part=2),
    "a mean before its sum": altered(kind=Kind.MEAN, part=2),
    "a wait with a body": altered(kind=Kind.WAITING),
    "a last frame with a body": altered(kind=Kind.DONE),
    "a frame after the last one": behind_the_last,
    "a segment twice": twice,
    "an unknown kind": unknown_kind,
    "noise": noise,
    "a frame cut short": cut_short,
    "only an end of stream": lambda ring: b"",
    "an oversize abort": abort_with(b"", length=1 << 30),
    "a garbled abort": abort_with(b"\xc1garbage"),
    "an abort that names an unknown peer": abort_with(
        encode_blame(Blame((PeerId("nobody"),), "it was nobody"))
    ),
    "an abort with other fields": abort_with(pack({"reason": "because"})),
}


def reason_of(outcome: Outcome) -> str:
    assert isinstance(outcome, ReduceAborted)
    return outcome.reason


def named(ring: Ring, *numbers: int) -> tuple[PeerId, ...]:
    return tuple(ring.peers[number] for number in numbers)


def sends_then_leaves(frame: Callable[[Ring], bytes]) -> Callable[[Ring, int], None]:
    def script(ring: Ring, me: int) -> None:
        for sock in ring.next(me):
            sock.send_all(frame(ring))
            sock.shutdown()

    return script


@pytest.mark.parametrize("fault", BAD_FRAMES)
def test_sender_of_a_bad_frame_is_named(build: Build, fault: str) -> None:
    ring = build((1, 1, 1), 25_000, streams=1)
    outcomes = ring.run({HOSTILE: sends_then_leaves(BAD_FRAMES[fault])})
    assert set(outcomes) == {0, 2}
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert (outcome.step, outcome.attempt) == (7, 1)
        assert outcome.suspects == named(ring, HOSTILE)
    assert reason_of(outcomes[0]) == reason_of(outcomes[2])
    assert ring.took_s < SOON_S


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -0.0])
def test_sender_of_a_bad_mean_is_named(build: Build, scale: float) -> None:
    """There are two peers. The hostile peer sends a correct sum, then a bad mean."""

    def script(ring: Ring, me: int) -> None:
        (sock,) = ring.next(me)
        header, body = first_frame(ring)
        sock.send_all(header.encode() + body)
        segment = ring.requests[me].plan().lanes[0][0][0]
        header, mean = frame_of(ring, Kind.MEAN, segment, scale)
        sock.receive_into(bytearray(HEADER_BYTES))  # every input of the mean has been sent
        sock.send_all(header.encode() + mean)

    ring = build((1, 1), 500, streams=1)
    (outcome,) = ring.run({HOSTILE: script}).values()
    assert isinstance(outcome, ReduceAborted)
    assert outcome.suspects == named(ring, HOSTILE)
    assert "scale" in outcome.reason


def stands_still(ring: Ring, me: int) -> None:
    """Stay connected without reading or sending, like a stopped process."""


@pytest.mark.parametrize("peers", [2, 3, 5])
@pytest.mark.parametrize("numel", [5000, 1_000_000], ids=["fits-in-buffers", "blocks-senders"])
def test_stalled_peer_is_named_by_all(build: Build, peers: int, numel: int) -> None:
    silence_s = 1.0  # Longer than a busy machine delays a runnable thread.
    ring = build((1,) * peers, numel, silence_s=silence_s)
    outcomes = ring.run({HOSTILE: stands_still})
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == named(ring, HOSTILE)
    assert ring.took_s < silence_s + SOON_S


@pytest.mark.parametrize("patient_s", [1.2, 10.0], ids=["noticed", "not-noticed"])
def test_aborted_peer_reports_a_silence_that_it_has_noticed_itself(
    build: Build, patient_s: float
) -> None:
    """The peer with the shortest time limit aborts the reduce. Another peer reports the silence as
    its own observation if the silence has lasted for more than half of that peer's own time limit.
    """
    ring = build((1,) * 4, 5000, schedule="direct", silence_s=1.0)
    for me in range(1, 4):
        ring.requests[me] = replace(ring.requests[me], silence_s=patient_s)
    outcomes = ring.run({HOSTILE: stands_still})
    found = {
        me: (outcome.suspects, outcome.heard)
        for me, outcome in outcomes.items()
        if isinstance(outcome, ReduceAborted)
    }
    heard = patient_s > 2.0
    silent = named(ring, HOSTILE)
    assert found == {0: (silent, False), 2: (silent, heard), 3: (silent, heard)}


@pytest.mark.parametrize("transport", ["pair", "tcp", "tls"])
@pytest.mark.parametrize("peers", [2, 3, 4])
def test_peer_that_dies_during_a_reduce_is_named_at_once(
    build: Build,
    request: pytest.FixtureRequest,
    transport: str,
    peers: int,
) -> None:
    connect = {} if transport == "pair" else {"connect": request.getfixturevalue(transport)}
    ring = build((1,) * peers, 200_000, **connect)
    ring.limits = {me: Uplink(20_000, burst_bytes=0) for me in range(peers)}

    def kill() -> None:
        never = threading.Event()
        while ring.reduce(0).progress()[0] == 0:
            never.wait(0.005)
        for sock in ring.sockets(HOSTILE):
            sock.shutdown()

    outcomes = ring.run(meanwhile=kill)
    dead = outcomes.pop(HOSTILE)
    assert isinstance(dead, ReduceAborted)
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == named(ring, HOSTILE)
    assert ring.took_s < SOON_S


@pytest.mark.parametrize("poisoned", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_peer_with_non_finite_values_names_itself(
    build: Build, poisoned: int, value: float
) -> None:
    ring = build((1, 1, 1), 25_000)
    ring.locals[poisoned][12_345] = value
    for outcome in ring.run().values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == named(ring, poisoned)
        assert "not finite" in outcome.reason


def test_single_peer_with_non_finite_values_names_itself_too(build: Build) -> None:
    ring = build((1,), 1000)
    ring.locals[0][999] = np.nan
    (outcome,) = ring.run().values()
    assert isinstance(outcome, ReduceAborted)
    assert outcome.suspects == named(ring, 0)


@pytest.mark.parametrize("suspects", [(), (2,)])
def test_abort_by_the_caller_reaches_all_peers(build: Build, suspects: tuple[int, ...]) -> None:
    ring = build((1, 1, 1, 1), 200_000)
    ring.limits = {me: Uplink(20_000, burst_bytes=0) for me in range(4)}
    whom = named(ring, *suspects)
    outcomes = ring.run(meanwhile=lambda: ring.reduce(0).abort("the ledger has moved on", whom))
    for me, outcome in outcomes.items():
        assert isinstance(outcome, ReduceAborted)
        # A peer that the abort accuses does not name itself.
        assert outcome.suspects == tuple(peer for peer in whom if peer != ring.peers[me])
        assert outcome.reason == "the ledger has moved on"
    assert ring.took_s < SOON_S


def test_aborting_peer_does_not_wait_for_neighbours_that_have_not_started(build: Build) -> None:
    """Neighbours that are still connecting to other peers do not read or send anything."""
    ring = build((1, 1, 1), 5000)
    ring.grace_s = 30.0
    ring.reduce(0).abort("a participant is down", (ring.peers[1],))
    outcomes = ring.run(hostile={1: lambda ring, me: None, 2: lambda ring, me: None})
    assert reason_of(outcomes[0]) == "a participant is down"
    assert ring.took_s < SOON_S


def test_reduce_aborted_before_its_start_fails_with_the_first_reason(build: Build) -> None:
    ring = build((1, 1, 1), 5000)
    for me in range(3):
        ring.reduce(me).abort("never mind")
        ring.reduce(me).abort("and again")
    assert {reason_of(outcome) for outcome in ring.run().values()} == {"never mind"}


def test_peers_with_different_requests_abort(build: Build) -> None:
    """Peer 2 uses different weights. No peer may return a mean; it does not matter which peer is
    blamed.
    """
    ring = build((1, 1, 1), 5000)
    ring.requests[2] = replace(ring.requests[2], weights=(1, 1, 2))
    for outcome in ring.run().values():
        assert isinstance(outcome, ReduceAborted)


def test_abort_message_is_shortened_and_made_printable(build: Build) -> None:
    lie = pack({"suspects": ["peer-0"], "reason": "\x1b[31mred\n" + "x" * 500})
    ring = build((1, 1, 1), 5000, streams=1)
    outcomes = ring.run({HOSTILE: sends_then_leaves(abort_with(lie))})
    reason = reason_of(outcomes[2])
    assert reason.startswith("?[31mred?xxx")
    assert len(reason) == 200


def test_process_that_was_suspended_does_not_blame_anyone(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clocks jump in the middle of the reduce, as if the machine had been suspended."""
    leap_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + leap_s)
    for each in (lane, watch):
        monkeypatch.setattr(each, "time", clock)
    ring = build((1, 1, 1), 200_000)
    ring.limits = {me: Uplink(400_000, burst_bytes=0) for me in range(3)}

    def stop() -> None:
        nonlocal leap_s
        never = threading.Event()
        while ring.reduce(0).progress()[0] == 0:
            never.wait(0.005)
        leap_s = 10 * ring.requests[0].silence_s

    outcomes = ring.run(meanwhile=stop)
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_at_the_deadline_finished_peers_name_the_unfinished_one(
    build: Build, schedule: Schedule
) -> None:
    """The unfinished peer sends all the time, but too slowly. If no peer named it, another attempt
    with the same members would fail too.
    """
    ring = build(
        (1, 1, 1, 1), 100_000, schedule=schedule, deadline_s=4.0, silence_s=4.0, streams=1
    )  # fmt: skip
    ring.limits = {HOSTILE: Uplink(5000, burst_bytes=0)}
    for me, outcome in ring.run().items():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == (named(ring, HOSTILE) if me != HOSTILE else ())
        assert "deadline" in outcome.reason
