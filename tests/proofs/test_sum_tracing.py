"""A peer that makes a segment of an average wrong is named, and nobody else is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest, RunId
from p2ptrain.kernels import CodecName
from p2ptrain.kernels import codec as codec_of
from p2ptrain.proofs.average import AverageTerms
from p2ptrain.proofs.signed_sums import SumSigner
from p2ptrain.proofs.sum_tracing import SegmentPlace, Trace, Traced, place_of, proves
from p2ptrain.ring import SCHEDULES, Contribution, ReduceRequest, Schedule, SignedRun
from p2ptrain.ring.arithmetic import Arithmetic
from p2ptrain.ring.blame import Blamed
from p2ptrain.ring.lane_progress import OutgoingSegment
from p2ptrain.ring.plan import Segment
from p2ptrain.ring.wire import Kind
from tests.ring.crowd import Crowd

ROSTER = Digest("cd" * 32)
KEYS = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 9)]
BLOCKS: dict[CodecName, int] = {"fp32": 8, "fp16": 8, "int8": 8, "int4": 8}


class Negates(Arithmetic):
    """Negates some segments after it has computed them, and so signs the negated ones."""

    draw = random.Random(0)

    def contribute(self, segment: Segment) -> None:
        super().contribute(segment)
        self._negate(segment)

    def add(self, segment: Segment, *args: object, **flags: object) -> None:
        super().add(segment, *args, **flags)  # type: ignore[arg-type]
        self._negate(segment)

    def finish(self, segment: Segment, *args: object, **flags: object) -> None:
        super().finish(segment, *args, **flags)  # type: ignore[arg-type]
        self._negate(segment)

    def _negate(self, segment: Segment) -> None:
        if self.draw.random() < 0.6:
            values = np.empty(segment.stop - segment.start, np.float32)
            self.codec.dequantise(self.place(segment), values)
            self.codec.quantise(-values, self.place(segment))


def contribution(request: ReduceRequest, seed: int) -> Contribution:
    values = np.random.default_rng(seed).standard_normal(request.numel, np.float32)
    payload = bytearray(request.codec.encoded_bytes(request.numel))
    request.codec.quantise(values, payload)
    return Contribution(payload, request.numel, request.codec)


@dataclass
class Averaged:
    """A finished reduce: what was claimed, the update, and what each peer keeps."""

    request: ReduceRequest
    claimed: list[Contribution]
    payload: bytes
    kept: list[list[SignedRun]]

    @property
    def terms(self) -> AverageTerms:
        request = self.request
        return AverageTerms(request.schedule, request.weights, request.numel, request.codec)

    def trace(self, element: int) -> Trace:
        place = place_of(self.terms, element, segment_bytes=self.request.segment_bytes)
        return Trace(
            self.terms,
            self.request.peers,
            ROSTER,
            place,
            [self._cut(each.payload, place) for each in self.claimed],
            self._cut(self.payload, place),
            verify,
        )

    def _cut(self, payload: bytes | memoryview, place: SegmentPlace) -> bytes:
        segment = place.segment
        return bytes(payload[segment.offset : segment.offset + segment.bytes])


def request_of(schedule: Schedule, peers: int, codec: CodecName, seed: int) -> ReduceRequest:
    draw = random.Random(seed)
    return ReduceRequest(
        RunId("ab" * 32),
        1,
        0,
        tuple(key.peer for key in KEYS[:peers]),
        0,
        tuple(draw.randint(1, 9) for _ in range(peers)),
        draw.randint(8 * peers, 600),
        codec_of(codec, BLOCKS[codec]),
        schedule=schedule,
        segment_bytes=200,
        signed=True,
    )


def averaged(
    request: ReduceRequest, *, two_faced: Sequence[int] = (), negates: Sequence[int] = ()
) -> Averaged:
    """Run a reduce. Peers in `two_faced` add something else than they claim, and those in `negates`
    replace sums and means."""
    numbers = range(len(request.peers))
    claimed = [contribution(request, number) for number in numbers]
    crowd = Crowd(
        request,
        2,
        seed=request.numel,
        sources=[
            contribution(request, 100 + it) if it in two_faced else claimed[it] for it in numbers
        ],
        signings=[SumSigner(ROSTER, KEYS[it].peer, KEYS[it].sign, verify) for it in numbers],
        arithmetic=[Negates if it in negates else Arithmetic for it in numbers],
    )
    crowd.run()
    assert all(work.finished for work in crowd.works)
    assert len({bytes(each) for each in crowd.payloads}) == 1
    kept = [work.kept for work in crowd.works]
    return Averaged(request, claimed, bytes(crowd.payloads[0]), kept)


def followed(average: Averaged, trace: Trace, withholding: Sequence[int] = ()) -> list[Traced]:
    """Ask all peers. Those that withhold show the sums of others, and what they invent."""
    for number, kept in enumerate(average.kept):
        trace.take_mean([] if number in withholding else kept)
    while trace.due:
        number = trace.due[0]
        shown = average.kept[number]
        if number in withholding:
            shown = [replace(each, leaves=each.leaves[::-1]) for each in shown] + average.kept[
                number - 1
            ]
        trace.take_inputs(number, shown)
    return trace.found


@pytest.mark.parametrize("codec", BLOCKS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("peers", range(2, 9))
def test_only_liars_are_named_and_every_wrong_segment_has_one(
    schedule: Schedule, peers: int, codec: CodecName
) -> None:
    """Random peers lie at random hops, alone or together."""
    wrong = 0
    for seed in range(3):
        draw = random.Random(f"{schedule} {peers} {codec} {seed}")
        liars = draw.sample(range(peers), draw.randint(1, max(1, peers // 2)))
        two_faced, negates = liars[: draw.randint(0, len(liars))], liars
        if draw.random() < 0.5:
            two_faced, negates = liars, []
        request = request_of(schedule, peers, codec, seed)
        average = averaged(request, two_faced=two_faced, negates=negates)
        for element in draw.sample(range(request.numel), 8):
            trace = average.trace(element)
            withholding = liars if draw.random() < 0.3 else []
            found = followed(average, trace, withholding)
            assert {each.number for each in found} <= set(liars), seed
            assert bool(found) == trace.is_wrong or set(range(peers)) == set(withholding), seed
            kinds = {each.kind for each in found}
            assert "lied" in kinds if found and not withholding else True
            proofs = [each for each in found if each.kind == "lied"]
            assert all(proves(average.trace(element), each) for each in proofs)
            wrong += trace.is_wrong
    assert wrong


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nobody_is_named_after_an_honest_reduce(schedule: Schedule) -> None:
    average = averaged(request_of(schedule, 5, "int8", 1))
    for element in range(0, average.request.numel, 8):
        trace = average.trace(element)
        assert not trace.is_wrong
        assert followed(average, trace) == []


def test_peer_that_feeds_other_numbers_than_it_claims_is_named() -> None:
    """It shows auditors the blob that it claims, and the ring another one."""
    average = averaged(request_of("ring", 6, "int8", 2), two_faced=[3])
    for element in range(0, average.request.numel, 8):
        (found,) = followed(average, average.trace(element))
        assert (found.number, found.kind) == (3, "lied")
        assert "does not follow from its contribution" in found.what


def test_peer_without_its_inputs_withholds_and_has_not_lied() -> None:
    """For example, it lost its disk. A peer whose output is right does not have to show any."""
    average = averaged(request_of("ring", 4, "int8", 3), negates=[2])
    average.kept[2] = average.kept[3] = []
    for element in range(0, average.request.numel, 8):
        trace = average.trace(element)
        for each in followed(average, trace):
            first = each.number == 2 and not each.inputs
            assert each.kind == "withheld" or first
            assert each.number in (2, 3)


def test_owner_that_signs_two_means_is_named() -> None:
    average = averaged(request_of("direct", 3, "int8", 4), two_faced=[1])
    trace = next(
        trace
        for element in range(0, average.request.numel, 8)
        if (trace := average.trace(element)).owner == 1 and trace.is_wrong
    )
    place = trace.place
    leaves = bytes(32 * place.segments)
    signer = SumSigner(ROSTER, KEYS[1].peer, KEYS[1].sign, verify)
    other = SignedRun(
        KEYS[1].peer,
        place.start,
        place.stop,
        leaves,
        signer.sign(place.start, place.stop, leaves),
    )
    trace.take_mean([other])
    assert trace.found == []
    trace.take_mean(average.kept[0])
    (found,) = trace.found
    assert (found.number, found.kind) == (1, "lied")
    assert "two different means" in found.what
    assert proves(trace, found)
    assert not proves(trace, replace(found, output=other, inputs=(other,)))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", [Kind.SUM, Kind.MEAN, Kind.SUM_SIGNED, Kind.MEAN_SIGNED])
def test_bytes_that_differ_from_the_signed_ones_abort_the_reduce(
    schedule: Schedule, kind: Kind
) -> None:
    """The sender of the bytes is blamed, also if it only forwards a mean."""
    request, liar = request_of(schedule, 5, "fp32", 5), 2
    done: list[OutgoingSegment] = []

    def tamper(sender: int, send: OutgoingSegment, body: bytes) -> bytes:
        if (sender, send.kind) != (liar, kind) or done:
            return body
        done.append(send)
        return bytes([body[0] ^ 1]) + body[1:]

    numbers = range(5)
    crowd = Crowd(
        request,
        2,
        seed=1,
        sources=[contribution(request, number) for number in numbers],
        signings=[SumSigner(ROSTER, KEYS[it].peer, KEYS[it].sign, verify) for it in numbers],
        tamper=tamper,
    )
    with pytest.raises(Blamed) as info:
        crowd.run()
    assert info.value.blame.suspects == (KEYS[liar].peer,)
    assert "signature" in info.value.blame.reason
