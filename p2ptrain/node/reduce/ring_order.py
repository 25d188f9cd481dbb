"""From measured paths, choose the peer order and schedule that this node proposes for a reduce.

The ledger calls `arrange` when it proposes a roster. The pure function `ring.arrangement` makes the
choice. All members use the order and schedule of the roster that they agree on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Schedule
from p2ptrain.names import named, peer_name
from p2ptrain.node.gossip.own_endpoint import relays_offered
from p2ptrain.node.gossip.reachability import are_apart, changes_ports
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.relaying.relayed_links import relay_offers
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.ring import Paths, Relays, arrangement

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
        paths_between(context, peers),
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


def paths_between(context: Context, peers: Sequence[PeerId]) -> Paths:
    """Return the known paths between `peers`, and which pairs will probably need a relay."""
    paths = context.peers.paths.between(
        peers,
        partial(are_apart, context),
        unproven_rate=UNPROVEN_RATE if context.peers.punching.agree else 0.0,
    )
    pairs = combinations(sorted(peers), 2)
    relayed = frozenset(pair for pair in pairs if needs_relay(context, *pair))
    return replace(paths, relayed=relayed, relays=relays_now(context, paths.assumed))


def needs_relay(context: Context, one: PeerId, other: PeerId) -> bool:
    """Return whether these two will probably need a relay: neither can dial the other, and one of
    them reports that its ports change. About its own pairs, this node knows it from the last
    connection. A prediction that is wrong costs a less good order, and nothing else."""
    if not are_apart(context, one, other):
        return False
    if context.me in (one, other):
        peer, now = other if one == context.me else one, context.now()
        if peer in context.peers.punching.reached(now) | context.peers.relaying.reached(now):
            return context.peers.was_last_relayed(peer)
    return changes_ports(context, one) or changes_ports(context, other)


def relays_now(context: Context, assumed: float) -> Relays:
    """Return what is known about the members that offer to relay. `assumed` is the rate of one of
    which no path is known."""
    offers = {peer: _offered(context, peer) for peer in relay_offers(context)}
    if own := relays_offered(context):
        offers[context.me] = own
    uplinks = [context.peers.paths.fastest(peer) or assumed for peer in offers]
    return Relays(len(offers), sum(offers.values()), min(uplinks, default=assumed))


def _offered(context: Context, peer: PeerId) -> int:
    record = context.peers.table.get(peer)
    return 0 if record is None else record.heartbeat.relays


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
