"""Learn the part of the run's history that this node did not observe, from members.

A newcomer has the ledger, so it knows the tokens of every peer, but not when the steps ended nor
what the peers reported. It asks members for that, page by page, from the newest gap to the oldest.
For each page the order of the members is drawn anew, so one liar tells only a part, and the rows
name the member that told them. Tokens always come from this node's own ledger where it has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import time

import trio

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.control.series.ask_members import ROUND_S, ask_in_rounds, page_from_members
from p2ptrain.node.state.context import Context
from p2ptrain.observe.series import (
    PeerStepRow,
    SeriesReader,
    SeriesRecorder,
    SeriesUnavailable,
    StepRow,
)
from p2ptrain.peers.protocol_names import HISTORY_PROTOCOL
from p2ptrain.peers.series.history_pages import (
    PAGE_BYTES_MAX,
    HistoryPage,
    HistoryRequest,
    decode_page,
)

FIRST_S = 5.0
"""Seconds after which a node that is up to date begins to ask. A newcomer has more urgent things to
do before."""

PAGE_S = 0.5
"""Pause between two pages."""

PAGES_MAX = 4096
"""Maximum number of pages in a round."""

CLOCK_S = 3600.0
"""Seconds by which a member's clock may be ahead of ours. Later times would spoil the charts."""

Gap = tuple[int, int]


async def learn_history(
    context: Context,
    recorder: SeriesRecorder,
    *,
    first_s: float = FIRST_S,
    page_s: float = PAGE_S,
    round_s: float = ROUND_S,
    wall: Callable[[], float] = time,
) -> None:
    """Fill the gaps of the series until cancelled. `wall` is a Unix clock."""
    vain = set[Gap]()

    async def fill_all() -> None:
        until = context.ledger.snapshot.step
        for gap in await trio.to_thread.run_sync(gaps_in, context, until):
            if gap not in vain and not await _fill(context, recorder, gap, page_s, wall):
                vain.add(gap)

    await ask_in_rounds(context, fill_all, first_s, round_s)


async def _fill(
    context: Context,
    recorder: SeriesRecorder,
    gap: Gap,
    page_s: float,
    wall: Callable[[], float],
) -> bool:
    """Ask for the pages of one gap, newest first. Return whether any member told anything."""
    first, last, told = *gap, False
    for _ in range(PAGES_MAX):
        page = await _page(context, HistoryRequest(context.run, first, last), wall)
        if page is None:
            return told
        for row, peers in certified(context, page):
            recorder.fill(row, peers)
        told, last = True, page.steps[0].step - page.steps[0].covers
        if last < first:
            return True
        await trio.sleep(page_s)
    return told


async def _page(
    context: Context, request: HistoryRequest, wall: Callable[[], float]
) -> HistoryPage | None:
    def read(answer: bytes, teller: PeerId) -> HistoryPage | None:
        page = decode_page(answer, context.run, teller)
        if why := _objection(page, request, wall()):
            raise RemoteProtocolError(why, peer=teller)
        return page if page.steps else None

    return await page_from_members(context, HISTORY_PROTOCOL, request, read, PAGE_BYTES_MAX)


def _objection(page: HistoryPage, request: HistoryRequest, now_s: float) -> str:
    """Return why the page does not answer the request; "" if it does."""
    if not all(request.first <= row.step <= request.last for row in page.steps):
        return "a page of history has outer steps that were not asked for"
    times = [row.time for row in page.steps if row.time is not None]
    if times != sorted(times) or any(not 0 < each <= now_s + CLOCK_S for each in times):
        return "a page of history has impossible times"
    return ""


def _has_time(row: StepRow) -> bool:
    """Return whether the series knows more about an outer step than the ledger says."""
    return row.time is not None


def gaps_in(
    context: Context, until: int, *, known: Callable[[StepRow], bool] = _has_time
) -> list[Gap]:
    """Return the ranges of outer steps up to `until` for whose rows `known` is False or that have
    no row, newest first. Run this in a thread."""
    try:
        with SeriesReader(context.home.series) as reader:
            rows = reader.steps_between(1, until)
    except SeriesUnavailable:
        rows = []
    found, next_step = list[Gap](), until
    for row in reversed(rows):
        if known(row):
            if row.step < next_step:
                found.append((row.step + 1, next_step))
            next_step = row.step - row.covers
    return [*found, (1, next_step)] if next_step >= 1 else found


def certified(
    context: Context, page: HistoryPage
) -> Iterator[tuple[StepRow, Sequence[PeerStepRow]]]:
    """Yield the rows of each outer step with the tokens of our own ledger in place of the teller's.

    If the ledger here no longer has the step, the teller's tokens stay, but only of peers that the
    ledger knows as contributors or members."""
    state = context.ledger.snapshot
    known = {*state.tokens_by_peer, *state.members}
    for row in page.steps:
        peers = [each for each in page.peers if each.step == row.step]
        tokens = _tokens_of(context, row)
        if tokens is None:
            yield row, [each for each in peers if each.peer in known]
            continue
        told = {each.peer: each for each in peers if each.peer in {*known, *tokens}}
        yield (
            replace(row, tokens=sum(count for count, _ in tokens.values()), tokens_total=None),
            [
                replace(
                    told.get(peer, PeerStepRow(row.step, peer, told_by=row.told_by)),
                    tokens=tokens.get(peer, (0, 0))[0],
                    contributed=tokens.get(peer, (0, 0))[1],
                )
                for peer in dict.fromkeys((*told, *tokens))
            ],
        )


def _tokens_of(context: Context, row: StepRow) -> dict[str, tuple[int, int]] | None:
    """Return the tokens and the number of contributions of each peer in the outer steps that `row`
    covers, by our own ledger; None if the ledger here lacks one of these steps."""
    steps: Iterable[int] = range(row.step - row.covers, row.step)
    kept, found = context.ledger.kept.start.step, dict[str, tuple[int, int]]()
    if row.step - row.covers < kept or row.step > context.ledger.snapshot.step:
        return None
    for step in steps:
        for each in context.ledger.history.participants(step):
            tokens, times = found.get(each.peer, (0, 0))
            found[each.peer] = (tokens + each.tokens, times + 1)
    return found
