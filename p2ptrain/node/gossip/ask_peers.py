"""Ask several peers the same question at once, and use the first valid answer.

Use this module wherever an answer from the network changes what the node does. The caller sorts the
peers with `in_order`, and passes to `first_good` a function that asks a peer and checks its answer.
A silent peer delays the result by `AskingRate.next_s` at most, since the next peer is then asked
too. This module does not know the question or the protocol.
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
"""Returns the rank of a peer. Peers with the lowest rank are asked first."""


@dataclass(frozen=True, slots=True)
class AskingRate:
    """How many peers are asked, and how fast.

    `at_once` peers are asked immediately. One more peer is asked after each invalid answer, and one
    more after every `next_s` seconds without an answer. No peer is asked after `deadline_s`, so at
    most `at_once + deadline_s / next_s` silent peers are waited for."""

    at_once: int
    next_s: float
    deadline_s: float

    def __post_init__(self) -> None:
        assert self.at_once > 0
        assert self.next_s > 0
        assert self.deadline_s > 0


HELLO_PACE = AskingRate(at_once=4, next_s=1.0, deadline_s=10.0)
"""The rate for a hello (`hello_client`), whose reply has at most 0.5 MB. Four peers are asked at
once: of four members chosen at random, at least one is very likely honest and up, and a connection
that is fast enough to train can carry four replies. One more peer is asked each second, which is
several round trips. Ten seconds are enough for the longest reply over a slow connection. By then up
to 4 + 10 peers have been asked, members first."""


VOTER, MEMBER, ADMITTED, STRANGER = range(4)
"""Ranks of peers, the most trustworthy first. The run has agreed on its voters and members, the
organiser has admitted the peers of the third rank, and any other peer is a stranger: readers do not
influence a node."""


def rank_of(context: Context, peer: PeerId) -> int:
    """Return the rank of `peer` in this node's ledger."""
    state = context.ledger.snapshot
    if peer in state.voters:
        return VOTER
    if state.is_member(peer):
        return MEMBER
    return ADMITTED if context.admission.may_train(peer) else STRANGER


def whom_to_ask(context: Context, *, worst: int) -> list[PeerId]:
    """Return the connected peers of rank `worst` or better, in the order to ask them."""
    ranks = {peer: rank_of(context, peer) for peer in context.network.connected()}
    fit = [peer for peer, rank in ranks.items() if rank <= worst]
    return in_order(fit, ranks.__getitem__, context.draw)


def in_order(peers: Iterable[PeerId], rank: PeerRank, draw: random.Random) -> list[PeerId]:
    """Sort `peers` by rank. Within a rank, the order is random.

    The order must not depend on the peer ids: anybody can create keys until one of them gives an id
    that sorts first."""
    drawn = sorted(peers)  # The order of a set is not reproducible with the same seed.
    draw.shuffle(drawn)
    return sorted(drawn, key=rank)


async def first_good(
    peers: Sequence[PeerId], ask: Callable[[PeerId], Awaitable[Answer | None]], pace: AskingRate
) -> Answer | None:
    """Return the first answer that is not None; None if there is none before the deadline.

    `ask` asks one peer, checks the answer, and returns None if the peer does not answer or its
    answer is invalid. Once an answer is valid, the other calls of `ask` are cancelled at their next
    checkpoint. Code that must run after a valid answer belongs after this call.

    If `ask` raises a P2PTrainError, the other calls are cancelled and the error is raised."""
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
