"""The objects that the tasks of a node share. `assembly` makes one `Parts` for all tasks.

`Parts` has no behaviour beyond lookups, events for the ledger and waking the tasks. State that the
tasks change is in `Standing` and `Outer`; the comments on fields name the modules that write them.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import trio

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.chain_log import Origin
from p2ptrain.archive.home import Home
from p2ptrain.archive.outer_step import OuterStep, OuterSteps
from p2ptrain.archive.step_index import History
from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import Congestion, Credentials, Endpoint, Listener, RingInbox, Uplink
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ipc.frames import Progress
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import SnapshotRef
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.failure_detector import Colour, Detector
from p2ptrain.ledger.messages.events import Event, author_of
from p2ptrain.net import Network
from p2ptrain.node.state.changes import Changes
from p2ptrain.node.state.found_micro_batch import FoundMicroBatch
from p2ptrain.node.state.identities import Identities
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import (
    Exchanging,
    FetchingSnapshot,
    Isolated,
    Leaving,
    Serving,
    StandingBy,
    Starting,
    State,
    Training,
)
from p2ptrain.peers.heartbeat import ReadyReport, ReduceReport
from p2ptrain.peers.heartbeat_delta import HeartbeatSender
from p2ptrain.peers.misbehaviour_log import MisbehaviourLog
from p2ptrain.peers.path_table import PathTable
from p2ptrain.peers.peer_table import PeerRecord, PeerTable
from p2ptrain.peers.queue_shares import QueueShares
from p2ptrain.peers.validation_tally import ValidationTally
from p2ptrain.rate_limit import Allowance
from p2ptrain.ring import Arrangement, Reduce, ReduceStatistics
from p2ptrain.run import DataIndex, Leg, RunManifest
from p2ptrain.state import Arena, Layout, OuterState, Residual
from p2ptrain.state.pseudo_gradient import Comparison
from p2ptrain.store import RecordLog, Store
from p2ptrain.sync.fragments import Fragment, fragments
from p2ptrain.sync.trainer_orders import Work

PAGES_PER_S = 8.0
PAGES_BURST = 32
"""Rate limit for pages of up to 64 ledger entries that this node makes for one peer. A peer that
catches up needs 0.1 s to check a page, so it rarely asks more often. 32 pages contain the entries
of a thousand outer steps. A peer that floods us with requests uses at most 4 % of a core."""

FLOOD = Caution(
    "FLOOD",
    "more messages arrive than this node can process, so it drops some",
    "peers repeat important messages; if the node falls behind, give it more CPU time",
)


@dataclass(slots=True)
class Outer:
    """θ, m and their outer step. Written by `outer_task`, under `lock`.

    `step` is the number of outer steps that θ and m contain; None until the first snapshot is
    loaded.
    """

    vectors: OuterState
    residuals: tuple[Residual, ...] = ()
    """The residual of each fragment, if the run has error feedback and this node trains.
    `reduce_task` changes their contents."""
    lock: trio.Lock = field(default_factory=trio.Lock)
    step: int | None = None
    moving: bool = False
    """True while θ and m are changing from `step` to the next. They are not usable then."""
    writing: bool = False
    """True while a snapshot is being written."""
    disowned: SnapshotRef | None = None
    """The certified snapshot that differed from our own state. Written by `state_mismatch`."""
    replaced: int = 0
    """How many times `state_mismatch` found our state to be wrong. Earlier reads of θ may have been
    wrong too."""
    passed_over: Digest | None = None
    """The certified snapshot that could not be fetched. The node applies updates instead."""
    digest: tuple[int, Digest] | None = None
    """The outer step and digest of θ and m, computed when a user asks. Written by `status`."""


@dataclass(slots=True)
class Standing:
    """The state that this node reports in heartbeats and status."""

    state: State = field(default_factory=Starting)
    fetching: FetchingSnapshot | None = None
    """Progress of the snapshot being fetched, if any. Written by `outer_state/fetch.py`."""
    leaving: bool = False
    """True once this node says goodbye. Written by `leaving`."""
    isolated: str = ""
    """Why this node does not hear a quorum; empty if it does. Written by `isolation_warning`."""
    dialled: bool = False
    dialable: bool = True
    """Whether peers have dialled our data plane, and whether they can. Written by `gossip`."""
    arranged: Arrangement | None = None
    """The newest ring order that this node proposed. Written by `ring_order`."""
    work: Work | None = None
    inner_step: int = 0
    inner_steps: int = 0
    tokens_per_s: float = 0.0
    progress: Progress | None = None
    """The trainer's report of its newest inner step."""
    inner_s: float = 0.0
    """Seconds spent in inner steps since the last outer step. `outer_task` resets it."""
    trainer_up: bool = False
    trainer: str = ""
    """The device that the trainer runs on, in words."""
    halving: FoundMicroBatch | None = None
    """The micro-batch found after the trainer ran out of memory. Written by
    `micro_batch_memory`."""
    inner_from: str = ""
    """Describes the members' inner optimizer states that ours started from. Written by
    `recipient`."""
    theta_in_use: bool = False
    """True while the trainer has been told to read θ and has not reported that it has done so.
    `training/` writes the fields from `work` to here, unless another module is named; `reduce_task`
    and `state_mismatch` also clear `work`."""
    reduce: ReduceReport | None = None
    ring: Reduce | None = None
    averaging: int | None = None
    """The outer step of the update that this node is computing, until it is stored or abandoned."""
    last_reduce: ReduceStatistics | None = None
    """The report of the newest successful reduce."""
    comparison: Comparison | None = None
    """Our work compared with the mean in the newest successful reduce. `reduce_task` writes the
    five fields from `reduce` to here."""
    utilisation: float | None = None
    """The fraction of the last outer step's time spent in inner steps. Written by `outer_task`."""
    advanced_s: float | None = None
    refused: bool = False
    """True if a peer refused our ledger messages. Set by `outbox`, cleared by `revocation`."""
    warnings: dict[str, Caution] = field(default_factory=dict)
    doubts: tuple[Caution, ...] = ()
    """Cautions about this machine found before the start. Written by `startup_status`."""

    @property
    def shown(self) -> State:
        """The state to show to users and peers.

        An isolated node still trains, but when it waits, it is shown as isolated. A trainer may
        load while a snapshot is fetched; the snapshot is shown, since it takes longer.
        """
        if self.fetching is not None and not self.leaving:
            return self.fetching
        waits = isinstance(self.state, StandingBy | Serving)
        return Isolated(self.isolated) if waits and self.isolated else self.state

    @property
    def ready(self) -> ReadyReport | None:
        """The report of `work` that the other peers receive."""
        work = self.work
        return None if work is None else ReadyReport(work.step, work.tokens, len(work.blocks))


