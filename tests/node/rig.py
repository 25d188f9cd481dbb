"""The rig: a node's context without its tasks, for tests that run one task at a time.

The store, ledger, logs and data plane are real. The network only records its calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import trio

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.archive.step_index import StepIndex
from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.errors import P2PTrainError
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Entry,
    Participant,
    Roster,
    Value,
    vote_message,
)
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.ledger.messages.events import Event
from p2ptrain.net import PeerDisconnected
from p2ptrain.node.assembly import assembled
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.node.state.timing import RepairTiming, Timing
from p2ptrain.peers.duplicate_watch import QuestionTiming
from p2ptrain.peers.heartbeat import Heartbeat
from p2ptrain.run import Run
from p2ptrain.store import Disk
from p2ptrain.testing.ledgers import sealing
from p2ptrain.testing.published import publish
from tests.node.swarm import Diary

QUICK = Timing(
    hear_first_s=0.01,
    fetch_retry_s=0.02,
    connection_look_s=0.01,
    probe_every_s=0.01,
    revocation_look_s=0.01,
    amendment_ask_s=0.01,
    repair=RepairTiming(look_s=0.0),
    questions=QuestionTiming(look_s=1.0, alarm_s=0.5, start_wait_s=2.0),
)
"""Short waiting times, since most peers that a node would wait for do not exist in a test."""

OWN_ADDRESS = "/ip4/127.0.0.1/tcp/4001"


def somebody(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


ANN, BOB, CAI = (somebody(number) for number in (101, 102, 103))

Handler = Callable[[PeerId, bytes], Awaitable[bytes]]


@dataclass
class PaperLan:
    """Replaces `LanSearch`: it finds nobody."""

    is_running: bool = False

    async def start(self) -> bool:
        self.is_running = True
        return True


@dataclass
class PaperNetwork:
    """Replaces `Network` and records the calls. `peers` are connected. `answer` makes the reply to
    a request, or raises."""

    peers: set[PeerId] = field(default_factory=set)
    listens: list[str] = field(default_factory=lambda: [OWN_ADDRESS])
    addresses_by_peer: dict[PeerId, list[str]] = field(default_factory=dict)
    hearsay: dict[PeerId, list[str]] = field(default_factory=dict)
    published: list[tuple[str, bytes]] = field(default_factory=list)
    requested: list[tuple[PeerId, bytes]] = field(default_factory=list)
    handlers: dict[str, Handler] = field(default_factory=dict)
    validators: dict[str, Callable[[PeerId, PeerId, bytes], bool]] = field(default_factory=dict)
    kept_hosts: list[tuple[str, ...]] = field(default_factory=list)
    dialled: list[PeerId] = field(default_factory=list)
    dropped: list[PeerId] = field(default_factory=list)
    members: list[PeerId] = field(default_factory=list)
    floods: dict[PeerId, int] = field(default_factory=dict)
    sites: dict[PeerId, str] = field(default_factory=dict)
    hosts: dict[PeerId, str] = field(default_factory=dict)
    round_trips: dict[PeerId, float] = field(default_factory=dict)
    came: dict[str, float] = field(default_factory=dict)
    proved: list[tuple[PeerId, str, int]] = field(default_factory=list)
    cannot_prove: P2PTrainError | None = None
    refreshed: int = 0
    events: trio.MemoryReceiveChannel[PeerDisconnected] | None = None
    answer: Callable[[PeerId, bytes], Awaitable[bytes]] | None = None
    lan: PaperLan = field(default_factory=PaperLan)
    refuses_to_publish: P2PTrainError | None = None

    def addresses(self) -> list[str]:
        return list(self.listens)

    def listening(self) -> list[str]:
        return list(self.listens)

    def connected(self) -> set[PeerId]:
        return self.peers

    def site_of(self, peer: PeerId) -> str:
        return self.sites.get(peer, "127.0.0.1")

    def host_of(self, peer: PeerId) -> str:
        return self.hosts.get(peer, "")

    def round_trip_s(self, peer: PeerId) -> float | None:
        return self.round_trips.get(peer)

    def arrivals(self) -> dict[str, float]:
        return dict(self.came)

    async def prove(self, peer: PeerId, host: str, port: int, *, deadline_s: float) -> None:
        self.proved.append((peer, host, port))
        if self.cannot_prove is not None:
            raise self.cannot_prove

    def remember(self, peer: PeerId, addresses: Iterable[str]) -> None:
        self.addresses_by_peer[peer] = list(addresses)

    recall = remember

    def addresses_of(self, peer: PeerId) -> list[str]:
        return [*self.addresses_by_peer.get(peer, []), *self.hearsay.get(peer, [])]

    def known_addresses(self) -> dict[PeerId, list[str]]:
        return self.addresses_by_peer

    def record_reported(self, peer: PeerId, addresses: Iterable[str]) -> None:
        self.hearsay[peer] = list(addresses)

    def dialable_peers(self) -> list[PeerId]:
        return list({**self.addresses_by_peer, **self.hearsay})

    def close_connections_except(self, hosts: Iterable[str]) -> None:
        self.kept_hosts.append(tuple(hosts))

    async def connect_peer(self, peer: PeerId, *, deadline_s: float) -> None:
        self.dialled.append(peer)

    def drop(self, peer: PeerId) -> None:
        self.dropped.append(peer)

    def set_members(self, members: Iterable[PeerId]) -> None:
        self.members = list(members)

    def set_validator(self, topic: str, validator: Callable[[PeerId, PeerId, bytes], bool]) -> None:
        self.validators[topic] = validator

    def pop_floods(self) -> dict[PeerId, int]:
        floods, self.floods = self.floods, {}
        return floods

    def refresh_admission(self) -> None:
        self.refreshed += 1

    def handle(
        self, protocol: str, handler: Handler, *, bytes_max: int = 0, anyone: bool = False
    ) -> None:
        self.handlers[protocol] = handler

    async def publish(self, topic: str, payload: bytes) -> None:
        if self.refuses_to_publish is not None:
            raise self.refuses_to_publish
        self.published.append((topic, payload))

    async def request(
        self, peer: PeerId, protocol: str, payload: bytes, *, deadline_s: float, bytes_max: int
    ) -> bytes:
        self.requested.append((peer, payload))
        return b"" if self.answer is None else await self.answer(peer, payload)


@dataclass
class Rig:
    """A node's context, with methods for tests. `heard` removes and returns the events that were
    sent to the ledger. `said` returns the journal's records of one event."""

    context: Context
    run: Run
    network: PaperNetwork
    diary: Diary

    def heard(self) -> list[Event]:
        taken: list[Event] = []
        while self.context.ledger.queue.waiting:
            taken.append(self.context.ledger.queue.next_event_nowait())
        return taken

    def said(self, event: str) -> list[dict[str, object]]:
        return [record for record in self.diary.records if record["event"] == event]

    def configure(self, **changes: object) -> None:
        """Replace fields of the configuration."""
        config = replace(self.context.config, **changes)  # type: ignore[arg-type]
        self.surround(config=config)

    def wait_for(self, **seconds: object) -> None:
        """Replace times in `Timing`, for tasks that start from now on."""
        self.surround(timing=replace(self.context.timing, **seconds))  # type: ignore[arg-type]

    def surround(self, **changes: object) -> None:
        """Replace fields of `Surroundings`, such as the identity or the clock."""
        around = replace(self.context.around, **changes)  # type: ignore[arg-type]
        self.context = replace(self.context, around=around)

    def plug(self, **changes: object) -> None:
        """Replace fields of `DataPlane`."""
        plane = replace(self.context.plane, **changes)  # type: ignore[arg-type]
        self.context = replace(self.context, plane=plane)

    def set_chain(self, **changes: object) -> LedgerState:
        """Change the ledger's state directly, without an entry."""
        core = self.context.ledger.core
        core.state = replace(core.state, **changes)  # type: ignore[arg-type]
        return core.state

    def decide(self, *values: Value) -> LedgerState:
        """Append these entries to the ledger's chain without running the protocol."""
        ledger = self.context.ledger.core
        for value in values:
            state = ledger.state
            self.append(certified(state, sealing(state, value)))
        return ledger.state

    def append(self, certified: Certified) -> None:
        """Append an entry to the ledger's chain without checking its certificate."""
        ledger = self.context.ledger.core
        state = apply(ledger.rules, ledger.state, certified.entry)
        ledger._append(certified, state, self.context.now())


