"""Find out which participant made a wrong chunk of an average.

The participants sign their sums and means (`p2ptrain.ring`), and keep what was signed to them. This
node takes the first block of the chunk that is wrong, and follows the signatures of the segment
that contains this block from the owner of the part towards the contributions
(`p2ptrain.proofs.sum_tracing`). It fetches this segment of all contributions, so the result is
exact. All waits have deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.past_average import PastAverage
from p2ptrain.errors import P2PTrainError, StoreError
from p2ptrain.identity import verify
from p2ptrain.ids import PeerId
from p2ptrain.node.averages.contribution_chunks import segment_of
from p2ptrain.node.averages.documents import document_of
from p2ptrain.node.averages.signed_sums import Named, follow
from p2ptrain.node.state.context import Context
from p2ptrain.proofs.average import NotAveraged
from p2ptrain.proofs.sum_tracing import SegmentPlace, Trace, place_of


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
