"""The tasks of every process in a run's network: nodes and observers."""

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
from p2ptrain.node.gossip.gossip import listen, speak
from p2ptrain.node.gossip.revocation import notice_revocation
from p2ptrain.node.joining.duplicate_identity import answer_questions, keep_alone
from p2ptrain.node.joining.hello_server import answer_hellos
from p2ptrain.node.state.context import Parts
from p2ptrain.run import Run

_TASKS = (
    speak,
    listen,
    stay_connected,
    bootstrap_again,
    find_peers,
    notice_lost_connections,
    watch_peers,
    notice_revocation,
    notice_pruned,
    keep_alone,
    keep_amended,
)


def be_present(nursery: trio.Nursery, parts: Parts, run: Run) -> None:
    """Start the tasks that answer peers, send and receive gossip, and keep connections open."""
    answer_hellos(parts, run)
    answer_questions(parts)
    for task in _TASKS:
        nursery.start_soon(task, parts)
