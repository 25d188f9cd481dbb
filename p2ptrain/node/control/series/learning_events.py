"""Learn the events and samples of the outer steps that this node did not observe, from members.

They are for reading only, as are the rows of `learning`, and never mix with what this node has seen
itself: it asks about other outer steps only, and the series keeps them in tables of their own. A
member's page covers few outer steps, and the order of the members is drawn anew for each page, so a
liar tells only a part. A sample must come from the peer whose turn it was, if the ledger here still
has the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import time

import trio

from p2ptrain.ids import PeerId
from p2ptrain.node.control.series.ask_members import ROUND_S, ask_in_rounds, page_from_members
from p2ptrain.node.control.series.learning import Gap, gaps_in
from p2ptrain.node.state.context import Context
from p2ptrain.observe.series import SeriesRecorder, StepRow
from p2ptrain.observe.series.rows import ToldRow, ToldSampleRow
from p2ptrain.peers.outside.sample_text import sampler_of
from p2ptrain.peers.protocol_names import HISTORY_EVENTS_PROTOCOL
from p2ptrain.peers.series.event_pages import PAGE_BYTES_MAX, EventPage, decode_events
from p2ptrain.peers.series.history_pages import HistoryRequest

FIRST_S = 15.0
"""Seconds after which a node that is up to date begins to ask. The charts come first."""

PAGE_S = 1.0
STEPS_EACH = 512
"""Number of outer steps of a page. A page that covered more would give one liar more to tell."""

PAGES_MAX = 32
"""Maximum number of pages in a round: the newest 16,384 unobserved outer steps."""

EARLIEST_S = 1_577_836_800.0
"""Unix seconds of 2020-01-01: earlier times are impossible, and are raised to this one."""


async def learn_events(
    context: Context,
    recorder: SeriesRecorder,
    *,
    first_s: float = FIRST_S,
    page_s: float = PAGE_S,
    round_s: float = ROUND_S,
    wall: Callable[[], float] = time,
) -> None:
    """Ask about the outer steps that this node did not observe, until cancelled. `wall` is a Unix
    clock."""
    told = set[Gap]()

    def read(answer: bytes, teller: PeerId) -> EventPage:
        return decode_events(answer, context.run, teller)

    async def ask_all() -> None:
        find = partial(gaps_in, context, context.ledger.snapshot.step, known=_is_observed)
        gaps = await trio.to_thread.run_sync(find)
        wanted = [part for gap in gaps for part in parts_of(gap)][:PAGES_MAX]
        for first, last in (part for part in wanted if part not in told):
            request = HistoryRequest(context.run, first, last)
            page = await page_from_members(
                context, HISTORY_EVENTS_PROTOCOL, request, read, PAGE_BYTES_MAX
            )
            if page is not None:
                told.add((first, last))
                recorder.tell(*credible(context, page, request, wall()))
            await trio.sleep(page_s)

    await ask_in_rounds(context, ask_all, first_s, round_s)


def _is_observed(row: StepRow) -> bool:
    """Return whether this node itself learned in time that the outer step had ended."""
    return row.time is not None and row.told_by is None


def parts_of(gap: Gap) -> Iterator[Gap]:
    """Yield the parts of a range of outer steps for which one member each is asked, newest first.
    The parts begin at fixed steps, so a range that grows has the same parts as before."""
    first, last = gap
    while last >= first:
        begin = max(first, (last - 1) // STEPS_EACH * STEPS_EACH + 1)
        yield begin, last
        last = begin - 1


def credible(
    context: Context, page: EventPage, request: HistoryRequest, now_s: float
) -> Iterator[ToldRow]:
    """Yield what this node cannot refute: rows about the outer steps that it asked for and about
    peers that its ledger knows. Times are moved into the time between 2020 and `now_s`."""
    state = context.ledger.snapshot
    known = {"", *state.tokens_by_peer, *state.members}
    asked = range(request.first, request.last + 1)
    for event in page.events:
        if event.step in asked and event.peer in known:
            yield replace(event, time=max(EARLIEST_S, min(event.time, now_s)))
    for sample in page.samples:
        if sample.step in asked and sample.peer in known and _was_due(context, sample):
            yield sample


def _was_due(context: Context, sample: ToldSampleRow) -> bool:
    """Return whether the run wants this sample, and the ledger here does not say that it was the
    turn of another peer."""
    wanted, ledger = context.manifest.samples, context.ledger
    if not wanted.is_due(sample.step) or sample.prompt >= len(wanted.prompts):
        return False
    if not ledger.kept.start.step < sample.step <= ledger.snapshot.step:
        return True
    took_part = [each.peer for each in ledger.history.newest_participants(sample.step)]
    return sampler_of(context.run, sample.step, took_part) == sample.peer
