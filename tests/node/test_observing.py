"""An observer, which does not train, can fetch the certified snapshots of a run and verify them."""

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
"""Limits for an observer on a network without delays: its ledger must be current for slightly
longer than a heartbeat interval."""
AT_ONCE = replace(SOON, no_source_s=0.0)
HASTY = Patience(hear_s=0.4, current_s=0.1)


@asynccontextmanager
async def watching(s: Swarm, node: SwarmNode) -> AsyncIterator[Context]:
    """Open the context of an observer of the run of `s`, in the home of `node`."""
    addresses = tuple(s["ann"].context.network.addresses())
    config = replace(node.config, seed=True, bootstrap=addresses)
    with sole_use(node.home), Diary(node.home.journal) as diary:
        reception = StartupStatus(node.peer, diary)
        async with open_node(config, node.home, reception, node.said.append) as context:
            yield context


@pytest.mark.needs_torch
async def test_observer_fetches_the_newest_snapshot_and_can_verify_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This test deletes blobs from disks. Nodes must not serve them from memory afterwards.
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
        # Wait until the first snapshot is written. Then a Commit of this short run names it even if
        # the disk is slow.
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
            await _expect_errors_for_missing_snapshots(s, context)
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
    """Check that `store check --repair` repairs a damaged chunk. The command runs in a thread, with
    an event loop of its own."""
    address, store = s["ann"].context.network.addresses()[0], StoreReader(eve.home.store)
    victim = store.manifest(snapshot).chunks[0]
    path = eve.home.store / "objects" / victim[0] / victim[1:]
    path.write_bytes(b"rotten")
    words = ["store", "check", "--repair", "--bootstrap", address, "--home", str(eve.home.root)]
    assert await trio.to_thread.run_sync(main, words) == 0
    assert store.holds_blob(snapshot)
    assert len(store.get_chunk(victim)) > len(b"rotten")


async def _expect_errors_for_missing_snapshots(s: Swarm, context: Context) -> None:
    """Delete the first update from all disks. Check the errors for a snapshot that needs this
    update, and for a snapshot that does not exist."""
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


async def test_observer_that_does_not_hear_any_peer_fails_with_that_reason(tmp_path: Path) -> None:
    soon = Patience(hear_s=0.1, current_s=2.2)
    async with rig(tmp_path) as r:
        with pytest.raises(NetworkUnreachable, match="no peer of the run sent a heartbeat"):
            await be_current(r.context, print, soon)


LIAR, HONEST = ANN.peer, BOB.peer


async def heard(r: Rig, nursery: trio.Nursery, **heights: int) -> None:
    """Run the ledger's task. Let these peers claim, in a heartbeat, to have this many entries."""
    nursery.start_soon(run_ledger, r.context)
    for name, height in heights.items():
        peer = {"liar": LIAR, "honest": HONEST}[name]
        r.context.peers.table.note_heartbeat(
            peer, heartbeat(r.run.id, height=height), r.context.now()
        )
        await r.context.ledger.submit(PeerHeight(peer, height))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time that a peer has to send the entries that it claims to have."""
    for name, seconds in (("ANSWER_S", 0.02), ("SHOW_S", 0.2)):
        monkeypatch.setattr(catchup, name, seconds)


@pytest.mark.usefixtures("hasty")
async def test_observer_does_not_wait_for_entries_that_a_liar_claims(tmp_path: Path) -> None:
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
async def test_observer_that_hears_only_a_liar_fails_and_names_the_liar(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        await heard(r, nursery, liar=2**53)
        with trio.fail_after(10):
            with pytest.raises(NetworkUnreachable, match="that did not send the ledger") as caught:
                await be_current(r.context, print, HASTY)
        nursery.cancel_scope.cancel()
    assert len(caught.value.evidence) == 1


@pytest.mark.usefixtures("hasty")
async def test_observer_fails_if_all_peers_have_pruned_the_entries_it_needs(
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
    """The parts of a context that `be_current` uses, while the ledger catches up from one source.

    Each wait takes one second. `heights`: the length of the ledger from a given second on. The
    source is not heard in the seconds `silent`, and never again from second `ends` on.
    """

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
async def test_observer_gives_up_a_minute_after_the_last_sign_of_its_source(
    catch_up: LongCatchUp, gives_up_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "nobody_keeps", lambda context: TryLater("no peer keeps it"))
    with pytest.raises(TryLater):
        await be_current(catch_up, print)  # type: ignore[arg-type]
    assert catch_up.time == gives_up_at + 1


def test_observer_is_refused_in_the_home_of_a_running_node_with_advice(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with sole_use(home), pytest.raises(IdentityInUse) as caught:
        fetch(NodeConfig(home.root), "newest", updates=True, pin=False, print_line=print)
    assert caught.value.do.startswith("p2ptrain ckpt ls --home ")


def test_error_of_the_start_is_raised_unchanged(tmp_path: Path) -> None:
    config = NodeConfig(tmp_path / "home", listen=("/ip4/127.0.0.1/tcp/0",))
    with pytest.raises(ConfigError) as caught:
        fetch(config, "newest", updates=True, pin=False, print_line=print)
    assert caught.value.code == "ADDR-NONE"
