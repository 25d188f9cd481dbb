"""A peer that does not train can fetch what the run has certified, and verify all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.cli.main import main
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import ConfigError, IdentityInUse, NetworkUnreachable, StoreError, TryLater
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.ledger.history import catchup
from p2ptrain.ledger.messages.events import PeerHeight, Received
from p2ptrain.ledger.messages.messages import Pruned
from p2ptrain.names import label
from p2ptrain.node import data_plane, observer
from p2ptrain.node.consensus.ledger_task import run_ledger
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.observer import FetchedSnapshot, Patience, be_current, fetch, fetch_here, observe
from p2ptrain.node.startup import open_node
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.timing import Timing
from p2ptrain.store import StoreReader
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, NewRig, Rig, heartbeat, rig, settled
from tests.node.swarm import Diary, Swarm, SwarmNode, swarm

STEPS = 5
ALONE = policy(participants_min=1, snapshot_every=2)


SOON = Patience(current_s=2.2)
"""The patience of an observer on a network without delays: slightly longer than a heartbeat
interval."""
AT_ONCE = replace(SOON, no_source_s=0.0)
HASTY = Patience(hear_s=0.4, current_s=0.1)


@asynccontextmanager
async def watching(s: Swarm, node: SwarmNode) -> AsyncIterator[Context]:
    """Open the context of a node that observes the run of `s`."""
    addresses = tuple(s["ann"].context.network.addresses())
    config = replace(node.config, seed=True, bootstrap=addresses)
    with sole_use(node.home), Diary(node.home.journal) as diary:
        reception = StartupStatus(node.peer, diary)
        async with open_node(config, node.home, reception, node.said.append) as context:
            yield context


@pytest.mark.needs_torch
async def test_observer_fetches_and_verifies_the_newest_snapshot_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below, blobs are removed from disks. Do not let nodes keep chunks in memory, so that the
    # removed blobs are really gone.
    monkeypatch.setattr(data_plane, "HotChunks", lambda store: store)
    async with swarm(
        tmp_path,
        nodes=("ann",),
        later=("eve",),
        founders=("ann",),
        rules=ALONE,
        steps=STEPS,
        stops_at=2,
    ) as s:
        # Once the first snapshot is written, a later Commit contains its digest, however slow the
        # disk is.
        await s.until(lambda: s["ann"].events("snapshot", step=2))
        s.stop_at(None)
        await s.until(lambda: s.at_step(STEPS))
        eve, state = s["eve"], s["ann"].context.ledger.snapshot
        assert state.snapshot is not None

        async def work(context: Context) -> FetchedSnapshot:
            fetched = await fetch_here(
                context,
                wanted="newest",
                updates=True,
                pin=True,
                print_line=eve.said.append,
                patience=SOON,
            )
            await _expect_word_of_what_is_gone(s, context)
            return fetched

        async with watching(s, eve) as context:
            fetched = await observe(context, work)
        assert (fetched.step, fetched.digest) == (state.snapshot.step, state.snapshot.digest)
        assert fetched.updates == STEPS - state.snapshot.step
        assert fetched.bytes_fetched > 8 * s["ann"].context.layout.numel
        for digest in (fetched.digest, s["ann"].context.manifest.tokenizer):
            assert StoreReader(eve.home.store).holds_blob(Digest(digest))
        assert not [each for each in eve.said if "take part with" in each]
        assert eve.peer not in s["ann"].context.ledger.snapshot.members
        await _expect_repairs(s, eve, Digest(fetched.digest))
    for words in (["verify"], ["ckpt", "verify"]):
        assert main([*words, "--home", str(eve.home.root)]) == 0


async def _expect_repairs(s: Swarm, eve: SwarmNode, snapshot: Digest) -> None:
    """Check that `store check --repair` repairs a damaged chunk. It runs in a thread, so trio sees
    it as a separate process."""
    address, store = s["ann"].context.network.addresses()[0], StoreReader(eve.home.store)
    victim = store.manifest(snapshot).chunks[0]
    path = eve.home.store / "objects" / victim[0] / victim[1:]
    path.write_bytes(b"rotten")
    words = ["store", "check", "--repair", "--bootstrap", address, "--home", str(eve.home.root)]
    assert await trio.to_thread.run_sync(main, words) == 0
    assert store.holds_blob(snapshot)
    assert len(store.get_chunk(victim)) > len(b"rotten")


async def _expect_word_of_what_is_gone(s: Swarm, context: Context) -> None:
    look = partial(fetch_here, updates=True, pin=False, print_line=print, patience=AT_ONCE)
    around = replace(context.around, timing=Timing(fetch_retry_s=0.05))
    context = replace(context, around=around)
    first = s["ann"].context.ledger.history.closing(0).entry.value
    assert isinstance(first, Commit)
    for name in ("ann", "seed"):
        s[name].context.store.chunk_path(first.update).unlink()
    with pytest.raises(StoreError, match="no source has") as caught:
        await look(context, wanted="genesis")
    assert caught.value.code == "CKPT-NO-SOURCE"
    with pytest.raises(ConfigError, match="not a certified snapshot"):
        await look(context, wanted="9999")


async def test_observer_that_hears_no_peer_says_so(tmp_path: Path) -> None:
    soon = Patience(hear_s=0.1, current_s=2.2)
    async with rig(tmp_path) as r:
        with pytest.raises(NetworkUnreachable, match="no peer of the run was heard"):
            await be_current(r.context, print, soon)


LIAR, HONEST = ANN.peer, BOB.peer


async def heard(r: Rig, nursery: trio.Nursery, **heights: int) -> None:
    """Run the ledger's task, and let these peers claim these heights."""
    nursery.start_soon(run_ledger, r.context)
    for name, height in heights.items():
        peer = {"liar": LIAR, "honest": HONEST}[name]
        r.context.peers.table.note_heartbeat(
            peer, heartbeat(r.run.id, height=height), r.context.now()
        )
        await r.context.ledger.submit(PeerHeight(peer, height))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("ANSWER_S", 0.02), ("SHOW_S", 0.2)):
        monkeypatch.setattr(catchup, name, seconds)


