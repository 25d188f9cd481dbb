"""The purposes of punched connections, in words that both ends understand.

A node that is asked to punch decides by these words whether it still wants the connection. It
refuses what is over, so a message that was stored and delivered late has no effect.
"""

from __future__ import annotations

from p2ptrain.dataplane import RingKey
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.punching import CHUNKS

_REDUCE = "reduce"


def reduce_purpose(key: RingKey) -> str:
    """Return what an agreement for the attempt of `key` is about."""
    return f"{_REDUCE} {key.run} {key.step} {key.attempt}"


def unwanted(context: Context, peer: PeerId, about: str, count: int) -> str:
    """Return why this node does not want to punch `count` connections with `peer` for this purpose;
    "" if it does."""
    if about == CHUNKS:  # It replaces a dial, which would be accepted too.
        return "" if count == 1 else "chunks need one connection only"
    kind, *parts = about.split(" ")
    if kind != _REDUCE or len(parts) != 3 or not all(it.isdecimal() for it in parts[1:]):
        return "this node does not know this purpose"
    state, place = context.ledger.snapshot, (int(parts[1]), int(parts[2]))
    if parts[0] != state.line:
        return "this node follows another branch of the ledger"
    if state.roster is not None and place == (state.roster.step, state.roster.attempt):
        return "" if peer in state.roster.peers else "you do not take part in that exchange"
    if place < (state.step, state.attempt):
        return "that attempt is over"
    # The roster of the next attempt may still be on its way, but others cannot be open.
    is_next = place in ((state.step, state.attempt), (state.step + 1, 0))
    return "" if is_next else "that attempt has not begun"
