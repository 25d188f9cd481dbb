"""A real swarm in one process: real sockets, stores, ledgers and rings; only the trainer is
simulated.

    async with swarm(tmp_path, nodes=("ann", "bob", "cai"), steps=4) as s:
        await s.until(lambda: s.at_step(4))
        s.check_chain()

The first node is the seed, `s.seed`. It publishes the run and does not train. Unless a test names
other founders (first voters), the seed is the only one. All nodes share one trio loop, so a test
can inspect their internals and wait for events. SIGKILL and torch cannot be tested here, since they
need separate processes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import trio

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import PeerSocket, RingInbox, RingKey, SocketWait
from p2ptrain.errors import P2PTrainError, PeerTooSlow
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.node.control.leaving import leave
from p2ptrain.node.main import run_lives
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.timing import Timing
from p2ptrain.node.state.trainer import TrainerState
from p2ptrain.observe.journal import Journal
from p2ptrain.peers.duplicate_watch import QuestionTiming
from p2ptrain.run import (
    Allowlist,
    Run,
    SignedAllowlist,
    save_allowlist,
)
from p2ptrain.run.trust_rules import TrustRules
from p2ptrain.store import Disk
from p2ptrain.testing.fake_trainer import FakeTrainers, TrainerRemote
from p2ptrain.testing.published import publish
from tests.node.accounts import ChainCredits, Credits, trained_by, update_fault
from tests.patience import Patience

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
THREADS_MAX = 500
"""Maximum number of trio's worker threads in a test, which all nodes share. Trio's default is only
enough for one node."""

DEADLINE_S = 200.0
"""Least time limit in seconds of each wait. On two idle cores, every wait is much shorter than
this, but other tests may run on the same machine. Where waits take long, the limit grows."""

LOOK_S = 0.1

INNER_STEP_S = 0.1
"""Seconds of an inner step. Without them, nodes would use all of the processor for outer steps that
no test needs, while others start."""

CLAIMS = TrustRules(claims=True)
"""Of a run whose contributions are claims, as in most new runs."""

QUICK_TO_ASK = Timing(questions=QuestionTiming(look_s=1.0, alarm_s=0.5, start_wait_s=2.0))
"""Timing with which a node, at its start, waits only 2 s for another process with its key to
answer."""

Found = TypeVar("Found")


class Diary(Journal):
    """A journal that is also kept in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.records: list[dict[str, object]] = []

    def write(self, event: str, **fields: object) -> None:
        self.records.append({"event": event, **fields})
        super().write(event, **fields)


@dataclass
class SwarmNode:
    """One node through all its restarts. `context` is the context of the newest start."""

    name: str
    config: NodeConfig
    home: Home
    identity: Identity
    remote: TrainerRemote = field(default_factory=partial(TrainerRemote, inner_step_s=INNER_STEP_S))
    disk: Disk | None = None
    context_now: Context | None = None
    error: P2PTrainError | None = None
    said: list[str] = field(default_factory=list)
    records: list[dict[str, object]] = field(default_factory=list)
    life: trio.CancelScope | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    timing: Timing = QUICK_TO_ASK
    disguise: Callable[[TrainerState], TrainerState] = field(default=lambda state: state)
    """Replaces the state of the trainer at each start, for a node that lies about its work."""
    inbox: Deaf = field(init=False)
    """The inbox for other nodes' connections in reduces, since the newest start."""

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    @property
    def context(self) -> Context:
        assert self.context_now is not None, f"{self.name} is not up: {self.error}"
        return self.context_now

    @property
    def up(self) -> bool:
        return self.context_now is not None

    @property
    def step(self) -> int:
        """The number of outer steps that this node has finished, or -1 while it has no θ."""
        step = self.context_now.outer.step if self.context_now else None
        return -1 if step is None else step

    def events(self, kind: str, **fields: object) -> list[dict[str, object]]:
        """Return the journal's records of this kind that have these fields, since the newest
        start."""
        return [
            record
            for record in self.records
            if record["event"] == kind
            and all(record.get(name) == value for name, value in fields.items())
        ]

    async def run(self) -> None:
        """Run this node until it is stopped or fails. If it fails, set `error`."""
        self.life, self.ended, self.error = trio.CancelScope(), trio.Event(), None
        try:
            with self.life:
                await self._live()
        except* P2PTrainError as group:
            self.error = first_of(group)
        finally:
            self.context_now = None
            self.ended.set()

    async def _live(self) -> None:
        with sole_use(self.home), Diary(self.home.journal) as diary:
            self.records = diary.records
            await run_lives(
                self.config,
                self.home,
                diary,
                self.said.append,
                self._begin,
                lambda context: FakeTrainers(context, self.remote),
                self.disk,
                self._dress,
                self.timing,
            )

    def _begin(self, context: Context | None) -> None:
        self.context_now = context
        if context is not None:
            # The next start listens on the same port, like a node with a fixed port.
            port = context.network.addresses()[0].split("/")[4]
            self.config = replace(self.config, listen=(f"/ip4/127.0.0.1/tcp/{port}",))

    def _dress(self, context: Context) -> Context:
        self.inbox = Deaf(context.plane.ring_inbox)
        plane = replace(context.plane, ring_inbox=self.inbox)
        return replace(context, plane=plane, trainer=self.disguise(context.trainer))

    async def stop(self) -> None:
        """Stop this node without a goodbye. Return when all of its tasks have ended."""
        assert self.life is not None
        self.life.cancel()
        await self.ended.wait()

    async def leave(self) -> None:
        """Say goodbye to the run as after the first Ctrl-C, and stop this node."""
        await leave(self.context)
        await self.stop()


