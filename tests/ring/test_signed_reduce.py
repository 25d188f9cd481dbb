"""A reduce whose peers sign their sums has the same result, and ends if a signature is missing."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from p2ptrain.errors import LocalProtocolError, ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.ring import (
    SCHEDULES,
    SIGNATURE_BYTES,
    Difference,
    Reduce,
    ReduceRequest,
    ReduceStatistics,
    Schedule,
)
from p2ptrain.ring.wire import HEADER_BYTES
from tests.ring.conftest import Build, Ring


@dataclass
class Named:
    """A signing whose signatures name their peer. They do not depend on what is signed if `blind`,
    so that a test can see who refuses them."""

    me: PeerId
    blind: bool = False

    def sign(self, start: int, stop: int, leaves: bytes) -> bytes:
        about = b"" if self.blind else leaves[:16]
        return (self.me.encode() + about).ljust(SIGNATURE_BYTES, b".")

    def is_signed(
        self, peer: PeerId, start: int, stop: int, leaves: bytes, signature: bytes
    ) -> bool:
        return signature == Named(peer).sign(start, stop, leaves)


def sign_all(ring: Ring, *, blind: int | None = None) -> None:
    for me, request in enumerate(ring.requests):
        ring.requests[me] = replace(request, signed=True)
        ring.signings[me] = Named(ring.peers[me], blind=me == blind)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("streams", "lanes"), [(1, 1), (3, 1), (4, 2)])
def test_signatures_do_not_change_the_result(
    build: Build, schedule: Schedule, streams: int, lanes: int
) -> None:
    about = ((1, 2, 3, 1), 40_000)
    plain = build(*about, schedule=schedule, streams=streams, lanes=lanes)
    signed = build(*about, schedule=schedule, streams=streams, lanes=lanes)
    sign_all(signed)
    outcomes = plain.run(), signed.run()
    assert all(isinstance(each, ReduceStatistics) for found in outcomes for each in found.values())
    for one, other in zip(plain.payloads, signed.payloads, strict=True):
        np.testing.assert_array_equal(one, other)
    for me in range(4):
        kept = signed.reduces[me].signed()
        routes = signed.requests[me].plan().routes
        expected = sum(len(route.sums_from) + 2 - route.owned for route in routes) * lanes
        assert len(kept) == expected
        assert signed.reduces[me].progress() == plain.reduces[me].progress()
        sent = [
            sum(each.sent_bytes for each in ring.reduces[me].traffic()) for ring in (plain, signed)
        ]
        signatures = (
            sum((route.sum_to is not None) + len(route.means_to) for route in routes) * lanes
        )
        # On a busy machine, one of the two may have sent WAITING frames, which are headers.
        added = signatures * (HEADER_BYTES + SIGNATURE_BYTES)
        assert (sent[1] - sent[0] - added) % HEADER_BYTES == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_peer_with_a_wrong_signature_is_blamed(build: Build, schedule: Schedule) -> None:
    ring = build((1, 2, 3, 1), 20_000, schedule=schedule)
    sign_all(ring, blind=2)
    outcomes = ring.run()
    found = [each for each in outcomes.values() if isinstance(each, ReduceAborted)]
    assert len(found) == len(outcomes)
    accused = {peer for each in found if not each.heard for peer in each.suspects}
    assert accused == {ring.peers[2]}


class Unsigned(ReduceRequest):
    """The request of a peer that does not sign, with the tag of those that do."""

    def tag(self) -> bytes:
        return replace(self, signed=True).tag() if not self.signed else super().tag()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nobody_completes_a_reduce_with_a_peer_that_does_not_sign(
    build: Build, schedule: Schedule
) -> None:
    ring = build((1, 2, 3), 20_000, schedule=schedule)
    sign_all(ring)
    del ring.signings[1]
    plain = replace(ring.requests[1], signed=False)
    ring.requests[1] = Unsigned(**{each.name: getattr(plain, each.name) for each in fields(plain)})
    outcomes = ring.run()
    for me in (0, 2):
        outcome = outcomes[me]
        assert isinstance(outcome, ReduceAborted)
        assert outcome.heard or outcome.suspects == (ring.peers[1],)


def test_request_and_signing_must_agree(build: Build) -> None:
    ring = build((1, 2), 100)
    signed = replace(ring.requests[0], signed=True)
    assert signed.tag() != ring.requests[0].tag()
    given = (ring.links(0), Difference(ring.theta, ring.locals[0]), ring.payloads[0])
    with pytest.raises(LocalProtocolError):
        Reduce(signed, *given)


def test_frames_of_a_reduce_without_signatures_are_as_before(build: Build) -> None:
    assert build((1, 2), 100).requests[0].tag().hex() == "f5a921cc213321c6"
