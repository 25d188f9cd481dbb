"""Open everything that a node uses, in order of dependency, and close it in reverse order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial

import trio

from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.chain_log import Origin
from p2ptrain.archive.kept_sums import KeptSums
from p2ptrain.archive.ledger_on_disk import open_ledger
from p2ptrain.archive.outer_step import OuterSteps
from p2ptrain.archive.own_claims import OwnClaims
from p2ptrain.dataplane import ProbeServer, UploadProbeServer
from p2ptrain.dataplane.upload_probing import PURPOSE as UPLOAD_PURPOSE
from p2ptrain.errors import VersionMismatch
from p2ptrain.eviction import IsMember
from p2ptrain.ids import PeerId
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.failure_detector import Detector
from p2ptrain.ledger.policy.reduce_order import Arrange
from p2ptrain.node.consensus import pruning
from p2ptrain.node.control.pausing import load_usage, load_wishes
from p2ptrain.node.data_plane import open_data_plane, swarm_limit
from p2ptrain.node.gossip import path_probes
from p2ptrain.node.reduce import ring_order
from p2ptrain.node.relaying.own_relay import open_relay
from p2ptrain.node.state.alerts import Alerts
from p2ptrain.node.state.changes import Changes
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.identities import Identities
from p2ptrain.node.state.ledger_port import EventQueue, LedgerPort
from p2ptrain.node.state.node_state import NodeState
from p2ptrain.node.state.outer import Outer
from p2ptrain.node.state.own_heartbeat import OwnHeartbeat
from p2ptrain.node.state.peer_directory import PeerDirectory
from p2ptrain.node.state.reduce import ReduceState
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.node.state.trainer import TrainerState
from p2ptrain.node.training import claiming
from p2ptrain.observe.cautions import Caution
from p2ptrain.peers.misbehaviour_log import MisbehaviourLog
from p2ptrain.peers.path_table import PathTable
from p2ptrain.peers.peer_table import PeerTable
from p2ptrain.peers.validation_tally import ValidationTally
from p2ptrain.run import Run
from p2ptrain.state import Arena, Layout, OuterState, Residual
from p2ptrain.store import RecordLog, Store
from p2ptrain.sync.fragments import fragments
from p2ptrain.trainer.formats.shapes import layout_of

PLAINTEXT = Caution(
    "NOT-ENCRYPTED",
    "bulk data is NOT ENCRYPTED, because the run's manifest turns encryption off: anybody on the "
    "network path between members can read and change it",
)

FLOOD = Caution(
    "FLOOD",
    "more messages arrive than this node can process, so it drops some",
    "peers repeat important messages; if the node falls behind, give it more processor time",
)


@asynccontextmanager
async def assembled(around: Surroundings) -> AsyncIterator[Context]:
    """Open everything that a node of a run uses, and close it at the end of the `async with` block.

    Raises:
        ConfigError: the data plane's port cannot be bound, or the amendments cannot be read.
        StoreError: the store or a log cannot be opened.
        VersionMismatch: this version orders the parameters differently from the run.
        MachineUnfit: there is too little memory for the run's vectors.
    """
    run, data, layout = around.run, around.run.manifest.data, _layout(around.run)
    alerts, amendments = Alerts(around.doubts), Amendments.of(around.home, run)
    with ExitStack() as stack:
        store = _store(stack, around)
        state = _node_state(around)
        plane = open_data_plane(stack, around, store, state.wishes.limits)
        core, chain_log, votes, origin = _ledger(
            around, lambda peers: ring_order.arrange(context, peers)
        )
        stack.callback(chain_log.close)
        stack.callback(votes.close)
        outer, arena = _memory(stack, layout, run, trains=not around.config.seed)
        claims = _claims(stack, around)
        own_heartbeat = OwnHeartbeat()
        directory = _directory(around, core, own_heartbeat)
        identities = Identities.of(
            around.identity,
            run.id,
            around.incarnation,
            _membership_in(core),
            Changes(),
            around.timing.questions,
            members_answered=around.members_answered,
        )
        context = Context(
            around=around,
            plane=plane,
            store=store,
            layout=layout,
            amendments=amendments,
            outer_steps=OuterSteps(run.id, run.manifest, amendments),
            ledger=LedgerPort(
                core, chain_log, votes, origin, EventQueue(partial(_flooded, alerts, directory))
            ),
            peers=directory,
            identities=identities,
            outer=outer,
            trainer=TrainerState(
                ValidationTally(data.validation_blocks, data.block_tokens), arena, claims=claims
            ),
            reduce=ReduceState(sums=None if claims is None else _sums(around)),
            alerts=alerts,
            state=state,
            own_heartbeat=own_heartbeat,
        )
        _serve_probes(context)
        open_relay(stack, context)
        _record_congestion(context)
        claiming.take_up_again(context)
        yield context


def _node_state(around: Surroundings) -> NodeState:
    wishes, usage = load_wishes(around.home.availability), load_usage(around.home.usage)
    return NodeState(around.journal, around.clock(), wishes=wishes, usage=usage)


def _membership_in(ledger: Ledger) -> IsMember:
    """Return a function that says whether a peer is currently a member."""
    return lambda peer: ledger.state.is_member(peer)


def _directory(around: Surroundings, ledger: Ledger, own: OwnHeartbeat) -> PeerDirectory:
    return PeerDirectory(
        around.admission,
        ledger,
        around.network,
        PeerTable(_membership_in(ledger), external_host=lambda: own.reach.external_host),
        Detector(around.timing.heartbeat_s),
        PathTable(around.identity.peer),
        MisbehaviourLog(around.journal),
    )


def _flooded(alerts: Alerts, peers: PeerDirectory, author: PeerId) -> None:
    """Warn the owner that the event queue was full, and count a dropped event against `author`."""
    alerts.show("flood", FLOOD)
    peers.report_misbehaviour("flood", author)


def _store(stack: ExitStack, around: Surroundings) -> Store:
    chunk_bytes = around.run.manifest.policy.chunk_bytes
    store = Store(around.home.store, disk=around.disk, chunk_bytes=chunk_bytes)
    stack.enter_context(store)
    store.head()  # Read the store's head now, so that a damaged head is reported at the start.
    return store


def _claims(stack: ExitStack, around: Surroundings) -> OwnClaims | None:
    """Open this node's claims; None if it does not train, or the run has no claims."""
    if around.config.seed or not around.run.manifest.trust.claims:
        return None
    claims = OwnClaims(around.home.claims, around.identity, around.disk)
    stack.callback(claims.close)
    return claims


