"""Put one question to several peers at once, and take the first answer that proves good.

You want this wherever an answer from the network changes what the node does. The caller says who
may answer (`in_order`) and what proves an answer (`first_good`). A silent peer then costs nothing:
the next peer is asked a moment later, whatever the first one does, and one deadline covers the
whole question. This module does not know the question or the protocol.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import trio

from p2ptrain.errors import P2PTrainError
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context

Answer = TypeVar("Answer")

PeerRank = Callable[[PeerId], int]
"""How far back in the order a peer stands; the lowest rank is asked first."""


@dataclass(frozen=True, slots=True)
class AskingRate:
    """How fast a question spreads.

    `at_once` peers are asked immediately. Another peer is asked for each useless answer, and one
    more every `next_s` seconds without any answer. The question ends after `deadline_s`, so at most
    `at_once + deadline_s / next_s` peers are being waited for.
    """

    at_once: int
    next_s: float
    deadline_s: float

    def __post_init__(self) -> None:
        assert self.at_once > 0
        assert self.next_s > 0
        assert self.deadline_s > 0


HELLO_PACE = AskingRate(at_once=4, next_s=1.0, deadline_s=10.0)
"""For a hello, whose reply has at most 0.5 MB. Four peers: the chance that none of four members
drawn at random is honest and up is small, and four replies fit any line that can train. A second is
several round trips. Ten seconds carry the longest reply over a slow line; by then up to fourteen
peers have been asked, of which members come first."""


VOTER, MEMBER, ADMITTED, STRANGER = range(4)
"""Ranks, by how much a peer has to lose. The run has agreed on voters and members, the organiser
has admitted the third kind, and anybody can be a stranger."""


def rank_of(context: Context, peer: PeerId) -> int:
    """Return the rank of `peer` in this node's ledger."""
    state = context.ledger.snapshot
    if peer in state.voters:
        return VOTER
    if state.is_member(peer):
        return MEMBER
    return ADMITTED if context.admission.admits(peer) else STRANGER


def whom_to_ask(context: Context, *, worst: int) -> list[PeerId]:
    """Return the connected peers of rank `worst` or better in the order in which to ask them."""
    ranks = {peer: rank_of(context, peer) for peer in context.network.connected()}
    fit = [peer for peer, rank in ranks.items() if rank <= worst]
    return in_order(fit, ranks.__getitem__, context.draw)


def in_order(peers: Iterable[PeerId], rank: PeerRank, draw: random.Random) -> list[PeerId]:
    """Return `peers` by rank. Within a rank the order is drawn.

    The order must not follow the peer ids: anybody can make keys until one gives an id that sorts
    first.
    """
    drawn = sorted(peers)  # A set has no order that the same seed would repeat.
    draw.shuffle(drawn)
    return sorted(drawn, key=rank)


async def first_good(
    peers: Sequence[PeerId], ask: Callable[[PeerId], Awaitable[Answer | None]], pace: AskingRate
) -> Answer | None:
    """Return the first answer that is not None; None if there is none before the deadline.

    `ask` puts the question to one peer, checks the answer, and returns None if the peer does not
    answer or its answer proves nothing. Once an answer was good, the other calls of `ask` are
    cancelled where they wait. Code that must run after a good answer belongs after this call.

    Raises any P2PTrainError that `ask` raises; it ends the question.
    """
    found: list[Answer] = []
    failed: list[P2PTrainError] = []
    turns = trio.Semaphore(pace.at_once)

    async def ask_one(peer: PeerId) -> None:
        try:
            answer = await ask(peer)
        except P2PTrainError as exc:
            failed.append(exc)
            nursery.cancel_scope.cancel()
            return
        if answer is None:
            turns.release()
            return
        found.append(answer)
        nursery.cancel_scope.cancel()

    with trio.move_on_after(pace.deadline_s):
        async with trio.open_nursery() as nursery:
            for peer in peers:
                with trio.move_on_after(pace.next_s):
                    await turns.acquire()
                nursery.start_soon(ask_one, peer)
    if failed:
        raise failed[0]
    return found[0] if found else None