def entry_of(state: LedgerState, value: Value) -> Entry:
    return Entry(state.height + 1, state.head, value)


def certified(state: LedgerState, value: Value) -> Certified:
    """Return `value` as the next entry after `state`, with a certificate without votes."""
    entry = entry_of(state, value)
    return Certified(entry, Certificate(entry.height, 0, entry.digest, ()))


def signed(run: RunId, state: LedgerState, value: Value, *voters: Identity) -> Certified:
    """Return `value` as the next entry after `state`, certified by the votes of `voters`."""
    entry = entry_of(state, value)
    message = vote_message(run, entry.height, 0, entry.digest)
    votes = sorted((voter.peer, voter.sign(message)) for voter in voters)
    return Certified(entry, Certificate(entry.height, 0, entry.digest, tuple(votes)))


class Growing:
    """A chain with its state and its index, but without a node. `grow` appends entries."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.kept = KeptChain(rules)
        self.state = genesis(rules)
        self.history = StepIndex(self.kept)

    def grow(self, *values: Value) -> None:
        for value in values:
            value = sealing(self.state, value)
            self.kept.append(certified(self.state, value))
            self.state = apply(self.rules, self.state, entry_of(self.state, value))

    def opening(self, *participants: Participant, learners: Sequence[PeerId] = ()) -> Roster:
        return opening(self.state, *participants, learners=learners)


class OpenDoor(Admission):
    """Admits every peer, whatever the run's allowlist says. `also_named` are admitted by name."""

    def __init__(self, home: Home, me: PeerId | None = None) -> None:
        super().__init__(home, me)
        self.also_named: set[PeerId] = set()

    def names(self, peer: PeerId) -> bool:
        return peer in self.also_named or super().names(peer)

    def admits(self, peer: PeerId) -> bool:
        return True

    def may_train(self, peer: PeerId) -> bool:
        return True