def _sums(around: Surroundings) -> KeptSums:
    sums = KeptSums(around.home.sums, around.disk)
    if sums.damage:
        around.journal.write("sums-lost", reason=sums.damage)
    return sums


def _ledger(
    around: Surroundings, arrange: Arrange
) -> tuple[Ledger, RecordLog, RecordLog, Origin | None]:
    """Open the ledger, its chain log and its vote log. Also return where the chain log begins, or
    None if it begins with the run. The journal records this place, and any repairs of the logs."""
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
    """Allocate θ and m; `stack` frees the memory. For a node that trains, also allocate the arena
    (the memory shared with its trainers) and, with error feedback, residuals (rounding errors)."""
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


def _serve_probes(context: Context) -> None:
    busy = partial(path_probes.is_busy, context)
    context.plane.listener.handle(
        path_probes.PURPOSE, ProbeServer(busy, swarm_limit(context.plane.uplink))
    )
    context.plane.listener.handle(UPLOAD_PURPOSE, UploadProbeServer(busy))


def _record_congestion(context: Context) -> None:
    limit = context.limit_up_bytes_per_s
    context.journal.write("sending", **asdict(context.plane.congestion), limit_bytes_per_s=limit)
    if not context.manifest.encrypted:
        context.alerts.show("encryption", PLAINTEXT)
        context.journal.write("plaintext", what=PLAINTEXT.what)


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