class Swarm:
    """The nodes of a test by name, including the seed, and the run that they are in."""

    def __init__(
        self, folder: Path, nursery: trio.Nursery, *, keep_snapshots: int | None = None
    ) -> None:
        self.folder = folder
        self.keep_snapshots = keep_snapshots
        self.nursery = nursery
        self.nodes: dict[str, SwarmNode] = {}
        self.run: Run | None = None
        self.patience = Patience(DEADLINE_S)
        self._stops_at: int | None = None
        self._accounts: dict[str, ChainCredits] = {}

    @property
    def seed(self) -> SwarmNode:
        return self.nodes["seed"]

    @property
    def up(self) -> list[SwarmNode]:
        return [node for node in self.nodes.values() if node.up]

    def __getitem__(self, name: str) -> SwarmNode:
        return self.nodes[name]

    def add(self, name: str, *, seed: bool = False) -> SwarmNode:
        """Create a node with an empty home (folder). Do not start it."""
        home = Home(self.folder / name)
        config = NodeConfig(
            home.root,
            listen=(LOOPBACK,),
            data_host="127.0.0.1",
            seed=seed,
            device="cpu",
            keep_snapshots=self.keep_snapshots,
            assume_yes=True,
        )
        node = SwarmNode(name, config, home, load_or_create(home.identity))
        node.remote.stops_at = self._stops_at
        self.nodes[name] = node
        return node

    async def start(self, *names: str, bootstrap: str = "seed") -> None:
        """Start nodes, and wait until each of them is up or has failed. They connect to the node
        `bootstrap` first, if that node is up."""
        for name in names:
            node = self.nodes[name]
            if name != bootstrap and self.nodes[bootstrap].up:
                addresses = self.nodes[bootstrap].context.network.addresses()
                node.config = replace(node.config, bootstrap=tuple(addresses))
            node.error = None
            self.nursery.start_soon(node.run)
        await self.until(lambda: all(self.nodes[n].up or self.nodes[n].error for n in names))

    async def stop(self, *names: str) -> None:
        """Stop these nodes without a goodbye, and wait until their threads have ended. SIGKILL
        would not wait for the threads."""
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self.nodes[name].stop)

    async def until(self, holds: Callable[[], Found]) -> Found:
        """Wait until `holds` returns a true value, and return that value. Fail if this takes much
        longer than the waits before, or when no node is up and one has failed."""
        began = trio.current_time()
        ends = began + self.patience.limit_s
        while not (found := holds()):
            assert trio.current_time() < ends, self.account()
            failed = [node for node in self.nodes.values() if node.error is not None]
            assert not failed or any(node.up for node in self.nodes.values()), self.account()
            bells = [node.context.changes for node in self.up]
            if bells:
                await bells[0].wait(at_most_s=LOOK_S)
            else:
                with trio.move_on_after(LOOK_S):
                    await trio.sleep_forever()
        self.patience.note(trio.current_time() - began)
        return found

    def credits(self, name: str) -> list[int]:
        """Return the outer steps whose updates contain the work of the node `name`."""
        peer = self.nodes[name].peer
        witness = max(self.up, key=lambda node: node.step)
        return [step for step, _, blocks in self.committed(witness) if peer in blocks]

    def at_step(self, step: int, *names: str) -> bool:
        """Return whether these nodes (by default all that are up) have finished `step` outer
        steps."""
        nodes = [self.nodes[name] for name in names] or self.up
        return all(node.step >= step for node in nodes)

    async def go_on(self, steps: int = 1, *names: str) -> None:
        """Wait until these nodes (by default all that are up) have finished this many more outer
        steps."""
        target = max(node.step for node in self.up) + steps
        await self.until(lambda: self.at_step(target, *names))

    def stop_at(self, step: int | None) -> None:
        """Stop the run at this outer step: no trainer trains for it. None removes the limit.

        A test needs this if it examines the state at a certain outer step, since an outer step
        takes only a tenth of a second here.
        """
        self._stops_at = step
        for node in self.nodes.values():
            node.remote.stops_at = step

    async def stand_still(self) -> None:
        """Let the run reach the next outer step and stop it there (see `stop_at`). Wait until no
        node is writing a snapshot."""
        step = max(node.context.ledger.snapshot.step for node in self.up) + 1
        self.stop_at(step)
        await self.until(lambda: self.at_step(step) and not self.writing)

    async def step_by_step(self, holds: Callable[[], object]) -> None:
        """Let the run continue, one outer step at a time, until `holds` is true.

        No outer step begins before all nodes have finished the previous one, so even a node with a
        slow disk is not left behind.
        """
        await self.stand_still()
        while not holds():
            await self.stand_still()

    @property
    def writing(self) -> bool:
        """Return whether any node is writing a snapshot.

        A node that has yet to begin does not count. Its snapshot is correct even if the test
        continues, since a node does not change θ before it begins to write the snapshot.
        """
        return any(node.context.outer.writing for node in self.up)

    def allow(self, *peers: PeerId, remove: Sequence[PeerId] = ()) -> None:
        """Write a newer allowlist into the seed's home, as `p2ptrain allow` does."""
        held = self.seed.context.admission.allowlist
        assert held is not None
        listed = held.allowlist
        newer = Allowlist.of(listed.run, listed.sequence + 1, {*listed.peers, *peers} - set(remove))
        save_allowlist(self.seed.home.allowlist, SignedAllowlist.publish(self.seed.identity, newer))

    def account(self) -> str:
        """Return the status of every node, for the message of a failing test."""
        lines = []
        for node in self.nodes.values():
            if not node.up:
                lines.append(f"{node.name}: not up, {node.error}")
                continue
            context = node.context
            status = context.ledger.core.status(context.now())
            lines.append(
                f"{node.name}: {context.state.current} step {node.step} ledger {status.step} "
                f"height {status.height} {status.phase}: {status.reason}; {context.trainer.work}"
            )
            lines += [f"    {record}" for record in node.records[-25:]]
        return "\n".join(lines)

    # checks

    def check_equal(self) -> None:
        """Check that nodes at the same step of the same ledger have the same θ and m."""
        digests: dict[object, set[Digest]] = {}
        for node in self.up:
            context = node.context
            if context.outer.step is None or context.outer.moving:
                continue
            key = (context.ledger.snapshot.head, context.outer.step)
            digests.setdefault(key, set()).add(context.outer.vectors.digest())
        assert all(len(each) == 1 for each in digests.values()), digests

    def committed(self, node: SwarmNode) -> list[tuple[int, Digest, Credits]]:
        """Return (step, update, blocks by peer) of each committed outer step that this node has
        finished."""
        return [each for each in self._account_of(node).committed() if each[0] < node.step]

    def _account_of(self, node: SwarmNode) -> ChainCredits:
        account = self._accounts.get(node.name)
        if account is None or account.chain is not node.context.ledger.core.chain:
            assert self.run is not None
            account = self._accounts[node.name] = ChainCredits(
                node.context.ledger.core.chain, self.run
            )
        return account

    def check_chain(self, witness: str = "seed") -> None:
        """Check the blocks with `check_blocks`. Also check that each update is the average of the
        work on exactly the blocks that its Commit names, with the agreed weights."""
        node = self.nodes[witness]
        for step, update, blocks in self.check_blocks(witness):
            self._check_update(node, step, update, blocks)

    def check_blocks(self, witness: str = "seed") -> list[tuple[int, Digest, Credits]]:
        """Check that no block was committed twice, that the peer credited with a block trained on
        it, and that the nodes' journals agree with the chain. Return the commits that `witness` has
        finished."""
        node = self.nodes[witness]
        seen: set[int] = set()
        by_peer = {each.peer: each for each in self.nodes.values()}
        committed = self.committed(node)
        for step, _, blocks in committed:
            for peer, theirs in blocks.items():
                assert seen.isdisjoint(theirs), f"step {step}: a block was committed twice"
                seen.update(theirs)
                trained = set(by_peer[peer].remote.trained)
                assert {self.data(node, block) for block in theirs} <= trained, f"step {step}"
        assert self.run is not None
        journals = [each.home.journal for each in self.nodes.values()]
        found = trained_by(node.context.ledger.core.chain, self.run, journals)
        assert (found.faults, found.unseen) == ([], 0)
        assert found.checked >= len(seen)
        return committed

    def trained_once(self, name: str) -> bool:
        """Return whether this node trained on the data of each leased block at most once.

        The count must allow for passes over the data: block numbers keep growing, but the data
        repeat after about sixteen outer steps of three peers.
        """
        leased = self._account_of(self.seed).leased(self.nodes[name].peer)
        due = Counter(self.data(self.seed, block) for block in leased)
        return Counter(self.nodes[name].remote.trained) <= due

    def data(self, node: SwarmNode, block: int) -> Digest:
        return node.context.data_block(block)

    def _check_update(self, node: SwarmNode, step: int, update: Digest, blocks: Credits) -> None:
        context = node.context
        found = np.empty(context.layout.numel, dtype=np.float32)
        context.outer_step(step).codec.dequantise(context.store.read_blob(update), found)
        assert update_fault(found, blocks, partial(self.data, node)) == ""


