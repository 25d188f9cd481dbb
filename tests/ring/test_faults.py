"""A neighbour at fault is named, by everybody, soon; and nothing is left running."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from p2ptrain.dataplane import Uplink
from p2ptrain.encoding import pack
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ring import SCHEDULES, ReduceReport, Segment, abort, lane, watch
from p2ptrain.ring.blame import Blame
from p2ptrain.ring.wire import HEADER_BYTES, Header, Kind, encode_blame

HOSTILE = 1
"""The peer that misbehaves, in rings of three and more: between two honest ones."""

SOON_S = 25.0
"""Less than half of what it takes here until what is not told is found out."""

Frame = tuple[Header, bytes]


def first_frame(ring: object, scale: float = 1.0) -> Frame:
    """What the hostile peer owes the next one first, with codes of zero and `scale`."""
    request = ring.requests[HOSTILE]
    segment: Segment = request.plan().lanes[0][HOSTILE][0]
    return frame_of(ring, Kind.SUM, segment, scale)


def frame_of(ring: object, kind: Kind, segment: Segment, scale: float = 1.0) -> Frame:
    request = ring.requests[HOSTILE]
    body = bytearray(segment.bytes)
    body[:4] = struct.pack("<f", scale)
    header = Header(
        kind, 0, segment.part, segment.index, segment.bytes, request.step, request.attempt,
        request.tag(),
    )  # fmt: skip
    return header, bytes(body)


def altered(**fields: object) -> Callable[[object], bytes]:
    def frame(ring: object) -> bytes:
        header, body = first_frame(ring)
        return replace(header, **fields).encode() + body

    return frame


def with_scale(scale: float) -> Callable[[object], bytes]:
    def frame(ring: object) -> bytes:
        header, body = first_frame(ring, scale)
        return header.encode() + body

    return frame


def overwhelming(ring: object) -> bytes:
    """Scales that a codec may write, and codes that take the sum out of range."""
    header, body = first_frame(ring, 2.0**94)
    return header.encode() + body[:4] + bytes([127]) * (len(body) - 4)


def abort_with(body: bytes, length: int | None = None) -> Callable[[object], bytes]:
    def frame(ring: object) -> bytes:
        header, _ = first_frame(ring)
        size = len(body) if length is None else length
        return replace(header, kind=Kind.ABORT, length=size).encode() + body

    return frame


def unknown_kind(ring: object) -> bytes:
    header, body = first_frame(ring)
    return b"\x09" + header.encode()[1:] + body


def noise(ring: object) -> bytes:
    return np.random.default_rng(0).bytes(5000)


def behind_the_last(ring: object) -> bytes:
    header, body = first_frame(ring)
    return replace(header, kind=Kind.DONE, length=0).encode() + header.encode() + body


def twice(ring: object) -> bytes:
    header, body = first_frame(ring)
    return 2 * (header.encode() + body)


def cut_short(ring: object) -> bytes:
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
    "a segment that is none": altered(index=10**6),
    "a part that is none": altered(part=99),
    "a part of another's": altered(part=2),
    "a mean before its sum": altered(kind=Kind.MEAN, part=2),
    "a wait with a body": altered(kind=Kind.WAITING),
    "a last frame with a body": altered(kind=Kind.DONE),
    "a frame behind the last": behind_the_last,
    "a segment twice": twice,
    "an unknown kind": unknown_kind,
    "noise": noise,
    "a frame cut short": cut_short,
    "nothing but an end": lambda ring: b"",
    "an oversize abort": abort_with(b"", length=1 << 30),
    "a garbled abort": abort_with(b"\xc1garbage"),
    "an abort that names a stranger": abort_with(
        encode_blame(Blame((PeerId("nobody"),), "it was nobody"))
    ),
    "an abort with other fields": abort_with(pack({"reason": "because"})),
}


def named(ring: object, *numbers: int) -> tuple[PeerId, ...]:
    return tuple(ring.peers[number] for number in numbers)


def sends_then_leaves(frame: Callable[[object], bytes]) -> Callable[[object, int], None]:
    def script(ring: object, me: int) -> None:
        for sock in ring.next(me):
            sock.send_all(frame(ring))
            sock.shutdown()

    return script


@pytest.mark.parametrize("fault", BAD_FRAMES)
def test_a_bad_frame_names_who_sent_it(build: Callable, fault: str) -> None:
    ring = build((1, 1, 1), 25_000, streams=1)
    outcomes = ring.run({HOSTILE: sends_then_leaves(BAD_FRAMES[fault])})
    assert set(outcomes) == {0, 2}
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert (outcome.step, outcome.attempt) == (7, 1)
        assert outcome.suspects == named(ring, HOSTILE)
    assert outcomes[0].reason == outcomes[2].reason
    assert ring.took_s < SOON_S


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -0.0])
def test_a_bad_mean_names_who_sent_it(build: Callable, scale: float) -> None:
    """In a ring of two: the hostile peer's sum is fine, the mean that it makes is not."""

    def script(ring: object, me: int) -> None:
        (sock,) = ring.next(me)
        header, body = first_frame(ring)
        sock.send_all(header.encode() + body)
        segment = ring.requests[me].plan().lanes[0][0][0]
        header, mean = frame_of(ring, Kind.MEAN, segment, scale)
        sock.receive_into(bytearray(HEADER_BYTES))  # what the mean is made of has been sent
        sock.send_all(header.encode() + mean)

    ring = build((1, 1), 500, streams=1)
    (outcome,) = ring.run({HOSTILE: script}).values()
    assert isinstance(outcome, ReduceAborted)
    assert outcome.suspects == named(ring, HOSTILE)
    assert "scale" in outcome.reason


def stands_still(ring: object, me: int) -> None:
    """Connected, but neither reads nor sends: a stopped process."""


