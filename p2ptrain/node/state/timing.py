"""How long a node's tasks wait for other peers and for the trainer, and how often they poll.

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
    """Limit for one dial of a neighbour: several times what a busy machine on the other side of the
    world needs."""
    lag_s: float = 5.0
    """Participants finish a reduce within a few seconds of each other. After this time something is
    wrong, and the update is fetched, which over a slow line takes as long as the reduce did."""


@dataclass(frozen=True, slots=True)
class RepairTiming:
    look_s: float = 30.0
    """How long peers are asked for damaged chunks before the scrub continues."""
    try_s: float = 300.0
    """Limit for one try, so that a slow source does not stop the scrub. At 112 kbit/s, one chunk
    arrives in this time. Received chunks are kept, and the missing ones are tried again in the next
    pass."""


@dataclass(frozen=True, slots=True)
class Timing:
    heartbeat_s: float = 2.0
    """Time between two heartbeats of a node, in a run of a few peers."""
    hear_first_s: float = 10.0
    """Five heartbeats: a node that has not heard from any peer by then assumes that it is alone,
    and continues with its own data."""
    fetch_retry_s: float = 2.0
    """One heartbeat: by then this node may have heard of a peer that has the bytes."""
    fetch_limit_s: float = 3600.0
    """Limit for one try at a whole blob. Received chunks are kept, and the next try fetches only
    the rest."""
    lost_s: float = 10.0
    """Five heartbeats: by then we have heard from, and asked, every peer that still has the update
    or snapshot."""
    pruned_s: float = 60.0
    """How long a node waits for a peer that has the missing entries before it gives up."""
    trainer_look_s: float = 1.0
    """Interval at which the trainer's processes are checked."""
    donor_answer_s: float = 90.0
    """Time to wait for the first offer of an inner optimizer's state, and again for each further
    offer: a donor must first write 8 bytes per parameter."""
    donor_again_s: float = 2.0
    """Pause between two requests for an inner optimizer's state."""
    connection_look_s: float = 1.0
    """Interval at which the connections are checked."""
    connection_retry_s: float = 2.0
    """Pause after the first failed dial of a peer. It doubles with each further failure."""
    others_turn_s: float = 4.0
    """Of two peers, the one with the larger id waits this long for the other one to dial."""
    edge_s: float = 0.75 * SILENCE_S
    """Time for both ends of a reduce's connection to meet. 6 s are longer than a heartbeat and a
    gossip hop, so by then a live neighbour has received the roster. 6 s are also shorter than
    SILENCE_S. Neighbours that are already connected receive nothing until all connections are open,
    so after SILENCE_S they would blame us. With 10 s, a participant that left out one connection
    got an honest peer blamed for silence."""
    probe_every_s: float = 20.0
    """Interval between two probes. A probe takes 2 MiB at most, so probing takes up to 0.8 Mbit/s
    while there are paths to probe."""
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
