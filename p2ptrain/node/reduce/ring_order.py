"""From measured paths, choose the peer order and schedule that this node proposes for a reduce.

The ledger calls `arrange` when it proposes a roster. The pure function `ring.arrangement` makes the
choice. All members use the order and schedule of the roster that they agree on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Schedule
from p2ptrain.names import named, peer_name
from p2ptrain.node.gossip.reachability import are_apart
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.ring import arrangement

WARNING = "arrangement"
UNPROVEN_RATE = 125_000.0
"""Bytes per second assumed between two peers that cannot be dialled: 1 Mbit/s. They punch holes or
use a relay. The low rate makes them neighbours only if no other order of the peers is possible, or
once a transfer between them was measured."""
FORWARD = "in each pair, the owner of one node should forward that node's data port (--data-listen)"


def arrange(context: Context, peers: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
    """Return the schedule and the ordered peers for a proposed roster.

    If no order avoids neighbours that cannot connect, return an order that has such a pair, since
    this function must not drop peers. The pair fails immediately, and one peer of the pair sits out
    the next attempt.
    """
    context.peers.paths.keep_only(context.ledger.snapshot.since)
    about = context.about(context.ledger.snapshot.step).manifest
    found = arrangement(
        peers,
        update_blobs.payload_bytes_about(context),
        context.peers.paths.between(
            peers,
            partial(are_apart, context),
            unproven_rate=UNPROVEN_RATE if context.peers.punching.agree else 0.0,
        ),
        current=context.ledger.history.last_arrangement(),
        is_coarse=about.codec.name == "int4",
    )
    if found != context.reduce.arranged:
        context.reduce.arranged = found
        context.journal.write(
            "arranged",
            step=context.ledger.snapshot.step,
            schedule=found.schedule,
            peers=found.peers,
            reason=found.reason,
            barred=found.barred,
        )
    if found.barred:
        context.alerts.show(WARNING, Caution("ORDER-BARRED", named(found.reason), FORWARD))
    else:
        context.alerts.clear(WARNING)
    return found.schedule, found.peers


def in_words(context: Context) -> str:
    """Describe the order of the last reduce. If this node chose it, also say why. Return "" before
    the first reduce."""
    schedule, peers = context.ledger.history.last_arrangement()
    if not peers:
        return ""
    words = f"{schedule}, in the order {', '.join(map(peer_name, peers))}"
    found = context.reduce.arranged
    if found is None or (found.schedule, found.peers) != (schedule, peers):
        return words
    return f"{words}; {found.reason}"
