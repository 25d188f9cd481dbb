"""Connect to a run's nodes as an observer, and follow the run until it ends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from p2ptrain.archive.ledger_on_disk import rules_of
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import (
    NetworkUnreachable,
    P2PTrainError,
    PeerError,
    RemoteProtocolError,
    RunMismatch,
    first_error,
)
from p2ptrain.identity import SEED_BYTES, Identity, verify
from p2ptrain.ids import PeerId
from p2ptrain.ledger.history.base import BASE_BYTES_MAX, Checkpoint, decode_base
from p2ptrain.ledger.history.check_base import check_base
from p2ptrain.net import Network, open_network
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.joining.base_server import encode_named
from p2ptrain.node.joining.find_run import PrintLine, fetch_run
from p2ptrain.node.watching.follow import Follower
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.peers.outside.watch_messages import REPLY_BYTES_MAX
from p2ptrain.peers.outside.watched_ledger import WatchedLedger, WatchedStep
from p2ptrain.peers.protocol_names import BASE_PROTOCOL, WATCH_PROTOCOL
from p2ptrain.run import Run, SignedAllowlist

POLL_S = 3.0
"""Seconds between two questions of an observer that has all entries."""

ASK_S = 15.0
BASE_S = 60.0
"""Deadlines in seconds for one answer, and for a base of up to 9 MB."""

CONNECT_S = 10.0

SOURCES_MAX = 8
"""Maximum number of nodes that are asked. An invitation has at most eight addresses."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The followed run, and what is known of its ledger. Passed on after each round, with the outer
    steps that ended since the last one."""

    run: Run
    ledger: WatchedLedger
    steps: list[WatchedStep]
    network: Network
    sources: tuple[PeerId, ...]


Show = Callable[[Watched], bool]
"""Shows the news. Returns whether to go on."""


def watch(config: NodeConfig, show: Show, print_line: PrintLine, *, poll_s: float = POLL_S) -> None:
    """Follow the run that `config` names (`bootstrap`, `run`, `organiser`, `trust_checkpoint`), and
    call `show` after each round, until it returns False or the run has ended.

    Raises P2PTrainError: the run cannot be found or followed; the error says why.
    """
    try:
        trio.run(_watch, config, show, print_line, poll_s, strict_exception_groups=True)
    except* P2PTrainError as group:
        raise first_error(group) from None


async def _watch(config: NodeConfig, show: Show, print_line: PrintLine, poll_s: float) -> None:
    async with observing(config, print_line) as (run, network, sources, follower):
        while True:
            steps = await follower.round()
            seen = Watched(run, follower.ledger, steps, network, sources)
            if not show(seen) or follower.ended:
                return
            await trio.sleep(poll_s)


@asynccontextmanager
async def observing(
    config: NodeConfig, print_line: PrintLine, identity: Identity | None = None
) -> AsyncIterator[tuple[Run, Network, tuple[PeerId, ...], Follower]]:
    """Connect to the run that `config` names. Yield the run, the network, the connected nodes and a
    follower that has not asked anything yet. By default, the identity is a new one.

    Raises P2PTrainError: the run cannot be found; the error says why."""
    # A new key each time: nobody needs to recognise an observer, and it needs no home.
    identity = identity or Identity.from_seed(os.urandom(SEED_BYTES))
    async with open_network(identity, listen=[], admitted=lambda peer: False) as network:
        addresses = list(config.bootstrap)
        run = await fetch_run(network, config, addresses)
        print_line(f"watching run {run.manifest.name!r} ({run.id[:12]}…)")
        sources = await connect_all(network, addresses[:SOURCES_MAX])
        vouched = await _listed(network, run, sources)

        async def ask(peer: PeerId, payload: bytes) -> bytes:
            return await network.request(
                peer, WATCH_PROTOCOL, payload, deadline_s=ASK_S, bytes_max=REPLY_BYTES_MAX
            )

        named = config.trust_checkpoint and Checkpoint.parse(config.trust_checkpoint)
        ledger = await _begin(network, run, named or None, sources, vouched)
        yield run, network, sources, Follower(run.id, ledger, sources, ask)


async def connect_all(network: Network, addresses: list[str]) -> tuple[PeerId, ...]:
    """Connect to the peers at `addresses`, all at once. Return those that answer.

    Raises NetworkUnreachable: none of them answers.
    """
    found = list[PeerId]()

    async def connect(address: str) -> None:
        with suppress(P2PTrainError):
            found.append(await network.connect(address, deadline_s=CONNECT_S))

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(connect, address)
    if not found:
        raise NetworkUnreachable(
            f"none of the {len(addresses)} addresses answers any more", do="try again later"
        )
    return tuple(dict.fromkeys(found))


async def _listed(network: Network, run: Run, sources: tuple[PeerId, ...]) -> frozenset[PeerId]:
    """Return the peers whose records count besides the members': those that the organiser's
    documents name. An outdated list does no harm here: at worst, a record is ignored."""
    named = {*run.organisers, *run.manifest.founders}
    for peer in sources:
        with suppress(PeerError, RemoteProtocolError, RunMismatch):
            reply = await send_hello(network, peer, HelloRequest(run.id, b""))
            if reply.allowlist:
                named.update(SignedAllowlist.from_bytes(reply.allowlist, run).allowlist.roles)
            break
    return frozenset(named)


async def _begin(
    network: Network,
    run: Run,
    named: Checkpoint | None,
    sources: tuple[PeerId, ...],
    vouched: frozenset[PeerId],
) -> WatchedLedger:
    """Return the ledger at the run's beginning, or at the checkpoint that the user trusts.

    Raises NetworkUnreachable: no node sends the base at the checkpoint.
    """
    rules, prompts = rules_of(run), len(run.manifest.samples.prompts)
    if named is None:
        return WatchedLedger(run.id, rules, verify, vouched=vouched.__contains__, prompts=prompts)
    evidence = list[str]()
    for peer in sources:
        try:
            data = await network.request(
                peer,
                BASE_PROTOCOL,
                encode_named(named),
                deadline_s=BASE_S,
                bytes_max=BASE_BYTES_MAX,
            )
            base = decode_base(data)
            check_base(rules, base, named, verify)
        except (PeerError, RemoteProtocolError) as exc:
            evidence.append(exc.what)
            continue
        ledger = WatchedLedger(
            run.id, rules, verify, base.state, vouched=vouched.__contains__, prompts=prompts
        )
        ledger.add([base.commit])
        return ledger
    raise NetworkUnreachable(
        f"no node has the ledger's state at checkpoint {named}",
        evidence=evidence,
        likely="the checkpoint is mistyped, or older than what these nodes keep",
        do="give a newer checkpoint, or leave out --trust-checkpoint",
    )
