"""Open everything that a node uses, in order of dependency, and close it in reverse order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial

import trio

from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.chain_log import Origin
from p2ptrain.archive.ledger_on_disk import open_ledger
from p2ptrain.dataplane import ProbeServer
from p2ptrain.errors import VersionMismatch
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.failure_detector import Detector
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.policy.reduce_order import Arrange
from p2ptrain.node.consensus import pruning
from p2ptrain.node.data_plane import open_data_plane, swarm_limit
from p2ptrain.node.gossip import path_probes
from p2ptrain.node.gossip.gossip import HEARTBEAT_S
from p2ptrain.node.reduce import ring_order
from p2ptrain.node.state.context import Outer, Parts
from p2ptrain.node.state.identities import Identities
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import Run
from p2ptrain.state import Arena, Layout, OuterState, Residual
from p2ptrain.store import RecordLog, Store
from p2ptrain.sync.fragments import fragments
from p2ptrain.trainer.formats.shapes import layout_of

EVENTS_MAX = 4096
"""Capacity of the queue: room for the reports of a thousand peers and for bursts. If it is full,
this node's own events wait, and events of peers are dropped."""

PLAINTEXT = Caution(
    "NOT-ENCRYPTED",
    "bulk data is NOT ENCRYPTED, because the run's manifest turns encryption off: anybody on the "
    "network path between members can read and change it",
)


@dataclass(frozen=True, slots=True)
class Made:
    """The parts of a node, its run, and the receiving end of the ledger's event queue."""

    parts: Parts
    run: Run
    events: trio.MemoryReceiveChannel[Event]


@asynccontextmanager
async def assembled(around: Surroundings) -> AsyncIterator[Made]:
    """Open the parts of a node for a run. They are closed when the `async with` block ends.

    Raises:
        ConfigError: the data plane's port cannot be bound, or the amendments cannot be read.
        StoreError: the store or a log cannot be opened.
        VersionMismatch: this version orders the run's parameters differently.
        MachineUnfit: there is too little memory for the run's vectors.
    """
    run, home = around.run, around.home
    layout = _layout(run)
    send, receive = trio.open_memory_channel[Event](EVENTS_MAX)
    with ExitStack() as stack:
        store = _store(stack, around)
        plane = open_data_plane(stack, around, store)
        ledger, chain_log, votes, origin = _ledger(
            around, lambda peers: ring_order.arrange(parts, peers)
        )
        stack.callback(chain_log.close)
        stack.callback(votes.close)
        outer, arena = _memory(stack, layout, run, trains=not around.config.seed)
        parts = Parts(
            config=around.config,
            home=home,
            identity=around.identity,
            run=run.id,
            manifest=run.manifest,
            admission=around.admission,
            amendments=Amendments.of(home, run),
            network=around.network,
            credentials=plane.credentials,
            listener=plane.listener,
            ring_inbox=plane.ring_inbox,
            endpoint=plane.endpoint,
            store=store,
            layout=layout,
            outer=outer,
            arena=arena,
            ledger=ledger,
            chain_log=chain_log,
            votes=votes,
            origin=origin,
            detector=Detector(HEARTBEAT_S),
            identities=Identities.of(
                around.identity,
                run.id,
                around.incarnation,
                lambda peer: ledger.state.is_member(peer),
            ),
            journal=around.journal,
            uplink=plane.uplink,
            congestion=plane.congestion,
            events=send,
        )
        _serve_probes(parts)
        _say_how_it_sends(parts)
        yield Made(parts, run, receive)


def _store(stack: ExitStack, around: Surroundings) -> Store:
    chunk_bytes = around.run.manifest.policy.chunk_bytes
    store = Store(around.home.store, disk=around.disk, chunk_bytes=chunk_bytes)
    stack.enter_context(store)
    store.head()  # Read it here, so that damage is reported now and not at the first use.
    return store


def _ledger(
    around: Surroundings, arrange: Arrange
) -> tuple[Ledger, RecordLog, RecordLog, Origin | None]:
    """Open the ledger, its chain log and its vote log, and find where the chain begins. Write
    repaired damage and the checkpoint to the journal."""
    now, journal = trio.current_time(), around.journal
    ledger, chain_log, votes = open_ledger(
        around.home, around.run, around.identity, now, around.disk, arrange
    )
    for log in (chain_log, votes):
        if log.recovered:
            journal.write("recovered", what=log.recovered)
    origin = pruning.origin_in(chain_log)
    if origin is not None:
        journal.write("chain", checkpoint=str(origin.base.checkpoint), what=origin.words)
    return ledger, chain_log, votes, origin


def _memory(
    stack: ExitStack, layout: Layout, run: Run, *, trains: bool
) -> tuple[Outer, Arena | None]:
    """Allocate θ and m, and the arena and residuals of a node that trains. `stack` frees them."""
    vectors = OuterState(layout.numel)
    stack.callback(vectors.close)
    if not trains:
        return Outer(vectors), None
    arena = Arena(vectors)
    stack.callback(arena.close)
    if not run.manifest.codec.feedback:
        return Outer(vectors), arena
    cut = fragments(layout, run.manifest.sync.fragments)
    residuals = tuple(Residual(fragment.numel) for fragment in cut)
    for residual in residuals:
        stack.callback(residual.close)
    return Outer(vectors, residuals), arena


def _serve_probes(parts: Parts) -> None:
    busy = partial(path_probes.is_busy, parts)
    parts.listener.handle(path_probes.PURPOSE, ProbeServer(busy, swarm_limit(parts.uplink)))


def _say_how_it_sends(parts: Parts) -> None:
    limit = parts.config.limit_up_bytes_per_s
    parts.journal.write("sending", **asdict(parts.congestion), limit_bytes_per_s=limit)
    if not parts.manifest.encrypted:
        parts.standing.warnings["encryption"] = PLAINTEXT
        parts.journal.write("plaintext", what=PLAINTEXT.what)


def _layout(run: Run) -> Layout:
    layout = layout_of(run.manifest.model)
    if layout.digest != run.manifest.layout:
        raise VersionMismatch(
            "this version of p2ptrain orders the parameters differently from the run",
            evidence=[
                f"the run has layout {run.manifest.layout}",
                f"this version of p2ptrain has layout {layout.digest}",
            ],
            likely="the run was published with a different version of p2ptrain",
            do="ask the organiser which version to install, and install it",
        )
    return layout
