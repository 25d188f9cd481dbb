"""The only interface to this node's ledger. Written by `consensus/`, whose task owns the ledger.

    every task ── submit, offer ──► queue ── next_event ──► the ledger's task
    every task ◄──────────── snapshot, kept, history ───────── the ledger's task

Other tasks send events and read what is decided. Only the ledger's task calls a method of `core`
that changes the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from trio.lowlevel import ParkingLot

from p2ptrain.archive.chain_log import Origin
from p2ptrain.archive.step_index import StepIndex
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.ledger.messages.events import Event, author_of
from p2ptrain.peers.fair_queue import FairQueue
from p2ptrain.peers.queue_shares import QueueShares
from p2ptrain.rate_limit import Allowance
from p2ptrain.store import RecordLog

EVENTS_MAX = 4096
"""Maximum number of queued events: enough for the reports of a thousand peers and for bursts. If
the queue is full, our own events wait for room, and events of peers are dropped."""

PAGES_PER_S = 8.0
PAGES_BURST = 32
"""Rate limit for pages of up to 64 ledger entries that this node makes for one peer. A peer that
catches up needs 0.1 s to check a page, so it rarely asks for more than 10 pages per second. 32
pages contain the entries of a thousand outer steps. A flooding peer costs 4 % of a core."""


@dataclass(slots=True)
class EventQueue:
    """The events that wait for the ledger. Each peer has a line of its own, and the lines take
    turns. So a peer that floods us loses its own events, and delays others by one event each."""

    flooded: Callable[[PeerId], None]
    """Called with the author of an event that is dropped because there is no room."""
    _shares: QueueShares = field(default_factory=QueueShares)
    """The number of queued events of each peer."""
    _events: FairQueue[Event] = field(default_factory=FairQueue)
    _writers: ParkingLot = field(default_factory=ParkingLot)
    """The tasks that wait for room."""
    _readers: ParkingLot = field(default_factory=ParkingLot)
    """The ledger's task, if it waits for an event."""

    @property
    def waiting(self) -> int:
        """The number of events in the queue."""
        return len(self._events)

    @property
    def blocked(self) -> int:
        """The number of tasks that wait for room."""
        return len(self._writers)

    async def submit(self, event: Event) -> None:
        """Append an event of our own. Wait for room, so that the event is not lost."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.waiting >= EVENTS_MAX:
            await self._writers.park()
        self._append(None, event)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def offer(self, event: Event) -> None:
        """Append a peer's event. Drop it if that peer's part is full: peers repeat their events."""
        author = author_of(event)
        assert author is not None, "offer() got an event of this node; use submit() for those"
        if self._shares.reserve(author, EVENTS_MAX - self.waiting, EVENTS_MAX):
            self._append(author, event)
        else:
            self.flooded(author)

    async def next_event(self) -> Event:
        """Wait for the next event and return it. Only the ledger's task calls this."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._events:
            await self._readers.park()
        event = self._pop()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return event

    def next_event_nowait(self) -> Event:
        """Return the next queued event without waiting. Raises trio.WouldBlock if there is none."""
        if not self._events:
            raise trio.WouldBlock
        return self._pop()

    def _append(self, author: PeerId | None, event: Event) -> None:
        self._events.append(author, event)
        self._readers.unpark()

    def _pop(self) -> Event:
        event = self._events.pop()
        self._shares.release(author_of(event))
        self._writers.unpark()
        return event


@dataclass(slots=True)
class LedgerPort:
    core: Ledger
    """The state machine. Any task may read it; only the ledger's task changes it."""
    chain_log: RecordLog
    votes: RecordLog
    """The log of our votes. We must not contradict them, even after a restart."""
    origin: Origin | None
    """Where our chain begins if its oldest entries were pruned; None if it begins at genesis."""
    queue: EventQueue
    """The events that the ledger has not handled yet."""
    vote_records: int = field(init=False)
    """The number of records in `votes`."""
    history: StepIndex = field(init=False)
    """The entries by outer step."""
    updates_awaited: set[Digest] = field(default_factory=set)
    """The updates that are being fetched for a vote."""
    refusals: int = 0
    """The number of our messages that peers refused because they do not admit us."""
    pages: Allowance = field(default_factory=lambda: Allowance(PAGES_BURST, PAGES_PER_S))
    """Rate limit for pages of ledger entries, per peer."""

    def __post_init__(self) -> None:
        self.vote_records = sum(1 for _ in self.votes)
        self.history = StepIndex(self.core.kept)

    @property
    def snapshot(self) -> LedgerState:
        """The state of the chain as far as this node knows it is decided. The returned object is
        immutable, so read this property again after each `await`."""
        return self.core.state

    @property
    def kept(self) -> KeptChain:
        """The entries that are kept here."""
        return self.core.kept

    @property
    def rules(self) -> Rules:
        return self.core.rules

    async def submit(self, event: Event) -> None:
        """Send the ledger an event of our own; see `EventQueue.submit`."""
        await self.queue.submit(event)

    def offer(self, event: Event) -> None:
        """Send the ledger an event of a peer; see `EventQueue.offer`."""
        self.queue.offer(event)
