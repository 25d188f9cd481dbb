"""Open everything that a node holds, in the order of need, and close it in the opposite one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from ipaddress import ip_address

import psutil
import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    ProbeServer,
    Rank,
    RingInbox,
    Uplink,
    probe_congestion,
)
from p2ptrain.errors import VersionMismatch
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.ledger.detector import Detector
from p2ptrain.ledger.events import Event
from p2ptrain.ledger.values import Schedule
from p2ptrain.net import Network
from p2ptrain.node import arranging, probing, pruning
from p2ptrain.node.admission import Admission
from p2ptrain.node.amendments import Amendments
from p2ptrain.node.chain import open_ledger
from p2ptrain.node.gossip import HEARTBEAT_S
from p2ptrain.node.home import Home
from p2ptrain.node.parts import Outer, Parts
from p2ptrain.observe.journal import Journal
from p2ptrain.run import Run
from p2ptrain.state import Arena, Layout, OuterState, Residual
from p2ptrain.store import Disk, Store
from p2ptrain.swarm import PURPOSE, ChunkServer
from p2ptrain.sync.fragments import fragments
from p2ptrain.trainer.shapes import layout_of

EVENTS_MAX = 4096
"""Reports of a thousand peers with room for bursts; own events wait, those of peers are dropped."""

PLAINTEXT = (
    "bulk data is NOT ENCRYPTED, as the run's manifest says: whoever is on the path between "
    "members can read and change it"
)


@dataclass(frozen=True, slots=True)
class Made:
    """The parts, the run that they serve, and the end of the ledger's inbox that reads."""

    parts: Parts
    run: Run
    events: trio.MemoryReceiveChannel[Event]


@asynccontextmanager
async def assembled(
    config: NodeConfig,
    home: Home,
    journal: Journal,
    identity: Identity,
    run: Run,
    admission: Admission,
    network: Network,
    disk: Disk | None = None,
    incarnation: int = 0,
) -> AsyncIterator[Made]:
    """The parts of a node that serves `run`, closed again when the block is left.

    `disk` is what the store and the ledger's logs write to, this machine's unless told otherwise.

    Raises:
        ConfigError: the data plane's port cannot be bound, or the amendments cannot be read.
        StoreError: the store or a log cannot be opened.
        VersionMismatch: the run's parameters lie otherwise than this version places them.
        MachineUnfit: too little memory for the run's vectors.
    """
    layout = _layout(run)
    send, receive = trio.open_memory_channel[Event](EVENTS_MAX)
    credentials = Credentials.create(identity)
    with ExitStack() as stack:
        chunk_bytes = run.manifest.policy.chunk_bytes
        store = stack.enter_context(Store(home.store, disk=disk, chunk_bytes=chunk_bytes))
        store.head()  # Read here so that damage is told now, and not when it is first needed.
        listener = stack.enter_context(
            Listener(
                credentials,
                config.data_host,
                config.data_port,
                allowed=admission.admits,
                encrypted=run.manifest.encrypted,
            )
        )
        uplink, ring_inbox = _serve_data(stack, listener, store, config.limit_up_bytes_per_s)

        def arrange(peers: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
            return arranging.arrange(parts, peers)

        now = trio.current_time()
        ledger, chain_log, votes = open_ledger(home, run, identity, now, disk, arrange)
        for log in (chain_log, votes):
            if log.recovered:
                journal.write("recovered", what=log.recovered)
        origin = pruning.origin_in(chain_log)
        if origin is not None:
            journal.write("chain", checkpoint=str(origin.base.checkpoint), what=origin.words)
        outer, arena = _memory(stack, layout, run, trains=not config.seed)
        parts = Parts(
            config=config,
            home=home,
            identity=identity,
            run=run.id,
            manifest=run.manifest,
            admission=admission,
            amendments=Amendments.of(home, run),
            network=network,
            credentials=credentials,
            listener=listener,
            ring_inbox=ring_inbox,
            endpoint=_endpoint(identity, credentials, listener, network),
            store=store,
            layout=layout,
            outer=outer,
            arena=arena,
            ledger=ledger,
            chain_log=chain_log,
            votes=votes,
            origin=origin,
            vote_records=len(ledger.records()),
            detector=Detector(HEARTBEAT_S),
            journal=journal,
            uplink=uplink,
            congestion=probe_congestion(),
            events=send,
            incarnation=incarnation,
        )
        limit = None if uplink is None else uplink.share(Rank.SWARM).take
        listener.handle(probing.PURPOSE, ProbeServer(partial(probing.is_busy, parts), limit))
        sending = asdict(parts.congestion) | {"limit_bytes_per_s": config.limit_up_bytes_per_s}
        journal.write("sending", **sending)
        if not run.manifest.encrypted:
            parts.standing.warnings["encryption"] = PLAINTEXT
            journal.write("plaintext", what=PLAINTEXT)
        yield Made(parts, run, receive)


def _serve_data(
    stack: ExitStack, listener: Listener, store: Store, limit_bytes_per_s: int | None
) -> tuple[Uplink | None, RingInbox]:
    """Take the ring's connections in, and serve chunks; the ring goes first on a capped uplink."""
    uplink = Uplink(limit_bytes_per_s) if limit_bytes_per_s else None
    ring_inbox = RingInbox()
    listener.handle("ring", ring_inbox.handle)
    limit = None
    if uplink is not None:
        stack.callback(uplink.close)  # before the listener is left, which waits for its threads
        limit = uplink.share(Rank.SWARM).take
    listener.handle(PURPOSE, ChunkServer(store, limit=limit))
    return uplink, ring_inbox


def _memory(
    stack: ExitStack, layout: Layout, run: Run, *, trains: bool
) -> tuple[Outer, Arena | None]:
    """θ and m, and what a node that trains needs beside them; given back with `stack`."""
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


def _layout(run: Run) -> Layout:
    layout = layout_of(run.manifest.model)
    if layout.digest != run.manifest.layout:
        raise VersionMismatch(
            "the run's parameters lie in another order than this p2ptrain puts them",
            evidence=[f"the run has layout {run.manifest.layout}", f"here it is {layout.digest}"],
            likely="the run was published with another version of p2ptrain",
            do="install the version that the organiser names",
        )
    return layout


def _endpoint(
    identity: Identity, credentials: Credentials, listener: Listener, network: Network
) -> Endpoint:
    """Where others reach our data plane: its own address, or where the control plane is reached."""
    host, port = listener.address
    if host in ("0.0.0.0", "::"):
        host = outward_host(network.addresses(), v6=host == "::")
    return Endpoint(identity.peer, host, port, credentials.certificate_der)


def outward_host(addresses: Sequence[str], *, v6: bool) -> str:
    """The host in `addresses`, where the control plane is reached, that the data plane shares.

    A socket on 0.0.0.0 is not reached over IPv6; one on :: is reached over both. Loopback is for
    nodes that can be reached at nothing else: then all of the run is on this machine.
    """
    protocols = ("ip4", "ip6") if v6 else ("ip4",)
    split = [address.split("/") for address in addresses]
    hosts = [parts[2] for parts in split if len(parts) > 2 and parts[1] in protocols]
    for host in hosts:
        if not ip_address(host).is_loopback:
            return host
    return hosts[0] if hosts else _first_own_address()


def _first_own_address() -> str:
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return address.address
    return "127.0.0.1"
