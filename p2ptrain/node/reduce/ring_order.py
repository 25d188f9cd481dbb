"""Choose order and schedule of the reduce that this node proposes, from what it knows of the paths.

The ledger asks when it makes a proposal. The choice itself is `ring.arrangement`, a pure function;
what everybody runs is what the agreed roster says.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Schedule
from p2ptrain.names import named, peer_name
from p2ptrain.node.gossip.reachability import undialable
from p2ptrain.node.outer_state import update_blobs
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.ring import arrangement

WARNING = "arrangement"
FORWARD = "the owner of one of the two should forward its data plane's port (--data-listen)"


def arrange(parts: Parts, peers: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
    """For `Ledger`: the schedule, and `peers` in their order.

    Where no order avoids a pair that cannot connect, the roster has such a pair all the same, since
    nobody may be dropped here: the two know at once, and one of them stays out of the next attempt.
    """
    parts.paths.keep_only(parts.ledger.state.since)
    found = arrangement(
        peers,
        update_blobs.payload_bytes_about(parts),
        parts.paths.between(peers, undialable(parts, peers)),
        current=parts.history.last_arrangement(),
    )
    if found != parts.standing.arranged:
        parts.standing.arranged = found
        parts.journal.write(
            "arranged",
            step=parts.ledger.state.step,
            schedule=found.schedule,
            peers=found.peers,
            reason=found.reason,
            barred=found.barred,
        )
    if found.barred:
        parts.standing.warnings[WARNING] = Caution("ORDER-BARRED", named(found.reason), FORWARD)
    else:
        parts.standing.warnings.pop(WARNING, None)
    return found.schedule, found.peers


def in_words(parts: Parts) -> str:
    """How members averaged last, and why, if it was this node's choice; empty before the first."""
    schedule, peers = parts.history.last_arrangement()
    if not peers:
        return ""
    words = f"{schedule}, in the order {', '.join(map(peer_name, peers))}"
    found = parts.standing.arranged
    if found is None or (found.schedule, found.peers) != (schedule, peers):
        return words
    return f"{words}; {found.reason}"