@dataclass(frozen=True, slots=True)
class Asking:
    """A peer that waits for admission: when it last asked (by `Parts.now`), the site that it asked
    from, and its signed request."""

    asked_s: float
    site: str
    signed: bytes


@dataclass(slots=True)
class Parts:
    config: NodeConfig
    home: Home
    identity: Identity
    run: RunId
    manifest: RunManifest
    admission: Admission
    amendments: Amendments
    network: Network
    credentials: Credentials
    listener: Listener
    ring_inbox: RingInbox
    endpoint: Endpoint
    store: Store
    layout: Layout
    outer: Outer
    arena: Arena | None
    """None on a seed, which does not train."""
    ledger: Ledger
    chain_log: RecordLog
    votes: RecordLog
    origin: Origin | None
    """Where our chain begins; None means genesis. Written by `pruning`."""
    vote_records: int = field(init=False)
    """The number of records in `votes`. Written by `ledger_task`."""
    detector: Detector
    identities: Identities
    journal: Journal
    uplink: Uplink | None
    congestion: Congestion
    """The congestion control of this machine's sockets."""
    events: trio.MemorySendChannel[Event]
    fragments: tuple[Fragment, ...] = field(init=False)
    """All fragments of θ."""
    outer_steps: OuterSteps = field(init=False)
    history: History = field(init=False)
    paths: PathTable = field(init=False)
    validation: ValidationTally = field(init=False)
    """The validation losses of θ that members report. Written by `evaluation_task`."""
    heard: QueueShares = field(default_factory=QueueShares)
    """The number of queued `events` of each peer. `ledger_task` releases them."""
    pages: Allowance = field(default_factory=lambda: Allowance(PAGES_BURST, PAGES_PER_S))
    """Rate limit for pages of ledger entries, per peer. Used by `inbox`."""
    data: DataIndex | None = None
    """The index of the data blocks; None until it has been fetched."""
    peers: PeerTable = field(init=False)
    pending: dict[PeerId, Asking] = field(default_factory=dict)
    """Peers that wait for admission; the oldest request comes first."""
    offered: dict[Digest, float] = field(default_factory=dict)
    """For each blob, until when its chunks are kept. Written by `donor` and `recipient`."""
    fetching: set[Digest] = field(default_factory=set)
    holding: set[Digest] = field(default_factory=set)
    changes: Changes = field(default_factory=Changes)
    scrub_asked: trio.Event = field(default_factory=trio.Event)
    """Set when a user asks for a scrub of the store; replaced by `scrub`."""
    heartbeat_due: trio.Event = field(default_factory=trio.Event)
    saying: HeartbeatSender = field(default_factory=HeartbeatSender)
    standing: Standing = field(default_factory=Standing)
    complaints: MisbehaviourLog = field(init=False)
    draw: random.Random = field(default_factory=random.SystemRandom)
    """Chooses the order in which peers are asked. Peers cannot predict it."""
    started_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.fragments = fragments(self.layout, self.manifest.sync.fragments)
        self.outer_steps = OuterSteps(self.run, self.manifest, self.amendments)
        self.vote_records = sum(1 for _ in self.votes)
        self.history = History(self.ledger.kept)
        self.peers = PeerTable(self._is_member)
        self.paths = PathTable(self.me)
        self.complaints = MisbehaviourLog(self.journal)
        data = self.manifest.data
        self.validation = ValidationTally(data.validation_blocks, data.block_tokens)

    @property
    def me(self) -> PeerId:
        return self.identity.peer

    @property
    def trains(self) -> bool:
        return self.arena is not None

    def lacks_terms(self, step: int) -> bool:
        """Return whether this node lacks an agreed amendment that applies to outer step `step`."""
        return self.amendments.missing(self.ledger.state.terms, step) is not None

    async def until_known(self, step: int) -> None:
        """Wait until this node has every agreed amendment that applies to outer step `step`."""
        while self.lacks_terms(step):
            await self.changes.wait()

    def outer_step(self, step: int) -> OuterStep:
        """Return the run's terms for outer step `step`. Call this only after `until_known`, once
        per step, and pass on the result."""
        return self.outer_steps.at(self.ledger.state.terms, step)

    def known_outer_step(self, step: int) -> OuterStep | None:
        """Return the run's terms for outer step `step`; None while this node lacks an agreed
        amendment."""
        return None if self.lacks_terms(step) else self.outer_step(step)

    def about(self, step: int) -> Leg:
        """Return the terms for outer step `step` as far as this node knows them: for estimates, for
        display, and for work ahead of the ledger."""
        return self.amendments.nearest(self.ledger.state.terms, step)

    def data_block(self, block: int) -> Digest:
        """Return the digest of the data block for the ledger's block id `block`."""
        assert self.data is not None, "training starts after the data index has arrived"
        return self.data.train[self.ledger.rules.data_block(block)]

    def now(self) -> float:
        """Return the local monotonic clock, in seconds. No other clock is used for decisions."""
        return trio.current_time()

    def at_head(self) -> bool:
        """Return whether θ contains every outer step that the ledger has decided."""
        return self.outer.step == self.ledger.state.step

    def is_vouched_for(self, peer: PeerId) -> bool:
        """Return whether `peer` is a member or on the organiser's allowlist.

        In an open run, every peer is admitted, so admission does not count.
        """
        return self._is_member(peer) or (not self.admission.is_open and self.admission.admits(peer))

    def ledger_is_current(self) -> bool:
        """Return whether at least one counted peer is on our line, and none of them is ahead of
        us."""
        beats, line = [view.heartbeat for view in self.counted()], self.ledger.state.line
        heights = [beat.height for beat in beats if beat.line == line]
        return bool(heights) and max(heights) <= self.ledger.state.height

    def counted(self) -> list[PeerRecord]:
        """Return the peers that count when this node determines how long the ledger is.

        These are the believed peers that are vouched for, or all believed peers if there is no such
        peer. Otherwise, in an open run, each new identity could make this node wait for another 30
        s.
        """
        believed = self.believed()
        return [view for view in believed if self.is_vouched_for(view.peer)] or believed

    def believed(self) -> list[PeerRecord]:
        """Return the peers we hear, except those that claim to be ahead of us but do not prove
        it."""
        now, ledger = self.now(), self.ledger
        return [view for view in self.peers if ledger.believes(view.peer, now)]

    def is_down(self, peer: PeerId) -> bool:
        return self.detector.status(peer, self.now()) is Colour.RED

    def _is_member(self, peer: PeerId) -> bool:
        return self.ledger.state.is_member(peer)

    def wants_to_join(self) -> bool:
        """Return whether this node could train if it were a member."""
        state = self.ledger.state
        able = self.trains and self.standing.trainer_up and self.at_head()
        wanted = state.phase is not Phase.ENDED and not self.standing.leaving
        return able and wanted and not state.is_member(self.me)

    async def tell(self, event: Event) -> None:
        """Send the ledger an event of our own. Wait for room, so that the event is not lost."""
        await self.events.send(event)

    def hear(self, event: Event) -> None:
        """Send the ledger an event from a peer. Drop it during a flood, since peers repeat events.

        A peer that floods us loses only its own events.
        """
        author, queue = author_of(event), self.events.statistics()
        assert author is not None, "use `tell` for this node's own events"
        size = int(queue.max_buffer_size)
        if self.heard.reserve(author, size - queue.current_buffer_used, size):
            self.events.send_nowait(event)
        else:
            self.standing.warnings["flood"] = FLOOD
            self.complain("flood", author)

    def complain(self, event: str, about: str, **fields: object) -> None:
        """Write a peer's misbehaviour to the journal, with a rate limit."""
        self.complaints.complain(event, about, fields, self.now())

    def enter(self, state: State) -> None:
        """Change the node's state to `state`. Write it to the journal if the name changes.

        A leaving node stays in `Leaving`, even if other tasks are still running.
        """
        if self.standing.leaving and not isinstance(state, Leaving):
            return
        if state.name != self.standing.state.name:
            self.journal.write("state", state=state.name)
        self.standing.state = state

    def enter_unless_training(self, state: State) -> None:
        """Enter `state`, unless the node trains, exchanges or serves: those states are more
        useful."""
        if not isinstance(self.standing.state, (Training, Exchanging, Serving)):
            self.enter(state)

    def speak_now(self) -> None:
        """Send a heartbeat immediately, because of a change that other peers wait for."""
        self.heartbeat_due.set()
