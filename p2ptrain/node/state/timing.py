"""How long a node's tasks wait for other peers and for the trainer, and how often they check.

Tasks receive these times as arguments, so a test can pass shorter ones and need not wait. Users
cannot change them. Limits that protect us from peers are not here; they are defined in the modules
that enforce them.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.peers.duplicate_watch import USUAL_TIMING, QuestionTiming
from p2ptrain.ring import SILENCE_S


@dataclass(frozen=True, slots=True)
class ReduceTiming:
    dial_s: float = 4.0
    """Limit for one dial of a neighbour: several times what a busy machine far away needs."""
    reuse_s: float = 1.0
    """How long a neighbour may take to answer on a connection that was kept since the last reduce.
    It answers at once, even if it has not heard of the new roster. So this covers a round trip and
    a delay of its event loop, and is what a dead connection costs."""
    lag_s: float = 5.0
    """How long a participant continues with its own reduce after the others have committed the
    result. All participants normally finish within a few seconds of each other. After this time,
    the node fetches the update, which may take as long as the reduce."""


@dataclass(frozen=True, slots=True)
class RepairTiming:
    look_s: float = 30.0
    """How long peers are asked for damaged chunks before the scrub continues its check."""
    try_s: float = 300.0
    """Limit for one fetch of damaged chunks, so that a slow source does not stop the scrub. At 112
    kbit/s, one chunk arrives in this time. Received chunks are kept, and the scrub's next pass asks
    for the missing ones again."""


@dataclass(frozen=True, slots=True)
class Timing:
    heartbeat_s: float = 2.0
    """Time between two heartbeats of a node, in a run of a few peers."""
    hear_first_s: float = 10.0
    """Time to wait for the first heartbeats of other peers: five heartbeat intervals. A node that
    has not heard from any peer by then continues with its own data."""
    fetch_retry_s: float = 2.0
    """Pause before a failed fetch is repeated: one heartbeat interval. By then this node may have
    heard of a peer that has the bytes."""
    fetch_limit_s: float = 3600.0
    """Limit for one try at a whole blob. The next try fetches only the chunks still missing."""
    lost_s: float = 10.0
    """Time after which an update or snapshot counts as lost: five heartbeat intervals. By then we
    have heard from every peer that may still have it, and have asked that peer."""
    pruned_s: float = 60.0
    """How long a node that lacks ledger entries waits for a peer that has them."""
    trainer_look_s: float = 1.0
    """Interval at which the trainer's processes are checked."""
    donor_answer_s: float = 90.0
    """Time to wait for the first offer of an inner optimizer's state, and after each offer for the
    next one. It is long because a donor must first write 8 bytes per parameter."""
    donor_again_s: float = 2.0
    """Pause between two requests for an inner optimizer's state."""
    connection_look_s: float = 1.0
    """Interval at which the connections are checked."""
    connection_retry_s: float = 2.0
    """Pause after the first failed dial of a peer. It doubles with each further failure."""
    others_turn_s: float = 4.0
    """The peer with the larger id waits this long for the other to dial, so that two peers rarely
    dial each other at once."""
    edge_s: float = 0.75 * SILENCE_S
    """Time for two neighbours of a reduce to connect. 6 s is longer than a heartbeat interval plus
    a gossip hop, so by then a live neighbour has received the roster. 6 s is also shorter than
    SILENCE_S. Neighbours that are already connected receive nothing until all connections are open,
    so after SILENCE_S they would report us as faulty. When this limit was 10 s, a participant that
    did not open one of its connections caused an honest peer to be reported for silence."""
    probe_every_s: float = 20.0
    """Interval between two probes. A probe transfers at most 2 MiB, so probes use at most 0.8
    Mbit/s."""
    revocation_look_s: float = 5.0
    """Interval at which we check that the newest allowlist still contains us."""
    amendment_ask_s: float = 2.0
    """Pause between two requests for a missing amendment."""
    approval_look_s: float = 15.0
    """Interval at which we ask whether the organiser has admitted us."""
    reduce: ReduceTiming = ReduceTiming()
    repair: RepairTiming = RepairTiming()
    questions: QuestionTiming = USUAL_TIMING
    """How often members are asked whether another process has our identity."""


USUAL = Timing()
