"""A peer that averages other numbers than it contributed, or replaces a sum, is found. Nobody else
is.

The sums come from the ring's own arithmetic, among peers of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from p2ptrain.errors import LocalProtocolError
from p2ptrain.kernels import CODECS, CodecName
from p2ptrain.kernels import codec as codec_of
from p2ptrain.proofs.average import (
    AverageTerms,
    Finding,
    Judgement,
    NotAveraged,
    ShownSum,
    judge,
    recompute,
)
from p2ptrain.ring import SCHEDULES, Contribution, Schedule, quantised_once
from p2ptrain.ring.lane_progress import OutgoingSegment
from p2ptrain.ring.schedules import owner_of, route
from p2ptrain.ring.wire import Kind
from scripts.research.learning.averaging import average_of

WEIGHTS = (3, 1, 20, 4, 9, 2)
NUMEL = 1009
FINE = Judgement((), unattributed=False)

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
Forge = Callable[[int, OutgoingSegment], bool]


@dataclass
class Averaging:
    """One reduce, and all that its peers signed: each sum, and each owner's mean."""

    terms: AverageTerms
    claimed: list[Contribution]
    """The contributions that auditors receive."""
    update: bytes = b""
    sums: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """The sum that each peer sent for each part, or the mean of its owner, by (peer, part)."""

    @classmethod
    def run(
        cls,
        schedule: Schedule,
        peers: int = 5,
        codec: CodecName = "int8",
        *,
        averaged: dict[int, Contribution] | None = None,
        forge: Forge = lambda sender, send: False,
    ) -> Averaging:
        """`averaged` replaces contributions in the reduce only. Segments for which `forge` returns
        True are replaced by other numbers on their way.
        """
        terms = AverageTerms(schedule, WEIGHTS[:peers], NUMEL, codec_of(codec, 32))
        made = cls(terms, [contribution(seed, terms) for seed in range(peers)])
        sources = [(averaged or {}).get(me, each) for me, each in enumerate(made.claimed)]

        def forward(sender: int, send: OutgoingSegment, body: bytes) -> bytes:
            owner = owner_of(schedule, peers, send.part)
            if forge(sender, send):
                body = other_numbers(body, send, terms)
            if send.kind is Kind.SUM or sender == owner:
                made.sums[sender, send.part] = body
            return body

        made.update = average_of(sources, terms.weights, terms.codec, schedule, forward=forward)
        return made

    def judge(self, part: int, shown: Sequence[ShownSum]) -> Judgement:
        start, stop = self.terms.part_cuts()[part : part + 2]
        run = slice(*map(self.terms.codec.encoded_bytes, (start, stop)))
        chunks = [each.payload[run] for each in self.claimed]
        return judge(self.terms, start, stop, chunks, self.update[run], shown)

    def shown(self, part: int) -> list[ShownSum]:
        """All sums of a part as their receivers show them, and the mean as its owner shows it."""
        peers, schedule = self.terms.peers, self.terms.schedule
        found = []
        for sender in range(peers):
            receiver = route(schedule, peers, sender, part).sum_to
            found.append(
                ShownSum(sender, sender if receiver is None else receiver, self.sums[sender, part])
            )
        return found

    def findings(self) -> set[tuple[int, int]]:
        """Return (part, peer) for everything that is found."""
        parts = range(self.terms.peers)
        return {
            (part, each.number)
            for part in parts
            for each in self.judge(part, self.shown(part)).findings
        }


def contribution(seed: int, terms: AverageTerms) -> Contribution:
    vector = np.random.default_rng(seed).standard_normal(terms.numel, np.float32)
    return quantised_once(vector, np.zeros_like(vector), terms.codec)


def other_numbers(body: bytes, send: OutgoingSegment, terms: AverageTerms) -> bytes:
    """Return a valid payload that represents the same values, but one of them with other sign."""
    values = np.empty(send.segment.stop - send.segment.start, np.float32)
    terms.codec.dequantise(body, values)
    values[np.abs(values).argmax()] *= -1
    out = bytearray(len(body))
    terms.codec.quantise(values, out)
    assert out != body
    return bytes(out)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("peers", [1, 2, 3, 6])
@every_schedule
def test_nobody_is_found_in_an_honest_reduce(
    schedule: Schedule, peers: int, codec: CodecName
) -> None:
    made = Averaging.run(schedule, peers, codec)
    for part in range(peers):
        assert made.judge(part, []) == FINE
        assert made.judge(part, made.shown(part) if peers > 1 else []) == FINE


@every_schedule
def test_peer_with_one_blob_for_the_ring_and_another_for_auditors_is_found(
    schedule: Schedule,
) -> None:
    terms = AverageTerms(schedule, WEIGHTS[:5], NUMEL, codec_of("int8", 32))
    made = Averaging.run(schedule, averaged={2: contribution(99, terms)})
    assert made.findings() == {(part, 2) for part in range(5)}


@every_schedule
@pytest.mark.parametrize("liar", range(5))
def test_peer_that_replaces_a_sum_is_found(schedule: Schedule, liar: int) -> None:
    """The liar sends another sum for part 1, and its receiver goes on honestly."""
    made = Averaging.run(
        schedule,
        forge=lambda sender, send: (sender, send.part, send.kind) == (liar, 1, Kind.SUM),
    )
    owner = owner_of(schedule, 5, 1)
    assert made.findings() == (set() if liar == owner else {(1, liar)})
    assert (made.judge(1, made.shown(1)) == FINE) == (liar == owner)


