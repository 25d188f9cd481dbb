"""Find out which participant made a wrong chunk of an average.

The participants sign their sums and means (`p2ptrain.ring`), and keep what was signed to them. This
node takes the first block of the chunk that is wrong, and follows the signatures of the segment
that contains this block from the owner of the part towards the contributions
(`p2ptrain.proofs.sum_tracing`). It fetches this segment of all contributions, so the result is
exact. All waits have deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.past_average import PastAverage
from p2ptrain.errors import P2PTrainError, StoreError
from p2ptrain.identity import verify
from p2ptrain.ids import Digest, PeerId
from p2ptrain.names import label
from p2ptrain.node.averages.contribution_chunks import chunk_of
from p2ptrain.node.averages.documents import document_of
from p2ptrain.node.averages.signed_sums import sums_of
from p2ptrain.node.state.context import Context
from p2ptrain.proofs.average import NotAveraged
from p2ptrain.proofs.signed_sums import SumsRequest
from p2ptrain.proofs.sum_tracing import Kind, SegmentPlace, Trace, place_of, proves

TRACE_S = 60.0
"""Deadline in seconds for all questions. In a ring, each participant is asked in turn. A peer that
has not been asked by then is not named."""

WORDS: dict[Kind, str] = {"lied": "lied", "withheld": "withholds what it has to show"}


@dataclass(frozen=True, slots=True)
class Named:
    """A participant that is answerable for a wrong chunk. If it `lied`, its own signatures prove
    that. If it `withheld` something, it may have lost it."""

    peer: PeerId
    kind: Kind
    what: str

    @property
    def words(self) -> str:
        return f"{label(self.peer)} {WORDS[self.kind]}: {self.what}"


async def name_liars(
    context: Context,
    average: PastAverage,
    formats: Sequence[ContributionFormat],
    element: int,
) -> tuple[Named, ...]:
    """Return the participants that are answerable for the wrong segment that contains `element`; ()
    if nobody can be named."""
    peers = [each.peer for each in average.participants]
    if len(peers) == 1:
        return (Named(peers[0], "lied", "it averaged alone, and its update is wrong"),)
    place = place_of(average.terms, element)
    given, lacking = await _contributions(context, average, formats, place)
    if lacking:
        what = "it does not send its contribution"
        return tuple(Named(peer, "withheld", what) for peer in lacking)
    begin = partial(_begun, context, average, peers, place, given)
    try:
        trace = await trio.to_thread.run_sync(begin)
    except (NotAveraged, StoreError):
        return ()
    return await follow(context, trace)


def _begun(
    context: Context,
    average: PastAverage,
    peers: Sequence[PeerId],
    place: SegmentPlace,
    given: Sequence[bytes],
) -> Trace:
    segment = place.segment
    update = average.update_part(context.store, segment.start, segment.stop)
    return Trace(average.terms, peers, average.roster, place, given, update, verify)


async def follow(context: Context, trace: Trace) -> tuple[Named, ...]:
    """Ask the participants what was signed, and return those that are answerable."""
    with trio.move_on_after(TRACE_S):
        await _ask(context, trace)
    lies = [each for each in trace.found if each.kind == "lied"]
    assert all(proves(trace, each) for each in lies)
    return tuple(Named(trace.peers[each.number], each.kind, each.what) for each in trace.found)


async def _ask(context: Context, trace: Trace) -> None:
    """Ask participants until the search has ended. The owner of the part is the last one that is
    asked for its mean: every other participant has it too."""
    asked = SumsRequest(trace.roster, trace.place.start, trace.place.stop)
    owner = trace.peers[trace.owner]
    others = [each for each in trace.peers if each not in (owner, context.me)]
    context.draw.shuffle(others)
    for peer in (context.me, *others, owner):
        if not trace.is_begun:
            trace.take_mean(await sums_of(context, peer, asked, tries=1))
    while trace.due:
        number = trace.due[0]
        trace.take_inputs(number, await sums_of(context, trace.peers[number], asked))


async def segment_of(
    context: Context, contribution: Digest, format: ContributionFormat, place: SegmentPlace
) -> bytes:
    """Return a segment of a contribution. Raises P2PTrainError: it is not available."""
    segment = place.segment
    numbers = [
        number
        for number in range(format.chunks)
        if format.elements(number)[0] < segment.stop and format.elements(number)[1] > segment.start
    ]
    chunks = [await chunk_of(context, contribution, format, number) for number in numbers]
    first = segment.offset - numbers[0] * format.chunk_bytes
    return b"".join(chunks)[first : first + segment.bytes]


async def _contributions(
    context: Context,
    average: PastAverage,
    formats: Sequence[ContributionFormat],
    place: SegmentPlace,
) -> tuple[list[bytes], list[PeerId]]:
    """Return this segment of all contributions, and the participants whose contribution nobody
    sends."""
    given: list[bytes] = []
    lacking: list[PeerId] = []
    for each, about in zip(formats, average.participants, strict=True):
        try:
            claim = await document_of(context, average.step, about)
            given.append(await segment_of(context, claim.contribution, each, place))
        except P2PTrainError:
            lacking.append(each.peer)
    return given, lacking