@asynccontextmanager
async def rig(
    folder: Path,
    *,
    run: Run | None = None,
    seed: bool = False,
    allowed: Sequence[PeerId] = (ANN.peer, BOB.peer, CAI.peer),
    disk: Disk | None = None,
    timing: Timing = QUICK,
    welcoming: bool = False,
    clock: Callable[[], float] = trio.current_time,
    **settings: object,
) -> AsyncIterator[Rig]:
    """Open the context of the organiser's own node, by default the run's only founder. `run`: the
    run that was published in this home, if any. `welcoming`: whether the node admits every peer.
    `settings` are those of `publish`."""
    home = Home(folder / "home")
    run = run or publish(home, allowed=allowed, **settings)
    identity = load_or_create(home.identity)
    config = NodeConfig(home.root, data_host="127.0.0.1", seed=seed, device="cpu")
    admission = (OpenDoor if welcoming else Admission)(home, identity.peer)
    admission.set_run(run)
    network = PaperNetwork()
    with Diary(home.journal) as diary:
        around = Surroundings(
            config,
            home,
            diary,
            identity,
            run,
            admission,
            network,  # type: ignore[arg-type]
            timing,
            disk,
            clock=clock,
        )
        async with assembled(around) as context:
            yield Rig(context, run, network, diary)


class NewRig(Protocol):
    """The type of the fixture `new_rig`, a function that opens a rig. The arguments are those of
    `rig`."""

    async def __call__(self, folder: Path, **settings: object) -> Rig: ...


class Neighbour:
    """Makes `other` a peer of the node `r`: `r` has received a heartbeat of `other`, and can fetch
    blobs from the data plane of `other`."""

    def __init__(self, r: Rig, other: Rig) -> None:
        endpoint = other.context.plane.endpoint
        r.context.plane.listener.trust_certificate(endpoint.certificate_der)
        other.context.plane.listener.trust_certificate(r.context.plane.endpoint.certificate_der)
        beat = heartbeat(r.run.id, endpoint=pack(endpoint.to_wire()))
        r.context.peers.table.note_heartbeat(endpoint.peer, beat, r.context.now())
        r.context.peers.detector.note_arrival(endpoint.peer, r.context.now())
        self.endpoint: Endpoint = endpoint


def heartbeat(run: RunId, **changes: object) -> Heartbeat:
    """Return a heartbeat of a node that trains, with `changes`."""
    usual = Heartbeat(
        run=run,
        incarnation=1,
        serial=1,
        state="training (inner 1/2)",
        trains=True,
        joining=False,
        leaving=False,
        height=0,
        line=run,
        head=Digest(run),
        step=0,
        inner_step=1,
        inner_steps=2,
        tokens_per_s=100,
        endpoint=b"",
        addresses=("/ip4/127.0.0.1/tcp/4001",),
        ready=None,
        reduce=None,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def opening(
    state: LedgerState, *participants: Participant, learners: Sequence[PeerId] = ()
) -> Roster:
    """Return a roster that opens a reduce among `participants`."""
    return Roster(state.step, state.attempt, state.voters, tuple(learners), participants)


async def settled(holds: Callable[[], object], deadline_s: float = 30.0) -> None:
    """Wait until `holds` returns something true. Fail after `deadline_s`."""
    never = trio.Event()
    with trio.fail_after(deadline_s):
        while not holds():
            with trio.move_on_after(0.002):
                await never.wait()
