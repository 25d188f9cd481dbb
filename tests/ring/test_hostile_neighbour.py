"""With every schedule, all peers soon identify a hostile neighbour and clean up after it."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from p2ptrain.dataplane import PeerSocket
from p2ptrain.errors import PeerError, ReduceAborted
from p2ptrain.ring import SCHEDULES, Schedule
from p2ptrain.ring.wait_for import NEWS_STALLS, STALL_SILENCES
from p2ptrain.ring.wire import Header, Kind
from tests.ring.conftest import Build, Ring

HOSTILE = 1
PEERS = 4
SILENCE_S = 0.4
STALL_S = STALL_SILENCES * SILENCE_S
ABORT_S = 25.0

Script = Callable[["Hostile"], None]


@dataclass
class Hostile:
    """The hostile peer of a ring, the neighbour to which it must send the first segment, and the
    correct bytes of that segment.

    The segment contains only the hostile peer's own contribution.
    """

    ring: Ring
    header: Header
    body: bytes
    victim: PeerSocket

    @classmethod
    def of(cls, ring: Ring) -> Hostile:
        request = ring.requests[HOSTILE]
        plan = request.plan()
        part = next(
            part for part, each in enumerate(plan.routes) if not (each.sums_from or each.owned)
        )
        segment = plan.lanes[0][part][0]
        header = Header(Kind.SUM, 0, part, 0, segment.bytes, 7, 1, request.tag())
        owed = plan.routes[part].sum_to
        assert owed is not None
        to = ring.peers[owed]
        return cls(ring, header, bytes(segment.bytes), ring.links(HOSTILE)[to][0])

    def said(self, words: bytes, *sockets: PeerSocket) -> list[PeerSocket]:
        """Send `words`, read the answers, and return the connections that are still open."""
        return [each for each in sockets if self._moves(each, words)]

    def _moves(self, sock: PeerSocket, words: bytes) -> bool:
        place = memoryview(bytearray(1 << 16))
        try:
            sock.send_some(memoryview(words))
            while sock.receive_some(place):
                pass
        except PeerError:
            return False
        return True


def nothing(hostile: Hostile) -> None:
    """Stay connected without reading or sending, like a stopped process."""


def frame(**fields: Any) -> Script:
    def script(hostile: Hostile) -> None:
        hostile.victim.send_all(replace(hostile.header, **fields).encode() + hostile.body)

    return script


def scale(value: float) -> Script:
    def script(hostile: Hostile) -> None:
        body = struct.pack("<f", value) + hostile.body[4:]
        hostile.victim.send_all(hostile.header.encode() + body)

    return script


def garbage(hostile: Hostile) -> None:
    hostile.victim.send_all(np.random.default_rng(0).bytes(5000))


def half_a_frame(hostile: Hostile) -> None:
    hostile.victim.send_all(hostile.header.encode() + hostile.body[:100])
    for sock in hostile.ring.sockets(HOSTILE):
        sock.finish_sending()


def waits(*for_whom: Callable[[Hostile], int]) -> Script:
    """Return a script that reads everything and sends no segment. It keeps claiming to wait for
    these peers, one after the other.
    """

    def script(hostile: Hostile) -> None:
        header = replace(hostile.header, kind=Kind.WAITING, part=HOSTILE, length=0)
        left, never = hostile.ring.sockets(HOSTILE), threading.Event()
        waits = cycle([replace(header, index=each(hostile)).encode() for each in for_whom])
        while left:
            left = hostile.said(next(waits), *left)
            never.wait(SILENCE_S / 8)

    return script


def itself(hostile: Hostile) -> int:
    return HOSTILE


def a_neighbour(hostile: Hostile) -> int:
    request = hostile.ring.requests[HOSTILE]
    return request.peers.index(request.neighbours[0])


def crumbs(hostile: Hostile) -> None:
    """Send one byte at a time, with pauses. The peer is never silent and never finishes."""
    others = [sock for sock in hostile.ring.sockets(HOSTILE) if sock is not hostile.victim]
    never, at = threading.Event(), 0
    whole = hostile.header.encode() + hostile.body
    while hostile.said(whole[at : at + 1], hostile.victim) and at < len(whole):
        others = hostile.said(b"", *others)
        never.wait(SILENCE_S / 8)
        at += 1


def slow_header(hostile: Hostile) -> None:
    """Send the bytes of a header as slowly as `crumbs` does, but no body. Then claim that the
    hostile peer waits for itself.
    """
    hostile.body = b""
    crumbs(hostile)
    waits(itself)(hostile)


def what_comes_later(hostile: Hostile) -> None:
    """Send the second segment, which the receiver cannot use before the first segment. Then send
    nothing.
    """
    request = hostile.ring.requests[HOSTILE]
    plan = request.plan()
    for part, route in enumerate(plan.routes):
        if not (route.sums_from or route.owned):
            second = plan.lanes[0][part][1]
            header = replace(hostile.header, part=part, index=1, length=second.bytes)
            assert route.sum_to is not None
            to = request.peers[route.sum_to]
            hostile.ring.links(HOSTILE)[to][0].send_all(header.encode())


@dataclass(frozen=True)
class Attack:
    script: Script
    words: str
    """A part of the reason that every honest peer gives."""
    within_s: float = 0.0
    """The longest time in seconds until a peer notices."""


ATTACKS = {
    "stalls": Attack(nothing, "it did not send anything for 0.4 s", SILENCE_S),
    "sends crumbs": Attack(crumbs, "this node's neighbour in the exchange: it ", SILENCE_S),
    "sends crumbs of a header": Attack(
        slow_header, "this node's neighbour in the exchange: it ", SILENCE_S
    ),
    "claims to wait for itself": Attack(waits(itself), "has not sent its segments", STALL_S),
    "falsely claims to wait": Attack(
        waits(a_neighbour), "it claims to wait for segments that it has received", STALL_S
    ),
    "keeps changing whom it claims to wait for": Attack(
        waits(itself, a_neighbour), "in the exchange: it ", (NEWS_STALLS + 1) * STALL_S
    ),
    "begins with a later segment": Attack(what_comes_later, "in the exchange: it ", STALL_S),
    "sends garbage": Attack(garbage, "unknown kind"),
    "leaves in the middle of a frame": Attack(
        half_a_frame, "the peer closed the connection", SILENCE_S
    ),
    "sends a NaN scale": Attack(scale(float("nan")), "contains an invalid scale or value"),
    "sends an infinite scale": Attack(scale(float("inf")), "contains an invalid scale or value"),
    "exceeds the bound": Attack(scale(1.0), "its magnitude is 127; the run allows"),
    "sends a wrong length": Attack(frame(length=77), "a frame has 77 bytes"),
    "replays an old attempt": Attack(frame(attempt=0), "a frame is for step 7, attempt 0"),
}


CASES = [
    (schedule, transport, attack)
    for schedule in SCHEDULES
    for transport in ("tls", "plaintext")
    for attack in ATTACKS
    if transport == "tls" or not ATTACKS[attack].within_s  # a slow attack runs only over TLS
]


def open_sockets() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("schedule", "transport", "attack"), CASES)
def test_all_peers_name_a_hostile_neighbour_and_clean_up(
    build: Build, request: pytest.FixtureRequest, schedule: Schedule, transport: str, attack: str
) -> None:
    connect = request.getfixturevalue(transport)
    ring = build(
        (1,) * PEERS, 24_000, schedule=schedule, connect=connect, streams=1,
        silence_s=SILENCE_S, influence_max=0.5,
    )  # fmt: skip
    ring.locals = [ring.theta - np.float32(0.1) for _ in ring.peers]
    ends, before = 2 * sum(map(len, ring.edges.values())), open_sockets()
    expected = ATTACKS[attack]
    outcomes = ring.run({HOSTILE: lambda ring, me: expected.script(Hostile.of(ring))})
    assert set(outcomes) == {0, 2, 3}
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert (outcome.step, outcome.attempt) == (7, 1)
        assert outcome.suspects == (ring.peers[HOSTILE],), outcome.reason
        assert expected.words in outcome.reason
    assert ring.took_s < expected.within_s + ABORT_S
    assert threads_left() == []
    assert open_sockets() <= before - ends


def threads_left(patience_s: float = 10.0) -> list[str]:
    """Return the threads of reduces and connections that have not ended after `patience_s`."""
    ends = time.monotonic() + patience_s
    while True:
        names = [thread.name for thread in threading.enumerate()]
        left = [name for name in names if name.startswith("ring") or name == "dataplane"]
        if not left or time.monotonic() > ends:
            return left
        threading.Event().wait(0.01)
