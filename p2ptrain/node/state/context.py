"""What a node is made of. The composition root makes one `Parts`, and hands it to every task.

`Parts` holds no behaviour beyond telling the ledger and ringing the bell. What the tasks share and
change is in `Standing` and `Outer`; each field has one writer, named beside it.
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
from p2ptrain.node.state.identities import Identities
from p2ptrain.node.training.micro_batch_memory import Kept
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
from p2ptrain.peers.heartbeat_delta import Saying
from p2ptrain.peers.misbehaviour_log import Complaints
from p2ptrain.peers.path_table import PathBook
from p2ptrain.peers.peer_table import PeerTable, PeerView
from p2ptrain.peers.queue_shares import Shares
from p2ptrain.peers.validation_tally import Tally
from p2ptrain.rate_limit import Allowance
from p2ptrain.ring import Arrangement, Reduce
from p2ptrain.ring import ReduceReport as RingReport
from p2ptrain.run import DataIndex, Leg, RunManifest
from p2ptrain.state import Arena, Layout, OuterState, Residual
from p2ptrain.state.pseudo_gradient import Comparison
from p2ptrain.store import RecordLog, Store
from p2ptrain.sync.fragments import Fragment, fragments
from p2ptrain.sync.trainer_orders import Work

PAGES_PER_S = 8.0
PAGES_BURST = 32
"""Pages of up to 64 entries that one peer is made. Whoever catches up takes 0.1 s to check one, so
it asks hardly more often; 32 pages are the entries of a thousand outer steps. Who floods us with
questions takes a twenty-fifth of a core."""

FLOOD = Caution(
    "FLOOD",
    "more messages came than this node can judge, and some are left unread",
    "peers say them again; if the node falls behind, give it more of the processor",
)


@dataclass(slots=True)
class Outer:
    """θ and m, and where in the run they stand. Written by `outer`, under `lock`.

    `step` counts the outer steps that are behind them; None until a first snapshot is loaded.
    """

    vectors: OuterState
    residuals: tuple[Residual, ...] = ()
    """Of each fragment, where the run has error feedback and this node trains. `exchange` writes
    them, and it alone."""
    lock: trio.Lock = field(default_factory=trio.Lock)
    step: int | None = None
    moving: bool = False
    """θ and m are between `step` and the next: what is read of them now has no name."""
    writing: bool = False
    """A snapshot is being written."""
    disowned: SnapshotRef | None = None
    """The certified snapshot that ours was found not to be."""
    replaced: int = 0
    """How often that was so: whoever has read θ before has read what was wrong. By `quarantine`."""
    passed_over: Digest | None = None
    """The certified snapshot that could not be had: the log is followed instead."""
    digest: tuple[int, Digest] | None = None
    """Of θ and m at an outer step, when somebody has asked for it; by `status`."""


@dataclass(slots=True)
class Standing:
    """What this node says of itself in heartbeats and status."""

    state: State = field(default_factory=Starting)
    fetching: FetchingSnapshot | None = None
    """How far the snapshot is that is being fetched, beside all else; by `transfer`."""
    leaving: bool = False
    """Written by `leaving`."""
    isolated: str = ""
    """Why nothing can be agreed at present; by `isolation`."""
    dialled: bool = False
    dialable: bool = True
    """What our heartbeats say of it; both by `gossip`."""
    arranged: Arrangement | None = None
    """The last that this node proposed; by `arranging`."""
    work: Work | None = None
    inner_step: int = 0
    inner_steps: int = 0
    tokens_per_s: float = 0.0
    progress: Progress | None = None
    """What the trainer said of the newest inner step."""
    inner_s: float = 0.0
    """Computed in inner steps since the last outer step; `outer` sets it back."""
    trainer_up: bool = False
    trainer: str = ""
    """On what it trains, in words."""
    halving: Kept | None = None
    """With how many sequences at once, where memory has run out; by `halvings`."""
    inner_from: str = ""
    """Whose inner optimizer ours began with, in words; by `recipient`."""
    theta_in_use: bool = False
    """A trainer was told to read θ and has not said that it has. All these by `training`."""
    reduce: ReduceReport | None = None
    ring: Reduce | None = None
    averaging: int | None = None
    """The outer step whose update this node is about to make, until it is stored or given up."""
    last_reduce: RingReport | None = None
    """How the newest that ended well went."""
    comparison: Comparison | None = None
    """Of our own work with the mean, in the newest of them. These five by `exchange`."""
    utilisation: float | None = None
    """The share of the last outer step's time in which inner steps were computed; by `outer`."""
    advanced_s: float | None = None
    refused: bool = False
    """Somebody would not take our votes; set by `outboxes`, cleared by `revocation`."""
    warnings: dict[str, Caution] = field(default_factory=dict)
    doubts: tuple[Caution, ...] = ()
    """What was found in this machine before the start, and told then; by `reception`."""

    @property
    def shown(self) -> State:
        """The state for others to see. Who is isolated trains on, but waits in vain; a trainer may
        load while a snapshot comes, and the snapshot is what takes long.
        """
        if self.fetching is not None and not self.leaving:
            return self.fetching
        waits = isinstance(self.state, StandingBy | Serving)
        return Isolated(self.isolated) if waits and self.isolated else self.state

    @property
    def ready(self) -> ReadyReport | None:
        """What the others are told of `work`."""
        work = self.work
        return None if work is None else ReadyReport(work.step, work.tokens, len(work.blocks))


