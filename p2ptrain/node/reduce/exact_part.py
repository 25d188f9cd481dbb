"""Find out exactly why a part of an average differs from what its participants stated.

Fetch the chunks that contain the part from all participants. Their digests are in the claims, so
nobody can show other numbers than those that it has claimed. Then two comparisons are exact:

- A statement that is not the sketch of the claimed contribution proves that its participant lies.
- If all statements are right, but the average is not what the contributions make it, somebody has
  replaced a sum, or has averaged something else than it claimed. The signed sums show who it was
  (`node/averages/signed_sums`). If they do not, the attempt fails without a suspect, and the
  participants sit out in turn (SPEC.md, S13).

If both agree, only rounding made the difference. A participant that does not deliver its
contribution in time is suspected: without it, the difference cannot be explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import outcome
import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import P2PTrainError
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId
from p2ptrain.kernels import BadScale
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.names import label
from p2ptrain.node.averages.contribution_chunks import chunk_of, segment_of
from p2ptrain.node.averages.signed_sums import Named, follow
from p2ptrain.node.reduce.sketch_exchange import cuts_of
from p2ptrain.node.state.context import Context
from p2ptrain.proofs.average import AverageTerms, NotAveraged, first_difference, recompute
from p2ptrain.proofs.sketch_collection import SketchBook
from p2ptrain.proofs.sketch_parts import sketch_of_bytes
from p2ptrain.proofs.sketches import unit_exponent_of
from p2ptrain.proofs.sum_tracing import SegmentPlace, Trace, place_of
from p2ptrain.ring.wait_for import SLOWEST_BYTES_PER_S

FETCH_S = 30.0
"""Seconds for the chunks, in addition to the time that the slowest acceptable uplink needs to send
them to all other participants."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The elements [start, stop) of a contribution, and the chunks that contain them."""

    start: int
    stop: int
    chunks: range

    @classmethod
    def of(cls, format: ContributionFormat, start: int, stop: int) -> _Part:
        numbers = [
            number
            for number in range(format.chunks)
            if format.elements(number)[0] < stop and format.elements(number)[1] > start
        ]
        return cls(start, stop, range(numbers[0], numbers[-1] + 1))


async def fault_in_part(
    context: Context,
    outer_step: OuterStep,
    roster: Roster,
    book: SketchBook,
    weights: Sequence[int],
    part: int,
    payload: bytearray,
) -> tuple[tuple[PeerId, ...], str]:
    """Return who is at fault for the difference in a part, as far as that is known, and the reason
    in words. The reason is empty if nothing is wrong."""
    cuts, codec = cuts_of(outer_step, roster), outer_step.codec
    formats = [
        ContributionFormat(outer_step.update, peer, context.store.chunk_bytes)
        for peer in book.peers
    ]
    wanted = _Part.of(formats[0], cuts[part], cuts[part + 1])
    given = await _contributions(context, book, formats, wanted)
    late = tuple(peer for peer, each in zip(book.peers, given, strict=True) if each is None)
    if 2 * len(late) > len(book.peers) - 1:
        context.journal.write("unjudged", step=roster.step, reason="no contributions came")
        return (), ""
    if late:
        return late, f"no contribution came from {', '.join(map(label, late))}"
    encoded = codec.encoded_bytes
    found = [bytes(each) for each in given if each is not None]

    terms = AverageTerms(roster.schedule, tuple(weights), outer_step.update.numel, codec)

    def compare() -> tuple[tuple[PeerId, ...], str, int | None]:
        lying = _wrong_statements(outer_step, book, wanted, part, found)
        if lying:
            names = ", ".join(map(label, lying))
            return lying, f"the sketch that {names} stated is not that of its contribution", None
        try:
            expected = recompute(terms, wanted.start, wanted.stop, found)
        except NotAveraged as exc:
            return (), exc.what, None
        made = payload[encoded(wanted.start) : encoded(wanted.stop)]
        if expected == made:
            return (), "", None
        element = first_difference(terms, wanted.start, expected, made)
        return (), "the average does not follow from the contributions", element

    suspects, reason, element = await trio.to_thread.run_sync(compare)
    if element is None:
        return suspects, reason
    liars = await _liars(context, terms, book, formats, payload, place_of(terms, element))
    told = "; ".join([reason, *(each.words for each in liars)])
    return tuple(each.peer for each in liars), told


async def _liars(
    context: Context,
    terms: AverageTerms,
    book: SketchBook,
    formats: Sequence[ContributionFormat],
    payload: bytearray,
    place: SegmentPlace,
) -> list[Named]:
    """Return the participants that signed a wrong sum of this segment. A participant that does not
    show its inputs may still be in the reduce, so it is no suspect."""
    segment, given = place.segment, []
    try:
        for format in formats:
            contribution = book.contribution(format.peer)
            given.append(await segment_of(context, contribution, format, place))
    except P2PTrainError:
        return []
    update = bytes(payload[segment.offset : segment.offset + segment.bytes])
    try:
        trace = Trace(terms, book.peers, book.roster, place, given, update, verify)
    except NotAveraged:
        return []
    return [each for each in await follow(context, trace) if each.kind == "lied"]


def _wrong_statements(
    outer_step: OuterStep, book: SketchBook, part: _Part, number: int, found: Sequence[bytes]
) -> tuple[PeerId, ...]:
    """Return the participants that stated another sketch than that of their contribution."""
    seed, unit = book.seed, unit_exponent_of(outer_step.influence_max)
    assert seed is not None
    lying = []
    for stated, payload in zip(book.stated, found, strict=True):
        view = memoryview(payload)
        try:
            sums = sketch_of_bytes(outer_step.codec, view, part.start, part.stop, seed, unit)
        except (BadScale, ValueError):
            lying.append(stated.peer)
            continue
        if (sums != stated.sums_of_part(number)).any():
            lying.append(stated.peer)
    return tuple(lying)


async def _contributions(
    context: Context, book: SketchBook, formats: Sequence[ContributionFormat], part: _Part
) -> list[bytes | None]:
    """Return this part of each contribution, in the roster's order; None if it does not arrive."""
    found: list[bytes | None] = [None] * len(formats)
    sent = len(part.chunks) * formats[0].chunk_bytes * len(formats)
    limit_s = FETCH_S + sent / SLOWEST_BYTES_PER_S

    async def get(index: int, format: ContributionFormat) -> None:
        contribution = book.contribution(format.peer)
        chunks = []
        for number in part.chunks:
            got = await outcome.acapture(chunk_of, context, contribution, format, number, limit_s)
            if isinstance(got, outcome.Error) and isinstance(got.error, P2PTrainError):
                return
            chunks.append(got.unwrap())
        first = format.elements(part.chunks[0])[0]
        encoded = format.update.codec.encoded_bytes
        whole = b"".join(chunks)
        found[index] = whole[encoded(part.start - first) : encoded(part.stop - first)]

    with trio.move_on_after(limit_s):
        async with trio.open_nursery() as nursery:
            for index, format in enumerate(formats):
                nursery.start_soon(get, index, format)
    return found
