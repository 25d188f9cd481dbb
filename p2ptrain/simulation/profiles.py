"""The kinds of faults and their rates: the worlds in which the ledger must keep its guarantees."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ledger.chain.rules import QuorumLoss, QuorumPolicy


@dataclass(frozen=True, slots=True)
class Profile:
    """The faults of a world, and how often they happen. A field `…_every_s` is the mean time
    between two faults of this kind; 0 means never. Fields in `_s` are virtual seconds. Every other
    float is a probability, except `clock_drift`, the largest relative error of a clock's rate.

    Faults happen until `faults_s`. Then the network is repaired, and all nodes that are going to
    return are back. From then on, the next commit must come within `settle_s` of the latest of the
    last commit, the end of the faults, and the end of the training in progress. Otherwise the run
    counts as stuck. (A quorum may need a slow voter that has to train on the blocks of four skipped
    steps. In 100,000 runs this took up to 29 s. Other delays took up to 14 s, in `duels`.)
    """

    name: str
    delay_s: tuple[float, float] = (0.005, 0.03)
    loss: float = 0.0
    duplication: float = 0.0
    delay_spike: float = 0.0
    delay_spike_s: float = 3.0
    crash_every_s: float = 0.0
    down_s: tuple[float, float] = (0.3, 12.0)
    crash_in_effects: float = 0.0
    partition_every_s: float = 0.0
    partition_s: tuple[float, float] = (1.0, 15.0)
    one_way: float = 0.0
    reduce_fails: float = 0.0
    reduce_half_done: float = 0.0
    join_every_s: float = 0.0
    leave_every_s: float = 0.0
    vanish_every_s: float = 0.0
    slow_peers: float = 0.0
    faults_s: float = 60.0
    settle_s: float = 30.0
    through_wire: bool = False
    seeds_among_peers: int = 0
    pause_every_s: float = 0.0
    pause_s: tuple[float, float] = (0.5, 25.0)
    clock_drift: float = 0.0
    clock_leap_every_s: float = 0.0
    clock_leap_s: tuple[float, float] = (1.0, 60.0)
    liars: int = 0
    quorum: QuorumPolicy = "majority"
    pruners: float = 0.0
    """Probability that a node, except the first founder, deletes old entries. Half of the newcomers
    among these nodes begin at a checkpoint that their user gave them."""
    keep_entries: int = 6
    quorum_loss: QuorumLoss = "wait"
    amend_every_s: float = 0.0
    spoilers: int = 0
    """Number of founders, counted from the last, that spoil their reduces."""
    sybils: int = 0
    """Maximum number of invented identities that join. If it is above 0, the run is open."""
    founder_away_every_s: float = 0.0
    """Mean seconds until a founder leaves, counted from the time at which all are present."""
    founder_away_s: tuple[float, float] = (0.2, 14.0)

    delegates: int = 0
    """Number of volunteers to which the organiser delegates votes. The founders are then lost
    for good, one after another."""

    claims: bool = False
    """Whether participants are bound to claims about their contributions."""
    claim_liars: int = 0
    """Number of founders, counted from the last, that lie about their claims."""
    audits: bool = False
    """Whether auditors check claims, and can exclude peers from averages."""
    audit_liars: int = 0
    """Number of founders, counted from the last, that fake contributions and lie as auditors."""
    speed_ratio: float = 1.0
    """The speed of the fastest trainer divided by that of the slowest."""

    @property
    def open(self) -> bool:
        return self.sybils > 0

    @property
    def keeps_processes(self) -> bool:
        """Whether processes never stop and are never paused."""
        stops = (self.crash_every_s, self.crash_in_effects, self.vanish_every_s, self.leave_every_s)
        return not any((*stops, self.founder_away_every_s)) and not self.pause_every_s

    @property
    def is_orderly(self) -> bool:
        """Whether no messages are lost or held up at random, no reduces fail at random, no clocks
        jump, and no peers lie."""
        chance = (self.loss, self.delay_spike, self.reduce_fails, self.reduce_half_done)
        return not any(chance) and not self.liars and not self.clock_leap_every_s


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("calm"),
        Profile("wire", through_wire=True, loss=0.02, seeds_among_peers=1),
        Profile("lossy", loss=0.2, duplication=0.1, delay_s=(0.005, 0.3), delay_spike=0.02),
        Profile(
            "crashes",
            crash_every_s=4.0,
            crash_in_effects=0.004,
            reduce_fails=0.1,
            reduce_half_done=0.1,
            loss=0.01,
        ),
        Profile(
            "torn",
            crash_every_s=6.0,
            crash_in_effects=0.02,
            down_s=(0.02, 1.5),
            reduce_half_done=0.3,
            loss=0.1,
        ),
        Profile(
            "duels",
            delay_s=(0.02, 0.8),
            loss=0.15,
            duplication=0.1,
            reduce_half_done=0.5,
            crash_every_s=6.0,
            down_s=(0.02, 2.0),
        ),
        Profile("partitions", partition_every_s=8.0, one_way=0.3, loss=0.01),
        Profile(
            "churn",
            join_every_s=5.0,
            leave_every_s=12.0,
            vanish_every_s=15.0,
            reduce_fails=0.05,
            slow_peers=0.2,
            seeds_among_peers=1,
        ),
        Profile("pauses", pause_every_s=9.0),
        Profile("clocks", clock_drift=0.2, clock_leap_every_s=6.0, delay_s=(0.005, 0.1)),
        Profile("one-way", partition_every_s=6.0, one_way=1.0, delay_spike=0.02),
        Profile(
            "crowd",
            join_every_s=3.0,
            leave_every_s=4.0,
            vanish_every_s=20.0,
            crash_every_s=15.0,
            loss=0.02,
            pause_every_s=20.0,
        ),
        Profile(
            "pruning",
            pruners=0.7,
            join_every_s=4.0,
            crash_every_s=5.0,
            crash_in_effects=0.004,
            loss=0.03,
            reduce_half_done=0.1,
        ),
        Profile(
            "amended",
            amend_every_s=3.0,
            crash_every_s=6.0,
            crash_in_effects=0.004,
            partition_every_s=20.0,
            join_every_s=15.0,
            reduce_half_done=0.1,
            loss=0.03,
        ),
        Profile(
            "branch",
            loss=0.02,
            crash_every_s=15.0,
            down_s=(0.3, 60.0),
            partition_every_s=30.0,
            partition_s=(5.0, 60.0),
            crash_in_effects=0.001,
            faults_s=150.0,
            settle_s=120.0,
            quorum_loss="branch",
        ),
        Profile(
            "islands",
            partition_every_s=40.0,
            partition_s=(25.0, 80.0),
            loss=0.01,
            reduce_half_done=0.2,
            pause_every_s=60.0,
            pause_s=(5.0, 40.0),
            faults_s=200.0,
            settle_s=120.0,
            quorum_loss="branch",
        ),
        Profile("liars", liars=1, loss=0.02, reduce_half_done=0.1),
        Profile(
            "claims",
            claims=True,
            claim_liars=1,
            speed_ratio=20.0,
            loss=0.02,
            delay_spike=0.01,
            crash_every_s=12.0,
            crash_in_effects=0.001,
            reduce_fails=0.15,
            reduce_half_done=0.05,
            settle_s=60.0,
        ),
        Profile(
            "auditors",
            claims=True,
            audits=True,
            audit_liars=2,
            speed_ratio=20.0,
            loss=0.02,
            crash_every_s=15.0,
            crash_in_effects=0.0005,
            reduce_fails=0.3,
            settle_s=60.0,
        ),
        Profile("spoiled", spoilers=1, faults_s=0.0),
        Profile("strangers", liars=2, loss=0.02, reduce_half_done=0.1, quorum="two-thirds"),
        Profile(
            "sybils",
            sybils=6,
            founder_away_every_s=1.5,
            seeds_among_peers=1,
            crash_every_s=10.0,
            join_every_s=12.0,
            loss=0.01,
            reduce_half_done=0.05,
            faults_s=40.0,
            settle_s=150.0,
        ),
        Profile(
            "allies",
            sybils=4,
            liars=1,
            founder_away_every_s=2.0,
            seeds_among_peers=1,
            loss=0.01,
            faults_s=40.0,
            settle_s=150.0,
        ),
        Profile(
            "delegated",
            sybils=4,
            delegates=6,
            crash_every_s=10.0,
            loss=0.01,
            reduce_half_done=0.05,
            faults_s=90.0,
            settle_s=150.0,
        ),
        Profile(
            "chaos",
            loss=0.08,
            duplication=0.05,
            delay_s=(0.005, 0.15),
            delay_spike=0.01,
            crash_every_s=8.0,
            crash_in_effects=0.004,
            partition_every_s=15.0,
            one_way=0.3,
            reduce_fails=0.08,
            reduce_half_done=0.08,
            join_every_s=15.0,
            leave_every_s=30.0,
            vanish_every_s=40.0,
            slow_peers=0.1,
            pause_every_s=25.0,
            clock_drift=0.02,
            clock_leap_every_s=40.0,
        ),
    )
}
