"""How long the tasks of a node wait for other peers, for the trainer and between two looks.

These are arguments of the tasks: a test makes a `Timing` of its own and need not wait. Users cannot
change them. Limits that protect us from peers are not among them; they stand where they are
enforced.
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
    """How long peers are asked for damaged chunks before the scrub goes on."""
    try_s: float = 300.0
    """Limit for one try, so that a slow source does not stop the scrub. A line of 112 kbit/s brings
    one chunk in this time. Received chunks are kept, and the others are tried in the next pass."""


@dataclass(frozen=True, slots=True)
class Timing:
    heartbeat_s: float = 2.0
    """Time between two heartbeats of a node, in a run of a few peers."""
    hear_first_s: float = 10.0
    """Five heartbeats: a node that has heard nobody by then is alone, and goes on with what it
    has."""
    fetch_retry_s: float = 2.0
    """One heartbeat: by then this node may have heard of a peer that has the bytes."""
    fetch_limit_s: float = 3600.0
    """Limit for one try at a whole blob. Received chunks are kept, and the next try goes on from
    there."""
    lost_s: float = 10.0
    """Five heartbeats: by then every peer that still has an update or a snapshot was heard and
    asked."""
    pruned_s: float = 60.0
    """How long a node waits for a peer that has the missing entries before it gives up."""
    trainer_look_s: float = 1.0
    """Pause between two looks at the trainer's processes."""
    donor_answer_s: float = 90.0
    """Time to wait for the first offer of an inner optimizer, and again for each next one: a donor
    must first write 8 bytes a parameter."""
    donor_again_s: float = 2.0
    """Pause between two requests for an inner optimizer."""
    connection_look_s: float = 1.0
    """Pause between two looks at the connections."""
    connection_retry_s: float = 2.0
    """Pause after the first failed dial of a peer. It doubles with each further one."""
    others_turn_s: float = 4.0
    """How long the peer with the larger id waits for the other to dial."""
    edge_s: float = 0.75 * SILENCE_S
    """Time for both ends of a reduce's connection to meet. 6 s are longer than a heartbeat and a
    gossip hop, so by then a live neighbour has received the roster. They are shorter than the
    silence after which neighbours that are connected already would blame us, because nothing is
    sent before all connections are open. With 10 s, a participant that left out one connection got
    an honest peer blamed for silence."""
    probe_every_s: float = 20.0
    """A probe takes 2 MiB at most: 0.8 Mbit/s while there is a path left to probe."""
    revocation_look_s: float = 5.0
    """Pause between two looks at whether the newest allowlist still names us."""
    amendment_ask_s: float = 2.0
    """Pause between two requests for a missing amendment."""
    approval_look_s: float = 15.0
    """Pause between two questions whether the organiser has admitted us."""
    reduce: ReduceTiming = ReduceTiming()
    repair: RepairTiming = RepairTiming()
    questions: QuestionTiming = USUAL_TIMING
    """How often members are asked whether another process has our identity."""


USUAL = Timing()
