"""Ask members for a page of the run's history, one after another until one answers well."""

from __future__ import annotations

from collections.abc import Callable
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