class Deaf(RingInbox):
    """Replaces a node's RingInbox. From a given outer step on, it delivers no connections, so that
    the node's reduces fail."""

    def __init__(self, inbox: RingInbox) -> None:
        super().__init__()
        self.inbox = inbox
        self.from_step: float = float("inf")
        self._waits_ended = threading.Event()

    def be_deaf(self, from_step: int, *, hangs: bool) -> None:
        self._waits_ended.clear() if hangs else self._waits_ended.set()
        self.from_step = from_step

    def hear_again(self) -> None:
        self.from_step = float("inf")

    def claim(self, key: RingKey) -> bool:
        return self.inbox.claim(key)

    def release(self, key: RingKey) -> None:
        self.inbox.release(key)

    def refusal(self, peer: PeerId, hello: Mapping[str, object]) -> str:
        return self.inbox.refusal(peer, hello)

    def admit(self, key: RingKey, connection: PeerSocket) -> None:
        self.inbox.admit(key, connection)

    def withdraw(self, key: RingKey, connection: PeerSocket) -> None:
        self.inbox.withdraw(key, connection)

    def end_wait(self, wait: SocketWait) -> None:
        self.inbox.end_wait(wait)
        if self.from_step < float("inf"):
            self._waits_ended.set()

    def wait_for_socket(
        self, key: RingKey, *, deadline_s: float, wait: SocketWait | None = None
    ) -> PeerSocket:
        if key.step < self.from_step:
            return self.inbox.wait_for_socket(key, deadline_s=deadline_s, wait=wait)
        self._waits_ended.wait(deadline_s)
        raise PeerTooSlow("the peer did not open its stream in time", peer=key.peer)

    def give_up(self, *, run: RunId, step: int, attempt: int) -> None:
        self.inbox.give_up(run=run, step=step, attempt=attempt)
        if step >= self.from_step:
            self._waits_ended.set()


