"""Recompute an update from contributions that were quantised once, and find out who lied.

In such a reduce, every peer adds exactly the values that its contribution's bytes represent
(`p2ptrain.ring.source`). Sums are requantised at each hop, in the order of the roster. So each
block of the update is a pure function of the same block of all contributions, the weights and the
schedule. A block does not depend on other blocks, segments, connections or threads.

`recompute` is for an auditor that has a range of every contribution and of the update. If its bytes
differ from the update's, `judge` compares what each peer has signed with what follows from the
peer's own contribution and from the sums that it received:

- A peer is answerable for every sum that it signed, whatever the other peers did. The owner of a
  part is answerable for each mean that it signed.
- A peer that received a wrong sum shows that sum with the sender's signature. Then its own output
  is explained, and the sender is answerable. A sum that its receiver does not show is taken to be
  what the contributions make it.
- With `direct`, all peers receive the mean from the part's owner. So the owner is also answerable
  for the update itself. With the other schedules, a peer that forwards a mean could have replaced
  it, so the owner is answerable only for means that it signed.

Only a peer itself decides which inputs it shows, so no other peer can make its output look wrong.
This module does not check digests and signatures; the caller does that first. Nodes call
`recompute` after each outer step (`p2ptrain/node/averages`). If the bytes differ, they follow the
digests that the peers have signed (`sum_tracing`), which needs no bytes of sums. `judge` is the
same for somebody who has these bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import LocalProtocolError, P2PTrainError
from p2ptrain.kernels import BadScale, Codec, NonFinite
from p2ptrain.ring.plan import PEERS_MAX
from p2ptrain.ring.schedules import SCHEDULES, Schedule, contributors, owner_of, route

Floats = NDArray[np.float32]
Bytes = bytes | bytearray | memoryview


class NotAveraged(P2PTrainError):
    """No update can follow from these contributions: one of them is malformed, or a sum is out of
    the codec's range. `number` is the peer whose contribution or sum it is.
    """

    default_code = "PAYLOAD-SCALE"

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"the numbers of participant {number} cannot be averaged: {what}")
        self.number = number


@dataclass(frozen=True, slots=True)
class AverageTerms:
    """The facts about a reduce that the roster and the run fix. Peers are numbered by their place
    in the roster's order.

    Raises LocalProtocolError for impossible terms.
    """

    schedule: Schedule
    weights: tuple[int, ...]
    numel: int
    codec: Codec

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise LocalProtocolError(f"there is no schedule {self.schedule!r}")
        if not 1 <= len(self.weights) <= PEERS_MAX:
            raise LocalProtocolError(f"{len(self.weights)} peers cannot average")
        if min(self.weights) < 0 or not 0 < sum(self.weights) < 2**63 or self.numel < 0:
            raise LocalProtocolError("the weights or the number of elements are out of range")

    @property
    def peers(self) -> int:
        return len(self.weights)

    def part_cuts(self) -> list[int]:
        """Return the elements at which the parts begin, and the number of elements."""
        block = self.codec.block
        blocks = -(-self.numel // block)
        return [
            min(self.numel, part * blocks // self.peers * block) for part in range(self.peers + 1)
        ]

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (part, start, stop) for each part that the elements [start, stop) lie in.

        Raises LocalProtocolError unless the range consists of whole blocks.
        """
        whole = all(each % self.codec.block == 0 or each == self.numel for each in (start, stop))
        if not whole or not 0 <= start <= stop <= self.numel:
            raise LocalProtocolError(f"the elements {start} to {stop} are not whole blocks")
        cuts = self.part_cuts()
        for part, (first, end) in enumerate(pairwise(cuts)):
            low, high = max(start, first), min(stop, end)
            if low < high:
                yield part, low, high

    def whole_blocks(self, first_byte: int, end_byte: int) -> tuple[int, int]:
        """Return the elements [start, stop) whose blocks lie completely within these bytes of a
        payload, such as the bytes of one chunk. The range can be empty.
        """
        block = self.codec.block
        row = self.codec.encoded_bytes(block)
        start = min(self.numel, -(-first_byte // row) * block)
        end = self.codec.encoded_bytes(self.numel)
        stop = self.numel if end_byte >= end else end_byte // row * block
        return start, max(start, stop)


def recompute(terms: AverageTerms, start: int, stop: int, contributions: Sequence[Bytes]) -> bytes:
    """Return the update's bytes for the elements [start, stop), which are whole blocks.

    `contributions` has the same range of every peer's contribution, in the roster's order.

    Raises:
        NotAveraged: a contribution is malformed, or the sums are out of range.
        LocalProtocolError: the range does not consist of whole blocks.
    """
    runs = list(terms.runs(start, stop))
    _check_contributions(terms, start, stop, contributions)
    encoded_bytes, made = terms.codec.encoded_bytes, bytearray()
    for part, low, high in runs:
        cut = slice(encoded_bytes(low - start), encoded_bytes(high - start))
        given = [memoryview(each)[cut] for each in contributions]
        made += SegmentHops(terms, part, high - low).mean(given)
    return bytes(made)


def first_difference(terms: AverageTerms, start: int, expected: Bytes, update: Bytes) -> int:
    """Return the first element of the first block that differs. Both payloads begin at element
    `start`, have the same length, and differ."""
    pairs = enumerate(zip(expected, update, strict=True))
    at = next(number for number, (one, other) in pairs if one != other)
    block = terms.codec.block
    return start + at // terms.codec.encoded_bytes(block) * block


@dataclass(frozen=True, slots=True)
class ShownSum:
    """The bytes of a range in a sum that peer number `sender` has signed, or in a mean that it has
    signed as the owner. Peer number `shown_by` presents them.
    """

    sender: int
    shown_by: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """A peer, by its number in the roster's order, whose output does not follow from its inputs."""

    number: int
    what: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings, by the peers' numbers. `unattributed` is whether the update is not what the
    contributions make it, and no signature shows that the part's owner made it. Then the peers that
    reported this update should not have accepted it.
    """

    findings: tuple[Finding, ...]
    unattributed: bool


def judge(
    terms: AverageTerms,
    start: int,
    stop: int,
    contributions: Sequence[Bytes],
    update: Bytes,
    shown: Sequence[ShownSum] = (),
) -> Judgement:
    """Name the peers whose output for the elements [start, stop) does not follow from their inputs.

    The range consists of whole blocks of one part, such as a segment. `contributions` are as in
    `recompute`, and `update` is this range of the update.

    Raises:
        NotAveraged, LocalProtocolError: as in `recompute`, or the range lies in several parts.
    """
    hops = SegmentHops.of(terms, start, stop)
    _check_contributions(terms, start, stop, contributions)
    honest = hops.outputs(contributions)
    outputs: dict[int, set[bytes]] = {number: set() for number in hops.order}
    received: dict[tuple[int, int], bytes] = {}
    for each in shown:
        if each.sender in outputs:
            outputs[each.sender].add(each.payload)
            received[each.shown_by, each.sender] = each.payload
    is_wrong = bytes(update) != bytes(honest[hops.owner])
    unattributed = is_wrong and bytes(update) not in outputs[hops.owner]
    if terms.schedule == "direct":
        outputs[hops.owner].add(bytes(update))
        unattributed = False
    findings = []
    for number in sorted(hops.order):
        inputs = [received.get((number, each), honest[each]) for each in hops.children(number)]
        fault = hops.fault(number, contributions[number], inputs, outputs[number])
        if fault:
            findings.append(Finding(number, fault))
    return Judgement(tuple(findings), unattributed)


class SegmentHops:
    """The arithmetic of the peers on one range of one part, of `numel` elements."""

    def __init__(self, terms: AverageTerms, part: int, numel: int) -> None:
        self._terms = terms
        self._part = part
        self._numel = numel
        self.owner = owner_of(terms.schedule, terms.peers, part)
        self.order = contributors(terms.schedule, terms.peers, part, self.owner)[::-1]
        """All peers. A peer comes after the peers that send it sums."""

    @classmethod
    def of(cls, terms: AverageTerms, start: int, stop: int) -> SegmentHops:
        """Return the arithmetic for the elements [start, stop), which lie in one part. Raises
        LocalProtocolError: they do not."""
        runs = list(terms.runs(start, stop))
        if len(runs) != 1:
            raise LocalProtocolError("a range that is judged must lie in one part")
        return cls(terms, runs[0][0], stop - start)

    def children(self, number: int) -> tuple[int, ...]:
        """Return the peers that send sums to peer `number`, in the order of addition."""
        return route(self._terms.schedule, self._terms.peers, number, self._part).sums_from

    def outputs(self, contributions: Sequence[Bytes]) -> dict[int, Bytes]:
        """Return the sum that each peer sends; the owner's is the mean."""
        made: dict[int, Bytes] = {}
        for number in self.order:
            inputs = [made[child] for child in self.children(number)]
            made[number] = self.output(number, contributions[number], inputs)
        return made

    def mean(self, contributions: Sequence[Bytes]) -> Bytes:
        """Return the owner's mean. Sums are dropped once they have been added."""
        made: dict[int, Bytes] = {}
        for number in self.order:
            inputs = [made.pop(child) for child in self.children(number)]
            made[number] = self.output(number, contributions[number], inputs)
        return made[self.owner]

    def fault(
        self, number: int, contribution: Bytes, inputs: Sequence[Bytes], outputs: Set[bytes]
    ) -> str:
        """Return why one of `outputs` does not follow from `inputs`; an empty string if all do."""
        what = "mean" if number == self.owner else "sum"
        if len(outputs) > 1:
            return f"it made several different {what}s"
        if not outputs:
            return ""
        try:
            expected = self.output(number, contribution, inputs)
        except NotAveraged as exc:
            return f"it made a {what} from numbers that every peer must refuse: {exc.what}"
        if outputs == {bytes(expected)}:
            return ""
        return f"its {what} does not follow from its contribution and the sums that it received"

    def output(self, number: int, contribution: Bytes, inputs: Sequence[Bytes]) -> Bytes:
        """Return what peer `number` makes of its own contribution and of the sums in `inputs`.

        Raises NotAveraged.
        """
        codec, weights = self._terms.codec, self._terms.weights
        own = np.empty(self._numel, np.float32)
        out = bytearray(codec.encoded_bytes(self._numel))
        weight = self._terms.peers * weights[number] / sum(weights)
        divisor = float(self._terms.peers) if number == self.owner else 1.0
        try:
            codec.dequantise(contribution, own)
            if not inputs:
                # Only a peer that is alone owns a part without receiving sums.
                codec.quantise_difference(own, np.zeros_like(own), weight, out)
            else:
                for arrived in inputs[:-1]:
                    codec.add_difference(arrived, own, None, weight, own)
                    weight = 1.0
                codec.add_difference_requantise(inputs[-1], own, None, weight, divisor, out)
        except (BadScale, NonFinite, ValueError) as exc:
            raise NotAveraged(number, str(exc)) from exc
        return out


def _check_contributions(
    terms: AverageTerms, start: int, stop: int, contributions: Sequence[Bytes]
) -> None:
    if len(contributions) != terms.peers:
        raise LocalProtocolError(f"the contributions of all {terms.peers} peers are needed")
    for number, each in enumerate(contributions):
        try:
            terms.codec.check(each, stop - start)
        except (BadScale, ValueError) as exc:
            raise NotAveraged(number, f"its contribution is invalid: {exc}") from exc
