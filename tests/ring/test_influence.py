"""No peer can move the mean farther than agreed. A peer that tries to do so is named, and an honest
peer is never named.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import CODECS, UNBOUNDED, CodecName
from p2ptrain.kernels import codec as codec_of
from p2ptrain.ring import (
    SCHEDULES,
    Difference,
    ReduceRequest,
    ReduceStatistics,
    Schedule,
    contribution_peak,
    routes,
)
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.blame import Blame, Blamed
from p2ptrain.ring.influence import Influence
from p2ptrain.ring.schedules import contributors, owner_of, route
from p2ptrain.ring.wire import Header, Kind
from tests.ring.conftest import Build, Ring

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
BOUND = 0.5


@every_schedule
@pytest.mark.parametrize("peers", [1, 2, 3, 4, 7, 16])
def test_owner_gets_each_contribution_once(schedule: Schedule, peers: int) -> None:
    for part in range(peers):
        owner = owner_of(schedule, peers, part)
        assert routes(schedule, peers, owner)[part].owned
        assert sorted(contributors(schedule, peers, part, owner)) == list(range(peers))
        for sender in range(peers):
            assert contributors(schedule, peers, part, sender)[0] == sender


@every_schedule
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("feedback", [False, True])
def test_peers_at_the_bound_are_never_accused(
    build: Build, schedule: Schedule, codec: CodecName, feedback: bool
) -> None:
    """All peers have every element at the bound, with the same sign, so the sums are as large as
    possible.
    """
    weights = (3, 1, 1000, 7, 20_000)
    ring = build(weights, 3000, schedule=schedule, codec=codec, block=64, influence_max=BOUND)
    sign = np.where(np.arange(3000) % 3, 1, -1).astype(np.float32)
    for local in ring.locals:
        local[:] = ring.theta - np.float32(BOUND * 0.9999) * sign
    if feedback:
        owed = codec_of(codec, 64).loss * BOUND * len(weights) * sign
        ring.residuals = {me: owed.astype(np.float32) for me in range(5)}
        ring.residuals_out = {me: np.empty(3000, np.float32) for me in range(5)}
    outcomes = ring.run()
    assert all(isinstance(outcome, ReduceStatistics) for outcome in outcomes.values()), outcomes
    limit = Influence(ring.requests[0], feedback=feedback).mean_max
    assert BOUND * 0.99 < codec_of(codec, 64).peak(ring.payloads[0], 3000) <= limit


@every_schedule
def test_peer_over_the_bound_names_itself(build: Build, schedule: Schedule) -> None:
    ring = build((1, 1, 1, 1), 25_000, schedule=schedule, influence_max=BOUND)
    for me, local in enumerate(ring.locals):
        local[:] = ring.theta + np.float32(BOUND * (1.05 if me == 2 else 0.5))
    outcomes = ring.run()
    for outcome in outcomes.values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == (ring.peers[2],)
        assert outcome.reason.endswith("farther than this run allows: by 0.525; the maximum is 0.5")


def test_single_peer_over_the_bound_names_itself_too(build: Build) -> None:
    ring = build((1,), 1000, influence_max=BOUND)
    ring.locals[0][:] = ring.theta
    ring.locals[0][999] += 2 * BOUND
    (outcome,) = ring.run().values()
    assert isinstance(outcome, ReduceAborted)
    assert outcome.suspects == ring.peers


PEERS, LIAR, BLOCK = 9, 4, 64
"""Nine peers form a grid of three rows. Some of them collect the sums of two other peers."""
EXTREME = {"int8": b"\x80" * 64, "int4": b"\x88" * 32}
"""A block of codes that the codec never writes: -128 and -8."""


def scale_of(codec: CodecName, peak: float) -> bytes:
    """Return the largest scale for which valid codes decode to at most `peak`."""
    if codec == "int4":
        return struct.pack("<f", peak / 7)[2:]
    return struct.pack("<f", np.nextafter(np.float32(peak) / np.float32(127), np.float32(0)))


def place_of_the_liar(schedule: Schedule, number: int) -> tuple[int, int]:
    """Return a part to which the liar only contributes, and the peer that receives the liar's sum
    for that part. Among the sums of that receiver, the liar's is the first if `number` is 0, and
    the last if it is -1.
    """
    for part in range(PEERS):
        ours = route(schedule, PEERS, LIAR, part)
        if ours.sum_to is not None and not ours.sums_from:
            others = route(schedule, PEERS, ours.sum_to, part).sums_from
            if others[number] == LIAR and (len(others) > 1 or schedule == "ring"):
                return part, ours.sum_to
    raise AssertionError("no part fits")


def sends(block: Callable[[float], bytes], part: int, to: int) -> Callable[[Ring, int], None]:
    """Return a script that sends one segment. `block` makes each block, given the bound on the
    sum.
    """

    def script(ring: Ring, me: int) -> None:
        request = ring.requests[me]
        segment = request.plan().lanes[0][part][0]
        limit = Influence(request, feedback=False).sum_max(part, ring.peers[me])
        body = block(limit) * ((segment.stop - segment.start) // BLOCK)
        header = Header(Kind.SUM, 0, part, 0, segment.bytes, 7, 1, request.tag())
        ring.links(me)[ring.peers[to]][0].send_all(header.encode() + body)

    return script


@every_schedule
@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("codec", EXTREME)
def test_sender_of_codes_that_exceed_the_scale_is_named(
    build: Build, schedule: Schedule, codec: CodecName, number: int
) -> None:
    """According to its scales, the liar's sum is at its bound. Its codes make the sum of the next
    honest peer exceed that peer's bound.
    """
    weights = tuple(5000 if peer == LIAR else 1 for peer in range(PEERS))
    ring = build(
        weights, 2 * BLOCK * PEERS, schedule=schedule, codec=codec, block=BLOCK, streams=1,
        influence_max=BOUND,
    )  # fmt: skip
    ring.locals = [ring.theta + np.float32(0.01) for _ in ring.peers]
    lie = sends(
        lambda limit: scale_of(codec, limit) + EXTREME[codec], *place_of_the_liar(schedule, number)
    )
    for outcome in ring.run({LIAR: lie}).values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == (ring.peers[LIAR],), outcome.reason


@every_schedule
@pytest.mark.parametrize("number", [0, -1])
def test_only_the_sender_of_an_overflowing_sum_is_named(
    build: Build, schedule: Schedule, number: int
) -> None:
    ring = build(
        (1,) * PEERS, 2 * BLOCK * PEERS, schedule=schedule, block=BLOCK, streams=1,
        influence_max=BOUND,
    )  # fmt: skip
    ring.locals = [ring.theta + np.float32(0.01) for _ in ring.peers]
    lie = sends(
        lambda limit: struct.pack("<f", 2.0**94) + b"\x7f" * BLOCK,
        *place_of_the_liar(schedule, number),
    )
    for outcome in ring.run({LIAR: lie}).values():
        assert isinstance(outcome, ReduceAborted)
        assert outcome.suspects == (ring.peers[LIAR],), outcome.reason


class Two:
    """The second peer in a ring of two with equal weights. Every element of its contribution is
    `own`. The first peer sends the second peer a sum or a mean with blocks of `scale` and `codes`.
    """

    def __init__(self, codec: CodecName, own: float, scale: bytes, codes: bytes) -> None:
        peers = (PeerId("first"), PeerId("second"))
        self.request = ReduceRequest(
            RunId("ab" * 32), 0, 0, peers, 1, (1, 1), 4 * BLOCK, codec_of(codec, BLOCK),
            influence_max=BOUND,
        )  # fmt: skip
        self.sent = (scale + codes) * 2
        theta = np.zeros(4 * BLOCK, np.float32)
        out = bytearray(self.request.codec.encoded_bytes(theta.size))
        self._arithmetic = Arithmetic(self.request, Difference(theta, theta - np.float32(own)), out)

    def blame(self, kind: Kind) -> Blame | None:
        owned = kind is Kind.SUM
        part = next(n for n, each in enumerate(self.request.plan().routes) if each.owned == owned)
        (segment,) = self.request.plan().lanes[0][part]
        self._arithmetic.place(segment)[:] = self.sent
        try:
            if owned:
                self._arithmetic.add(segment, self.request.peers[0], last=True)
            else:
                self._arithmetic.accept(segment, self.request.peers[0])
        except Blamed as exc:
            return exc.blame
        return None


@pytest.mark.parametrize("codec", EXTREME)
def test_sender_of_a_mean_beyond_the_bound_is_named(codec: CodecName) -> None:
    codes = {"int8": b"\x81" * BLOCK, "int4": b"\x99" * (BLOCK // 2)}[codec]
    at_bound, near = scale_of(codec, BOUND), scale_of(codec, BOUND * 0.86)
    assert Two(codec, 0.0, at_bound, codes).blame(Kind.MEAN) is None
    assert Two(codec, 0.0, near, EXTREME[codec]).blame(Kind.MEAN) is None
    blame = Two(codec, 0.0, at_bound, EXTREME[codec]).blame(Kind.MEAN)
    assert blame is not None
    assert (blame.suspects, blame.own) == ((PeerId("first"),), False)


@pytest.mark.parametrize("codec", EXTREME)
def test_peer_that_exceeds_the_bound_on_a_sum_names_itself(
    codec: CodecName,
) -> None:
    codes = {"int8": b"\x7f" * BLOCK, "int4": b"\x77" * (BLOCK // 2)}[codec]
    at_bound = scale_of(codec, BOUND)
    assert Two(codec, BOUND, at_bound, codes).blame(Kind.SUM) is None
    blame = Two(codec, BOUND * 1.03, at_bound, codes).blame(Kind.SUM)
    assert blame is not None
    assert (blame.suspects, blame.own) == ((PeerId("second"),), True)


def limits(schedule: Schedule, **settings: Any) -> Influence:
    peers = tuple(PeerId(f"peer-{number}") for number in range(4))
    request = ReduceRequest(
        RunId("ab" * 32), 0, 0, peers, 0, (1, 1, 2, 4), 1000, codec_of("fp32", 64),
        schedule=schedule, influence_max=BOUND,
    )  # fmt: skip
    return Influence(replace(request, **settings), feedback=False)


def test_bound_of_a_sum_depends_on_the_weights_of_its_contributors() -> None:
    ring, direct = limits("ring"), limits("direct")
    # The weights sum to 8, so each of the four peers counts for 4/8 of its weight.
    sums = [ring.sum_max(0, PeerId(f"peer-{sender}")) / BOUND for sender in range(4)]
    assert sums == pytest.approx([0.5, 1.0, 2.0, 4.0], rel=1e-4)
    sums = [direct.sum_max(0, PeerId(f"peer-{sender}")) / BOUND for sender in range(1, 4)]
    assert sums == pytest.approx([0.5, 1.0, 2.0], rel=1e-4)
    assert ring.mean_max == pytest.approx(BOUND, rel=1e-4) == direct.mean_max


def test_without_an_agreed_bound_sums_and_means_are_unbounded() -> None:
    free = limits("grid", influence_max=UNBOUNDED)
    assert (free.bounded, free.mean_max) == (False, math.inf)
    assert free.sum_max(1, PeerId("peer-0")) == math.inf


@pytest.mark.parametrize("numel", [0, 1, 65_536, 65_537, 200_000])
def test_contribution_peak_is_found_at_any_position(numel: int) -> None:
    theta, local = np.zeros(numel, np.float32), np.zeros(numel, np.float32)
    assert contribution_peak(theta, local) == 0.0
    for at in {0, numel // 2, numel - 1} if numel else set():
        local[at] = 3.0
        assert contribution_peak(theta, local) == contribution_peak(local, theta) == 3.0
        local[at] = np.nan
        assert math.isnan(contribution_peak(theta, local))
        local[at] = -np.inf
        assert contribution_peak(theta, local) == math.inf
        local[at] = 0.0