@every_schedule
def test_owner_that_replaces_the_mean_is_found(schedule: Schedule) -> None:
    """A mean reaches peers over several paths, so all its copies are forged, as an owner would."""
    made = Averaging.run(schedule)
    owner, (start, stop) = owner_of(schedule, 5, 3), made.terms.part_cuts()[3:5]
    run = slice(*map(made.terms.codec.encoded_bytes, (start, stop)))
    forged = made.update[run][:-1] + bytes([made.update[run][-1] ^ 1])
    made.update = made.update[: run.start] + forged + made.update[run.stop :]
    made.sums[owner, 3] = forged
    what = "its mean does not follow from its contribution and the sums that it received"
    assert made.judge(3, made.shown(3)) == Judgement((Finding(owner, what),), unattributed=False)
    without = [each for each in made.shown(3) if each.sender != owner]
    direct = schedule == "direct"
    assert made.judge(3, without) == Judgement(
        (Finding(owner, what),) if direct else (), unattributed=not direct
    )


@every_schedule
def test_colluding_neighbours_are_both_found(schedule: Schedule) -> None:
    made = Averaging.run(
        schedule, forge=lambda sender, send: send.kind is Kind.SUM and sender in (1, 2)
    )
    assert {number for _, number in made.findings()} == {1, 2}


def test_receiver_that_does_not_show_a_wrong_sum_is_answerable_for_it() -> None:
    made = Averaging.run(
        "ring", forge=lambda sender, send: (sender, send.part, send.kind) == (2, 1, Kind.SUM)
    )
    withheld = [each for each in made.shown(1) if each.sender != 2]
    assert [each.number for each in made.judge(1, withheld).findings] == [3]


def test_peer_cannot_frame_its_receiver_with_a_sum_that_it_did_not_send() -> None:
    """Peer 2 shows a sum that peer 3 never received. Peer 3 shows the sum that it received."""
    made = Averaging.run("ring")
    framing = ShownSum(2, 2, bytes(len(made.sums[2, 1])))
    what = "it made several different sums"
    assert made.judge(1, [framing, *made.shown(1)]).findings == (Finding(2, what),)


def test_peer_that_adds_an_invalid_sum_is_found_together_with_its_sender() -> None:
    made = Averaging.run("ring")
    invalid = b"\xff" * len(made.sums[2, 1])
    shown = [ShownSum(2, 3, invalid), *(each for each in made.shown(1) if each.sender != 2)]
    found = made.judge(1, shown).findings
    assert [each.number for each in found] == [2, 3]
    assert "every peer must refuse" in found[1].what


@every_schedule
def test_forged_chunk_of_a_contribution_is_refused(schedule: Schedule) -> None:
    made = Averaging.run(schedule)
    chunks = [bytes(each.payload) for each in made.claimed]
    for forged in (b"\xff" * len(chunks[3]), chunks[3][:-1]):
        with pytest.raises(NotAveraged, match="participant 3") as caught:
            recompute(made.terms, 0, NUMEL, [*chunks[:3], forged, *chunks[4:]])
        assert caught.value.number == 3


@every_schedule
def test_valid_but_different_chunk_gives_other_bytes(schedule: Schedule) -> None:
    made = Averaging.run(schedule)
    chunks = [bytes(each.payload) for each in made.claimed]
    chunks[3] = chunks[3][:-1] + bytes([chunks[3][-1] ^ 1])
    assert recompute(made.terms, 0, NUMEL, chunks) != made.update


def test_sum_out_of_the_codecs_range_cannot_be_averaged() -> None:
    terms = AverageTerms("ring", (1, 1), 32, codec_of("fp16", 32))
    large = np.full(32, 60_000, np.float16).tobytes()
    with pytest.raises(NotAveraged, match="participant 1") as caught:
        recompute(AverageTerms("ring", (1, 1, 1), 96, terms.codec), 0, 32, [large] * 3)
    assert caught.value.number == 1


def test_malformed_questions_are_refused() -> None:
    terms = AverageTerms("ring", (1, 1, 1), 100, codec_of("int8", 32))
    for start, stop in [(1, 32), (0, 33), (64, 32), (0, 128), (-32, 32)]:
        with pytest.raises(LocalProtocolError, match="not whole blocks"):
            recompute(terms, start, stop, [b""] * 3)
    with pytest.raises(LocalProtocolError, match="all 3 peers"):
        recompute(terms, 0, 32, [b""])
    with pytest.raises(LocalProtocolError, match="in one part"):
        judge(terms, 0, 100, [b""] * 3, b"")
    for bad in [(), (0, 0), (1, -1)]:
        with pytest.raises(LocalProtocolError):
            AverageTerms("ring", bad, 100, terms.codec)
    with pytest.raises(LocalProtocolError, match="no schedule"):
        AverageTerms("star", (1,), 100, terms.codec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first_byte", "end_byte", "elements"),
    [
        (0, 36, (0, 32)),
        (0, 35, (0, 0)),
        (1, 72, (32, 64)),
        (36, 10_000, (32, 100)),
        (100, 116, (96, 100)),
        (109, 116, (100, 100)),
        (73, 75, (96, 96)),
    ],
)
def test_bytes_of_a_chunk_contain_these_whole_blocks(
    first_byte: int, end_byte: int, elements: tuple[int, int]
) -> None:
    """The payload has three blocks of 36 bytes and one of 8 bytes."""
    terms = AverageTerms("ring", (1, 1), 100, codec_of("int8", 32))
    assert terms.codec.encoded_bytes(100) == 116
    assert terms.whole_blocks(first_byte, end_byte) == elements
