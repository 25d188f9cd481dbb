"""Fetch a run's newest certified weights as a stranger, if the run makes them public.

The ledger is followed from the manifest (or from a checkpoint that the user trusts) to its newest
entry, and every certificate is checked. The snapshot that the ledger names is then fetched from the
data planes of the nodes that were watched, chunk by chunk, each compared with its digest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import Credentials, Endpoint, SecureSocket, dial
from p2ptrain.errors import (
    NotAuthorised,
    P2PTrainError,
    PeerError,
    RemoteProtocolError,
    StoreError,
    first_error,
)
from p2ptrain.identity import SEED_BYTES, Identity
from p2ptrain.ids import Digest, PeerId
from p2ptrain.names import label
from p2ptrain.net import Network
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.state.threads import in_thread
from p2ptrain.node.watching.follow import Follower
from p2ptrain.node.watching.watch import observing
from p2ptrain.peers.outside.watched_ledger import NamedSnapshot
from p2ptrain.peers.peer_table import endpoint_of
from p2ptrain.peers.protocol_names import ENDPOINT_BYTES_MAX, VISIT_PROTOCOL
from p2ptrain.run import Run
from p2ptrain.store import Store
from p2ptrain.suggested_command import to_paste
from p2ptrain.swarm import PURPOSE, FetchHandle, FetchProgress, FetchReport, fetch_blob

NO_SOURCE = "CKPT-NO-SOURCE"

VISIT_S, DIAL_S = 10.0, 10.0
"""Deadlines in seconds for a visit, and for a connection to a data plane."""

FETCH_S = 6 * 3600.0
"""Deadline of one try in seconds. A node sends strangers at most 4 MiB per second altogether."""

LARGE_BYTES = 50_000_000
"""Number of bytes from which the progress of a download is printed."""

ROUNDS_MAX = 64
"""Maximum number of rounds in which the observer asks for the ledger before a try. A round without
an answer takes `PAUSE_S`; the follower gives up after 20 of them."""

TRIES_MAX, PAUSE_S = 6, 5.0
"""Number of tries, and the seconds between two of them. The nodes publish a new snapshot some
seconds after the ledger certifies it, and forget the last but one."""


@dataclass(frozen=True, slots=True)
class TakenWeights:
    """The fetched snapshot, and where the ledger was when it was chosen: `step` is the outer step
    in progress, and `height` and `head` name the newest entry. The store has the chunks of the
    snapshot and of the tokenizer."""

    run: Run
    snapshot: NamedSnapshot
    step: int
    height: int
    head: Digest
    bytes_fetched: int
    seconds: float


def take_weights(config: NodeConfig, folder: Path, print_line: PrintLine) -> TakenWeights:
    """Fetch the newest certified snapshot of the run that `config` names, and the tokenizer, into a
    store in `folder`. Chunks that are already there are not fetched again.

    Raises:
        NotAuthorised: WEIGHTS-PRIVATE: the run does not give its weights to strangers.
        P2PTrainError: the run cannot be followed, or no node sends the weights.
    """
    try:
        return trio.run(taken_weights, config, folder, print_line, strict_exception_groups=True)
    except* P2PTrainError as group:
        raise first_error(group) from None


async def taken_weights(config: NodeConfig, folder: Path, print_line: PrintLine) -> TakenWeights:
    """Do what `take_weights` says, in a running event loop."""
    identity, began = Identity.from_seed(os.urandom(SEED_BYTES)), trio.current_time()
    async with observing(config, print_line, identity) as (run, network, sources, follower):
        expect_public(run, config.home)
        with Store(folder, chunk_bytes=run.manifest.policy.chunk_bytes) as store:
            visitor = Visitor(run, network, sources, store, Credentials.create(identity))
            snapshot, fetched = await _newest(visitor, follower, print_line)
        state, seconds = follower.ledger.state, trio.current_time() - began
        at = (state.step, state.height, state.head)
        return TakenWeights(run, snapshot, *at, fetched, seconds)


async def _newest(
    visitor: Visitor, follower: Follower, print_line: PrintLine
) -> tuple[NamedSnapshot, int]:
    """Fetch the newest snapshot. Return it, and the number of fetched bytes. Raises as
    `take_weights` does."""
    told, evidence = "", tuple[str, ...]()
    for number in range(TRIES_MAX):
        if number:
            await trio.sleep(PAUSE_S)
        await follow_to_head(follower)
        snapshot = newest(visitor.run, follower)
        print_line(f"fetching the snapshot of outer step {snapshot.step}, {snapshot.digest[:12]}…")
        try:
            return snapshot, await visitor.fetch(snapshot.digest, print_line)
        except StoreError as exc:
            if exc.code != NO_SOURCE:
                raise
            told, evidence = exc.what, exc.evidence
    raise StoreError(
        told,
        code=NO_SOURCE,
        evidence=evidence,
        likely="the nodes of the invitation are busy, or many people take the weights now",
        do="run the same command again later: it goes on where it stopped",
    )


def expect_public(run: Run, home: Path) -> None:
    """Raises NotAuthorised (WEIGHTS-PRIVATE) if strangers do not get the weights of `run`. The
    error names the command that fetches them into `home`."""
    if run.manifest.public.weights:
        return
    is_open, fetch = run.manifest.admission == "open", to_paste(home, "ckpt fetch")
    raise NotAuthorised(
        "this run does not give its weights to people who are not admitted",
        code="WEIGHTS-PRIVATE",
        likely="its organiser did not set public.weights in the run file",
        do=f"{fetch}; the run is open, so that needs no admission"
        if is_open
        else f"ask the organiser to admit you as a reader; then use {fetch}",
    )


async def follow_to_head(follower: Follower) -> None:
    """Ask until a round brings no new entries. Raises what `Follower.round` raises."""
    for _ in range(ROUNDS_MAX):
        height = follower.ledger.state.height
        await follower.round()
        if not follower.answered:
            await trio.sleep(PAUSE_S)
        elif follower.ledger.state.height == height:
            return


def newest(run: Run, follower: Follower) -> NamedSnapshot:
    """Return the newest certified snapshot. The manifest names the first weights."""
    organiser = (run.manifest.organiser,)
    return follower.ledger.snapshot or NamedSnapshot(0, run.manifest.genesis, 0, organiser, 0)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Fetches from the nodes `sources`, to which it is a stranger."""

    run: Run
    network: Network
    sources: tuple[PeerId, ...]
    store: Store
    credentials: Credentials

    async def fetch(self, snapshot: Digest, print_line: PrintLine) -> int:
        """Fetch the tokenizer and `snapshot`, and return the number of fetched bytes.

        Raises StoreError (CKPT-NO-SOURCE: no node sends them now), TryLater."""
        endpoints, refusals = await self._visits()
        count = 0
        for digest in (self.run.manifest.tokenizer, snapshot):
            if await trio.to_thread.run_sync(self.store.holds_blob, digest):
                continue
            if not endpoints:
                raise StoreError(
                    "none of the nodes sends its weights now", code=NO_SOURCE, evidence=refusals
                )
            count += (await self._fetched(digest, endpoints, print_line)).bytes_fetched
        return count

    async def _visits(self) -> tuple[list[Endpoint], list[str]]:
        """Show our certificate to the nodes. Return their data planes, and in words why the others
        refused. They forget a visitor after some time, so each try visits again."""
        found, refusals = list[Endpoint](), list[str]()

        async def visit(peer: PeerId) -> None:
            try:
                reply = await self.network.request(
                    peer,
                    VISIT_PROTOCOL,
                    self.credentials.certificate_der,
                    deadline_s=VISIT_S,
                    bytes_max=ENDPOINT_BYTES_MAX,
                )
                if endpoint := endpoint_of(peer, reply):
                    found.append(endpoint)
            except (PeerError, RemoteProtocolError) as exc:
                refusals.append(f"{label(peer)}: {exc.what}")

        async with trio.open_nursery() as nursery:
            for peer in self.sources:
                nursery.start_soon(visit, peer)
        return found, refusals

    async def _fetched(
        self, digest: Digest, endpoints: list[Endpoint], print_line: PrintLine
    ) -> FetchReport:
        handle: FetchHandle[Endpoint] = FetchHandle()
        work = partial(
            fetch_blob,
            self.store,
            digest,
            endpoints,
            self._dial,
            deadline_s=FETCH_S,
            progress=_Percent(print_line),
            handle=handle,
        )
        return await in_thread(work, stop=handle.cancel)

    def _dial(self, endpoint: Endpoint) -> SecureSocket:
        encrypted = self.run.manifest.encrypted
        hello = {"purpose": PURPOSE}
        return dial(self.credentials, endpoint, hello, deadline_s=DIAL_S, encrypted=encrypted)


@dataclass(slots=True)
class _Percent:
    """Prints each tenth of a large download. Called in the threads of a fetch, after each chunk."""

    print_line: PrintLine
    tenths: int = 0

    def __call__(self, so_far: FetchProgress) -> None:
        tenths = int(10 * so_far.fraction)
        if so_far.bytes_fetched >= LARGE_BYTES and tenths > self.tenths:
            self.tenths = tenths
            self.print_line(f"{10 * tenths} %, {so_far.bytes_fetched / 1e6:,.0f} MB")