@pytest.mark.usefixtures("hasty")
async def test_peer_that_never_sends_the_entries_it_claims_causes_no_delay(tmp_path: Path) -> None:
    said: list[str] = []
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        await heard(r, nursery, liar=2**53, honest=0)
        with trio.fail_after(10):
            await be_current(r.context, said.append, HASTY)
        nursery.cancel_scope.cancel()
    assert said == [
        f"ignoring {label(LIAR)}: it claims to have {2**53} entries of the ledger, but did not "
        "send any after entry 0"
    ]


@pytest.mark.usefixtures("hasty")
async def test_observer_that_hears_only_such_a_peer_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        await heard(r, nursery, liar=2**53)
        with trio.fail_after(10):
            with pytest.raises(NetworkUnreachable, match="that did not send the ledger") as caught:
                await be_current(r.context, print, HASTY)
        nursery.cancel_scope.cancel()
    assert len(caught.value.evidence) == 1


@pytest.mark.usefixtures("hasty")
async def test_observer_with_only_pruned_peers_says_what_to_do(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    await heard(r, nursery, liar=40)
    await settled(lambda: bool(r.network.requested))
    await r.context.ledger.submit(Received(LIAR, Pruned(40, 15, Digest(r.run.id))))
    with trio.fail_after(10):
        with pytest.raises(TryLater, match="keeps entry 1 of the ledger"):
            await be_current(r.context, print, HASTY)


class LongCatchUp:
    """The context of a node, as `be_current` uses it. Each wait takes one second. The only source
    falls silent twice: in the middle, and at the end."""

    def __init__(self, heights: dict[int, int], silent: range, ends: int) -> None:
        self.time, self.table, self._heights = 0, [LIAR], heights
        self._silent, self._ends = silent, ends
        self.changes = self.ledger = self.snapshot = self.core = self.peers = self

    def now(self) -> float:
        return float(self.time)

    async def wait(self, *, at_most_s: float) -> None:
        self.time += 1

    def counted(self) -> list[object]:
        return [] if self.time in self._silent or self.time >= self._ends else [ANN]

    def out_of_reach(self) -> bool:
        return True

    @property
    def height(self) -> int:
        return max(height for since, height in self._heights.items() if since <= self.time)

    def ledger_is_current(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("catch_up", "gives_up_at"),
    [
        (LongCatchUp({0: 0}, range(100, 140), 300), 299 + 60),
        (LongCatchUp({0: 0, 50: 40, 100: 80}, range(300), 300), 100 + 60),
        (LongCatchUp({0: 0}, range(300), 300), 60),
    ],
)
async def test_source_that_is_silent_during_a_long_catch_up_is_waited_for(
    catch_up: LongCatchUp, gives_up_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "nobody_keeps", lambda context: TryLater("no peer keeps it"))
    with pytest.raises(TryLater):
        await be_current(catch_up, print)  # type: ignore[arg-type]
    assert catch_up.time == gives_up_at + 1


def test_home_of_a_running_node_is_refused_with_advice(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with sole_use(home), pytest.raises(IdentityInUse) as caught:
        fetch(NodeConfig(home.root), "newest", updates=True, pin=False, print_line=print)
    assert caught.value.do.startswith("p2ptrain ckpt ls --home ")


def test_errors_are_raised_unchanged(tmp_path: Path) -> None:
    config = NodeConfig(tmp_path / "home", listen=("/ip4/127.0.0.1/tcp/0",))
    with pytest.raises(ConfigError) as caught:
        fetch(config, "newest", updates=True, pin=False, print_line=print)
    assert caught.value.code == "ADDR-NONE"