@contextmanager
def deaf(*nodes: SwarmNode, from_step: int = 0, hangs: bool = False) -> Iterator[None]:
    """During the `with` block, make every reduce that includes one of these nodes fail, from outer
    step `from_step` on. With `hangs`, the node waits until its reduce is abandoned."""
    inboxes = [node.inbox for node in nodes]
    for inbox in inboxes:
        inbox.be_deaf(from_step, hangs=hangs)
    try:
        yield
    finally:
        for inbox in inboxes:
            inbox.hear_again()


def first_of(group: BaseExceptionGroup[P2PTrainError]) -> P2PTrainError:
    error = group.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


@contextmanager
def many_threads() -> Iterator[None]:
    """Allow THREADS_MAX of trio's worker threads during the `with` block."""
    limiter = trio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, THREADS_MAX
    try:
        yield
    finally:
        limiter.total_tokens = before


@asynccontextmanager
async def swarm(
    folder: Path,
    *,
    nodes: Sequence[str] = ("ann", "bob", "cai"),
    later: Sequence[str] = (),
    founders: Sequence[str] = (),
    keep_snapshots: int | None = None,
    stops_at: int | None = None,
    timing: Timing | None = None,
    **settings: object,
) -> AsyncIterator[Swarm]:
    """Publish a run, and start the seed and `nodes`. Nodes in `later` are only put on the
    allowlist; the test starts them. Without `founders`, the seed is the only founder.

    By default all snapshots and updates are kept, so that `check_chain` can examine them. For
    `stops_at`, see `Swarm.stop_at`. `settings` are passed to `manifest_of`.
    """
    with many_threads():
        async with trio.open_nursery() as nursery:
            made = Swarm(folder, nursery, keep_snapshots=keep_snapshots)
            made.stop_at(stops_at)
            for name in ("seed", *nodes, *later):
                made.add(name, seed=name == "seed").timing = timing or Timing()
            settings["founders"] = [made[name].peer for name in founders]
            allowed = [node.peer for node in made.nodes.values()]
            made.run = publish(made.seed.home, allowed=allowed, **settings)
            await made.start("seed")
            await made.start(*nodes)
            try:
                yield made
            finally:
                with trio.CancelScope(shield=True):
                    await made.stop(*(node.name for node in made.nodes.values() if node.up))