@pytest.mark.parametrize("peers", [2, 3, 5])
@pytest.mark.parametrize("numel", [5000, 1_000_000], ids=["fits-in-buffers", "blocks-senders"])
def test_a_peer_that_stands_still_is_named_by_all(build: Callable, peers: int, numel: int) -> None:
    silence_s = 1.0  # Longer than this machine keeps a thread waiting that has something to do.
    ring = build((1,) * peers, numel, silence_s=silence_s)
    outcomes = ring.run({HOSTILE: stands_still})
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == named(ring, HOSTILE)
    assert ring.took_s < silence_s + SOON_S


@pytest.mark.parametrize("patient_s", [1.2, 10.0], ids=["noticed", "not-noticed"])
def test_an_abort_confirms_what_a_peer_has_noticed_itself(
    build: Callable, patient_s: float
) -> None:
    """The first peer to lose patience ends the reduce. Others accuse the silent peer, too, if it
    has been silent for more than half of their own patience.
    """
    ring = build((1,) * 4, 5000, schedule="direct", silence_s=1.0)
    for me in range(1, 4):
        ring.requests[me] = replace(ring.requests[me], silence_s=patient_s)
    outcomes = ring.run({HOSTILE: stands_still})
    found = {me: (outcome.suspects, outcome.heard) for me, outcome in outcomes.items()}
    heard = patient_s > 2.0
    silent = named(ring, HOSTILE)
    assert found == {0: (silent, False), 2: (silent, heard), 3: (silent, heard)}


@pytest.mark.parametrize("transport", ["pair", "tcp", "tls"])
@pytest.mark.parametrize("peers", [2, 3, 4])
def test_a_peer_that_dies_in_the_middle_is_named_by_all_at_once(
    build: Callable,
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
def test_a_peer_whose_own_numbers_are_bad_names_itself(
    build: Callable, poisoned: int, value: float
) -> None:
    ring = build((1, 1, 1), 25_000)
    ring.locals[poisoned][12_345] = value
    for outcome in ring.run().values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == named(ring, poisoned)
        assert "not finite" in outcome.reason


def test_a_ring_of_one_names_itself_too(build: Callable) -> None:
    ring = build((1,), 1000)
    ring.locals[0][999] = np.nan
    (outcome,) = ring.run().values()
    assert isinstance(outcome, ReduceAborted)
    assert outcome.suspects == named(ring, 0)


@pytest.mark.parametrize("suspects", [(), (2,)])
def test_an_abort_from_outside_goes_round(build: Callable, suspects: tuple[int, ...]) -> None:
    ring = build((1, 1, 1, 1), 200_000)
    ring.limits = {me: Uplink(20_000, burst_bytes=0) for me in range(4)}
    whom = named(ring, *suspects)
    outcomes = ring.run(meanwhile=lambda: ring.reduce(0).abort("the ledger has moved on", whom))
    for me, outcome in outcomes.items():
        assert isinstance(outcome, ReduceAborted)
        # To be named by others is no admission.
        assert outcome.suspects == tuple(peer for peer in whom if peer != ring.peers[me])
        assert outcome.reason == "the ledger has moved on"
    assert ring.took_s < SOON_S


def test_who_leaves_does_not_wait_for_neighbours_that_have_not_begun(
    build: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may still be connecting, and say nothing for as long as others of theirs are awaited."""
    monkeypatch.setattr(abort, "GRACE_S", 30.0)
    ring = build((1, 1, 1), 5000)
    ring.reduce(0).abort("a participant is down", (ring.peers[1],))
    outcomes = ring.run(hostile={1: lambda ring, me: None, 2: lambda ring, me: None})
    assert outcomes[0].reason == "a participant is down"
    assert ring.took_s < SOON_S


def test_an_abort_before_the_start_is_heeded(build: Callable) -> None:
    ring = build((1, 1, 1), 5000)
    for me in range(3):
        ring.reduce(me).abort("never mind")
        ring.reduce(me).abort("and again")
    assert {outcome.reason for outcome in ring.run().values()} == {"never mind"}


def test_peers_that_mean_different_reduces_find_out(build: Callable) -> None:
    """Peer 2 takes other weights for granted: nobody averages, whoever is blamed for it."""
    ring = build((1, 1, 1), 5000)
    ring.requests[2] = replace(ring.requests[2], weights=(1, 1, 2))
    for outcome in ring.run().values():
        assert isinstance(outcome, ReduceAborted)


def test_words_of_an_abort_are_cut_and_made_printable(build: Callable) -> None:
    lie = pack({"suspects": ["peer-0"], "reason": "\x1b[31mred\n" + "x" * 500})
    ring = build((1, 1, 1), 5000, streams=1)
    outcomes = ring.run({HOSTILE: sends_then_leaves(abort_with(lie))})
    reason = outcomes[2].reason
    assert reason.startswith("?[31mred?xxx")
    assert len(reason) == 200


def test_a_process_that_was_stopped_for_long_blames_nobody_for_it(
    build: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every clock leaps at once, as after a suspend, in the middle of the reduce."""
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
    assert all(isinstance(outcome, ReduceReport) for outcome in outcomes.values()), outcomes


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_at_the_deadline_those_that_are_done_name_the_one_that_they_wait_for(
    build: Callable, schedule: str
) -> None:
    """It sends all the time, but too slowly: with the same members no attempt would be better."""
    ring = build(
        (1, 1, 1, 1), 100_000, schedule=schedule, deadline_s=4.0, silence_s=4.0, streams=1
    )  # fmt: skip
    ring.limits = {HOSTILE: Uplink(5000, burst_bytes=0)}
    for me, outcome in ring.run().items():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == (named(ring, HOSTILE) if me != HOSTILE else ())
        assert "deadline" in outcome.reason
