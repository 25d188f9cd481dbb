"""Ask members for pages of the run's history: in rounds, and for each page one member after another
until one answers well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from p2ptrain.errors import PeerError, ProtocolError, TryLater
from p2ptrain.ids import PeerId
from p2ptrain.node.gossip.ask_peers import MEMBER, AskingRate, first_good, whom_to_ask
from p2ptrain.node.state.context import Context
from p2ptrain.peers.series.history_pages import HistoryRequest, encode_request

Page = TypeVar("Page")

HISTORY_PACE = AskingRate(at_once=1, next_s=3.0, deadline_s=15.0)
"""Ask one member after another: no task waits for the answer, and a page can take 640 kB."""

ROUND_S = 600.0
"""Seconds between two rounds. A node that was disconnected has a new gap afterwards."""


async def ask_in_rounds(
    context: Context, ask_all: Callable[[], Awaitable[object]], first_s: float, round_s: float
) -> None:
    """Call `ask_all` in each round, until cancelled. A round begins `first_s` after this node is up
    to date and could ask a member, and `round_s` after the round before."""
    while True:
        while not (context.at_head() and whom_to_ask(context, worst=MEMBER)):
            await context.changes.wait_calmly()
        await trio.sleep(first_s)
        await ask_all()
        await trio.sleep(round_s)


async def page_from_members(
    context: Context,
    protocol: str,
    request: HistoryRequest,
    read: Callable[[bytes, PeerId], Page | None],
    bytes_max: int,
) -> Page | None:
    """Return the first page that a member sends; None if there is none. `read(answer, teller)`
    runs in a thread. It returns None if the answer has nothing of use, and raises ProtocolError if
    the answer is a lie that can be recognised, which is then reported."""

    async def ask(peer: PeerId) -> Page | None:
        try:
            answer = await context.network.request(
                peer,
                protocol,
                encode_request(request),
                deadline_s=HISTORY_PACE.deadline_s,
                bytes_max=bytes_max,
            )
            return await trio.to_thread.run_sync(read, answer, peer) if answer else None
        except (PeerError, TryLater):
            return None  # An older version, or a busy member. Another one is asked.
        except ProtocolError as exc:
            context.peers.report_misbehaviour("bad-history", peer, reason=exc.what)
            return None

    return await first_good(whom_to_ask(context, worst=MEMBER), ask, HISTORY_PACE)