@dataclass(frozen=True, slots=True)
class Asking:
    """Somebody waits to be let in: when it asked last, by `now`, from where, and in which signed
    words."""

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
    """None on a seed, which has no trainer."""
    ledger: Ledger
    chain_log: RecordLog
    votes: RecordLog
    origin: Origin | None
    """Where the chain begins if not at genesis; by `pruning`."""
    vote_records: int = field(init=False)
    """How many lie in `votes`; by `agreement`."""
    detector: Detector
    identities: Identities
    journal: Journal
    uplink: Uplink | None
    congestion: Congestion
    """What this machine's sockets run under."""
    events: trio.MemorySendChannel[Event]
    fragments: tuple[Fragment, ...] = field(init=False)
    """Which elements of θ an outer step is about: `fragment` says."""
    history: History = field(init=False)
    paths: PathBook = field(init=False)
    validation: Tally = field(init=False)
    """What members say of the loss of θ; by `validating`."""
    heard: Shares = field(default_factory=Shares)
    """Of those among `events` that peers are the authors of; `agreement` gives back."""
    pages: Allowance = field(default_factory=lambda: Allowance(PAGES_BURST, PAGES_PER_S))
    """Of the ledger's entries, to those who ask; by `inbox`."""
    data: DataIndex | None = None
    """None until it has been fetched."""
    peers: PeerTable = field(init=False)
    pending: dict[PeerId, Asking] = field(default_factory=dict)
    """Who waits to be let in; the eldest question first."""
    offered: dict[Digest, float] = field(default_factory=dict)
    """Until when the chunks of a blob are kept for joiners; by `donor`."""
    fetching: set[Digest] = field(default_factory=set)
    holding: set[Digest] = field(default_factory=set)
    changes: Changes = field(default_factory=Changes)
    scrub_asked: trio.Event = field(default_factory=trio.Event)
    """Somebody wants the whole store read at once; cleared by `scrub`."""
    heartbeat_due: trio.Event = field(default_factory=trio.Event)
    saying: Saying = field(default_factory=Saying)
    standing: Standing = field(default_factory=Standing)
    complaints: Complaints = field(init=False)
    draw: random.Random = field(default_factory=random.SystemRandom)
    """Chooses whom to ask first. No peer can foresee the choice."""
    started_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.fragments = fragments(self.layout, self.manifest.sync.fragments)
        self.vote_records = sum(1 for _ in self.votes)
        self.history = History(self.ledger.kept)
        self.peers = PeerTable(self._is_member)
        self.paths = PathBook(self.me)
        self.complaints = Complaints(self.journal)
        data = self.manifest.data
        self.validation = Tally(data.validation_blocks, data.block_tokens)

    @property
    def me(self) -> PeerId:
        return self.identity.peer

    @property
    def trains(self) -> bool:
        return self.arena is not None

    def fragment(self, step: int) -> Fragment:
        """Which elements of θ outer step `step` is about."""
        return self.fragments[step % len(self.fragments)]

    def residual(self, step: int) -> Residual | None:
        """What this peer's rounding lost of that fragment, if the run has error feedback."""
        residuals = self.outer.residuals
        return residuals[step % len(residuals)] if residuals else None

    def lacks_terms(self, step: int) -> bool:
        """Whether an amendment was agreed that holds in outer step `step`, and is not here yet."""
        return self.amendments.missing(self.ledger.state.terms, step) is not None

    async def until_known(self, step: int) -> None:
        """Wait until this node knows how outer step `step` is to be taken."""
        while self.lacks_terms(step):
            await self.changes.wait()

    def leg(self, step: int) -> Leg:
        """The run as it holds in outer step `step`: ask after `until_known` only."""
        return self.amendments.leg(self.ledger.state.terms, step)

    def about(self, step: int) -> Leg:
        """The same as far as it is known here: for estimates, for people, and for work
        ahead of what is agreed."""
        return self.amendments.nearest(self.ledger.state.terms, step)

    def influence_max(self, step: int) -> float:
        """How far a participant's weights may be from θ in outer step `step`."""
        return self.amendments.influence_max(self.ledger.state.terms, step)

    def data_block(self, block: int) -> Digest:
        """The digest of the data block that the ledger's block id `block` stands for."""
        assert self.data is not None, "nobody trains before the data index is here"
        return self.data.train[self.ledger.rules.data_block(block)]

    def now(self) -> float:
        """The local monotonic clock, in seconds, by which everything here is judged."""
        return trio.current_time()

    def at_head(self) -> bool:
        """Whether θ stands where the ledger stands."""
        return self.outer.step == self.ledger.state.step

    def is_vouched_for(self, peer: PeerId) -> bool:
        """Whether anybody but `peer` itself stands for it: the organiser's list, or the roster.

        In an open run everybody is admitted, so admission says nothing.
        """
        return self._is_member(peer) or (not self.admission.is_open and self.admission.admits(peer))

    def ledger_is_current(self) -> bool:
        """Whether somebody was heard, and no peer that counts is ahead of us on our line."""
        beats, line = [view.heartbeat for view in self.counted()], self.ledger.state.line
        heights = [beat.height for beat in beats if beat.line == line]
        return bool(heights) and max(heights) <= self.ledger.state.height

    def counted(self) -> list[PeerView]:
        """Return the peers that count when this node asks how long the ledger is.

        These are the believed peers that are vouched for; all believed peers if there is none. In
        an open run a new name could else keep this node waiting for 30 s, and the next name again.
        """
        believed = self.believed()
        return [view for view in believed if self.is_vouched_for(view.peer)] or believed

    def believed(self) -> list[PeerView]:
        """Those heard but for those who claim, and do not show, that they are ahead of us."""
        now, ledger = self.now(), self.ledger
        return [view for view in self.peers if ledger.believes(view.peer, now)]

    def is_down(self, peer: PeerId) -> bool:
        return self.detector.status(peer, self.now()) is Colour.RED

    def _is_member(self, peer: PeerId) -> bool:
        return self.ledger.state.is_member(peer)

    def wants_to_join(self) -> bool:
        """Whether this node could train if it were a member."""
        state = self.ledger.state
        able = self.trains and self.standing.trainer_up and self.at_head()
        wanted = state.phase is not Phase.ENDED and not self.standing.leaving
        return able and wanted and not state.is_member(self.me)

    async def tell(self, event: Event) -> None:
        """Tell the ledger something of our own, which must not be lost."""
        await self.events.send(event)

    def hear(self, event: Event) -> None:
        """Tell the ledger what a peer said; under a flood it is dropped, since peers repeat it.

        Who floods us alone loses its own words alone.
        """
        author, queue = author_of(event), self.events.statistics()
        assert author is not None, "what this node itself says is told"
        size = int(queue.max_buffer_size)
        if self.heard.take(author, size - queue.current_buffer_used, size):
            self.events.send_nowait(event)
        else:
            self.standing.warnings["flood"] = FLOOD
            self.complain("flood", author)

    def complain(self, event: str, about: str, **fields: object) -> None:
        """Journal what a peer did wrong, but not each time."""
        self.complaints.complain(event, about, fields, self.now())

    def enter(self, state: State) -> None:
        """Be in `state` from now on; a change of its name goes to the journal.

        Whoever leaves is leaving, whatever else still goes on.
        """
        if self.standing.leaving and not isinstance(state, Leaving):
            return
        if state.name != self.standing.state.name:
            self.journal.write("state", state=state.name)
        self.standing.state = state

    def enter_unless_training(self, state: State) -> None:
        """For what goes on beside the training, which is the more telling of the two."""
        if not isinstance(self.standing.state, (Training, Exchanging, Serving)):
            self.enter(state)

    def speak_now(self) -> None:
        """Send a heartbeat at once: something changed that others wait for."""
        self.heartbeat_due.set()
