"""The tasks of every process in a run's network, whether it is a node or an observer."""

from __future__ import annotations

import trio

from p2ptrain.node.consensus.pruning import notice_pruned
from p2ptrain.node.gossip.amendment_gossip import keep_amended
from p2ptrain.node.gossip.connections import (
    bootstrap_again,
    find_peers,
    notice_lost_connections,
    stay_connected,
    watch_peers,
)
from p2ptrain.node.gossip.gossip import listen, send_heartbeats
from p2ptrain.node.gossip.revocation import notice_revocation
from p2ptrain.node.joining.duplicate_identity import answer_questions, watch_for_duplicates
from p2ptrain.node.joining.hello_server import answer_hellos
from p2ptrain.node.state.context import Parts
from p2ptrain.run import Run

_TASKS = (
    send_heartbeats,
    listen,
    stay_connected,
    bootstrap_again,
    find_peers,
    notice_lost_connections,
    watch_peers,
    notice_revocation,
    notice_pruned,
    watch_for_duplicates,
    keep_amended,
)


def start_presence(nursery: trio.Nursery, parts: Parts, run: Run) -> None:
    """Answer neighbours, send and receive gossip, and stay connected while the nursery lasts."""
    answer_hellos(parts, run)
    answer_questions(parts)
    for task in _TASKS:
        nursery.start_soon(task, parts)
