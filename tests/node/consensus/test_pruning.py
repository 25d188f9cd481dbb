"""A node prunes (deletes) the oldest entries of its ledger if its user has configured that. Pruning
is atomic, and keeps every entry that the node still needs."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.archive.chain_log import (
    ChainFile,
    Origin,
    chain_records,
    entry_bytes,
    origin_bytes,
    origin_of,
    read_chain,
)
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import open_ledger, rules_of
from p2ptrain.config.node import NodeConfig
from p2ptrain.encoding import pack
from p2ptrain.errors import (
    ConfigError,
    NetworkUnreachable,
    RemoteProtocolError,
    StoreError,
    TryLater,
)
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Commit, Participant, Roster, SnapshotRef
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.base import Checkpoint, decode_base, encode_base
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.ledger.history.pruning import base_at
from p2ptrain.ledger.messages.events import PeerHeight, Received, Tick
from p2ptrain.ledger.messages.messages import Entries, Pruned
from p2ptrain.names import label
from p2ptrain.node.consensus import pruning
from p2ptrain.node.consensus.pruning import notice_pruned, prune, prune_home
from p2ptrain.node.control.status import status
from p2ptrain.node.joining.base_server import serve_bases
from p2ptrain.node.joining.trusted_checkpoint import begin_at_checkpoint
from p2ptrain.node.training.evaluation_task import measured, shares
from p2ptrain.observe.status import status_lines
from p2ptrain.peers.protocol_names import BASE_PROTOCOL
from p2ptrain.run import Run
from p2ptrain.store import Head, MemoryDisk, PowerCut, RecordLog, Store
from p2ptrain.testing.ledgers import digest, sealing
from p2ptrain.testing.published import policy, publish
from tests.node.rig import (
    ANN,
    BOB,
    CAI,
    NewRig,
    PaperNetwork,
    Rig,
    heartbeat,
    opening,
    rig,
    settled,
    signed,
    somebody,
)
from tests.node.swarm import Diary

STEPS = 12
ALONE: dict[str, Any] = {"steps": 40, "rules": policy(participants_min=1)}


def history(run: Run, me: Identity, steps: int = STEPS) -> list[Certified]:
    """Return a chain with two entries per outer step, signed by the only founder. Every fourth
    outer step certifies a snapshot."""
    rules, chain = rules_of(run), list[Certified]()
    state = genesis(rules)
    for step in range(steps):
        snaps = (SnapshotRef(step, digest(f"s{step}")), digest("any")) if step % 4 == 3 else ()
        part = Participant(me.peer, 16, 1)
        opening = Roster(step, 0, (me.peer,), (), (part,))
        for value in (opening, Commit(step, 0, digest("u"), *snaps)):
            chain.append(signed(run.id, state, sealing(state, value), me))
            state = apply(rules, state, chain[-1].entry)
    return chain


class Place:
    """A home with a run and its chain. The methods take a simulated disk that can fail."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.run = publish(self.home, **ALONE)
        self.me = load_or_create(self.home.identity)
        self.rules = rules_of(self.run)
        self.chain = history(self.run, self.me)
        self.state: LedgerState = genesis(self.rules)
        for certified in self.chain:
            self.state = apply(self.rules, self.state, certified.entry)

    def write(self, disk: MemoryDisk | None = None) -> None:
        RecordLog(self.home.ledger, disk=disk).append(map(entry_bytes, self.chain))

    def head(self, step: int, disk: MemoryDisk | None = None) -> None:
        """Store a snapshot of outer step `step` in the home, from which a restart could begin."""
        with Store(self.home.store, disk=disk, chunk_bytes=4096) as store:
            snapshot = store.put_blob("snapshot", [b"theta"], {})
            store.put_head(Head(self.run.id, 2 * step, digest("head"), step, snapshot, step))

    def origin(self, height: int, trusted: Checkpoint | None = None) -> Origin:
        kept = KeptChain(self.rules)
        for certified in self.chain:
            kept.append(certified)
        base = base_at(self.rules, kept, height)
        assert base is not None
        return Origin(base, trusted)

    def opened(self, disk: MemoryDisk | None = None) -> Ledger:
        return open_ledger(self.home, self.run, self.me, 0.0, disk)[0]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


def test_file_of_a_pruned_chain_is_read_back_unchanged(place: Place) -> None:
    for trusted in (None, Checkpoint(8, digest("x"))):
        origin = place.origin(16, trusted)
        records = list(chain_records(origin, place.chain[16:]))
        assert read_chain(records) == ChainFile(origin, place.chain[16:])
    assert read_chain(chain_records(None, place.chain)) == ChainFile(None, place.chain)


def test_malformed_first_record_of_a_pruned_chain_is_refused(place: Place) -> None:
    good = origin_bytes(place.origin(16, Checkpoint(8, digest("x"))))
    assert origin_of(b"{}") is None
    bad = [
        good + b" ",
        good.replace(b'"trusted":[8,', b'"trusted":[0,'),
        good.replace(b'"trusted":[8,', b'"trusted":[8,8,'),
        good.replace(b'"trusted":[8,"', b'"trusted":["'),
        good.replace(b'"height":15', b'"height":14'),
        canonical({"base": 1}),
        canonical({"base": 1, "trusted": None}),
    ]
    for record in bad:
        with pytest.raises(RemoteProtocolError):
            read_chain([record])
    with pytest.raises(RemoteProtocolError):
        read_chain([good, good])


@pytest.mark.parametrize(
    ("height", "trusted", "words"),
    [
        (16, None, "verified from checkpoint 16 (D…) on; earlier entries were verified and "
         "pruned in this home"),
        (16, 16, "verified from height 16 (checkpoint trusted by you), not from genesis"),
        (24, 16, "verified from height 16 (checkpoint trusted by you), not from genesis; "
         "pruned in this home up to checkpoint 24 (D…)"),
    ],
)  # fmt: skip
def test_start_of_a_pruned_chain_is_described_in_words(
    place: Place, height: int, trusted: int | None, words: str
) -> None:
    named = None if trusted is None else place.origin(trusted).base.checkpoint
    origin = place.origin(height, named)
    assert origin.words == words.replace("D…", f"{origin.base.checkpoint.digest[:12]}…")


def test_node_starts_from_a_pruned_chain_and_verifies_it(place: Place) -> None:
    origin = place.origin(16)
    log = RecordLog(place.home.ledger)
    log.rewrite(chain_records(origin, place.chain[16:]))
    ledger = place.opened()
    assert (ledger.state, ledger.kept.base) == (place.state, origin.base)
    votes = replace(place.chain[20].certificate, votes=())
    bad = [*place.chain[16:20], replace(place.chain[20], certificate=votes)]
    log.rewrite(chain_records(origin, bad))
    with pytest.raises(StoreError) as caught:
        place.opened()
    assert caught.value.code == "LEDGER-BROKEN"


# ── pruning a home ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("keep", "own_snapshot", "begins"),
    [
        *((16, 11, 8), (8, 11, 16), (1, 11, 16), (0, 11, 24), (0, 10, 16), (0, 6, 8)),
        *((0, 2, None), (17, 11, None), (0, None, None)),
    ],
)
def test_pruning_keeps_what_a_restart_needs(
    place: Place, keep: int, own_snapshot: int | None, begins: int | None
) -> None:
    place.write()
    if own_snapshot is not None:
        place.head(own_snapshot)
    origin = prune_home(place.home, place.run, keep)
    assert origin == (None if begins is None else place.origin(begins))
    ledger = place.opened()
    assert ledger.state == place.state
    assert ledger.chain[0].entry.height == (begins or 1)


def test_second_pruning_keeps_the_checkpoint_that_the_user_trusts(place: Place) -> None:
    place.write()
    place.head(11)
    trusted = Checkpoint(1, digest("x"))
    log = RecordLog(place.home.ledger)
    log.rewrite(chain_records(place.origin(8, trusted), place.chain[8:]))
    assert prune_home(place.home, place.run, 8) == place.origin(16, trusted)
    assert prune_home(place.home, place.run, 8) is None


def pruned_on(place: Place, disk: MemoryDisk) -> None:
    prune_home(place.home, place.run, 4, disk, frame_bytes=900)


def prepared(place: Place) -> MemoryDisk:
    disk = MemoryDisk()
    place.write(disk)
    place.head(11, disk)
    return disk.reboot(None)


def test_crash_while_pruning_leaves_the_old_or_the_pruned_chain(place: Place) -> None:
    whole = prepared(place)
    pruned_on(place, whole)
    assert len(whole.writes) >= 10
    begins = set()
    for fail_at in range(1, len(whole.writes) + 2):
        for seed in range(6):
            disk = prepared(place)
            disk.fail_at = fail_at
            with suppress(PowerCut):
                pruned_on(place, disk)
            after = disk.reboot(random.Random(seed) if seed else None)
            ledger = place.opened(after)
            assert ledger.state == place.state, f"write {fail_at}, seed {seed}"
            begins.add(ledger.chain[0].entry.height)
            pruned_on(place, after)
            assert place.opened(after.reboot(random.Random(seed))).kept.start.height == 15
    assert begins == {1, 16}


# ── a running node ───────────────────────────────────────────────────────────────────────────────


def grown(r: Rig, me: Identity, steps: int) -> None:
    for certified in history(r.run, me, steps):
        r.context.ledger.chain_log.append([entry_bytes(certified)])
        r.append(certified)


async def test_running_node_prunes_once_it_has_a_snapshot(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        context = r.context
        grown(r, context.identity, STEPS)
        await prune(context)
        assert context.ledger.kept.base is None
        r.configure(keep_entries=16)
        context = r.context
        await prune(context)
        # Without a snapshot, this node could not restart from the later entries alone.
        assert context.ledger.kept.base is None
        snapshot = context.store.put_blob("snapshot", [b"theta"], {})
        context.store.put_head(Head(context.run, 20, digest("h"), 10, snapshot, 10))
        assert context.ledger.history.closing(0)
        await prune(context)
        await prune(context)
        (said,) = r.said("pruned")
        assert (said["entries"], context.ledger.kept.start.height) == (7, 7)
        assert context.ledger.origin is not None
        assert context.ledger.history.closing(3) == context.ledger.core.chain[0]
        assert context.ledger.origin.words in [
            line.strip() for line in status_lines(await status(context))
        ]
    ledger, log, _ = open_ledger(context.home, r.run, context.identity, 0.0)
    assert (ledger.state, pruning.origin_in(log)) == (
        context.ledger.snapshot,
        context.ledger.origin,
    )


async def test_validation_loss_of_a_step_pruned_meanwhile_is_discarded(
    tmp_path: Path,
) -> None:
    """While the trainer measures the validation loss of θ at outer step 2, the ledger advances and
    prunes that step."""
    async with rig(tmp_path, **ALONE) as r:
        context = r.context
        grown(r, context.identity, STEPS)
        asked = 2
        assert set(shares(context, asked)) == {context.me}
        r.configure(keep_entries=16)
        context = r.context
        snapshot = context.store.put_blob("snapshot", [b"theta"], {})
        context.store.put_head(Head(context.run, 20, digest("h"), 10, snapshot, 10))
        await prune(context)
        assert context.ledger.kept.start.step > asked
        measured(context, asked, 3.0, 32)
        assert (context.trainer.validation.own, context.trainer.validation.newest) == (None, None)
        assert r.said("share-evaluated") == []


async def test_node_ends_if_all_peers_have_pruned_what_it_needs(tmp_path: Path) -> None:
    async with rig(tmp_path, founders=(BOB.peer,), **ALONE) as r:
        r.wait_for(pruned_s=0.05)
        context = r.context
        answer = Pruned(40, 15, digest("e16"))
        context.ledger.core.handle(PeerHeight(ANN.peer, 40), 0.0)
        context.ledger.core.handle(Received(ANN.peer, answer), 0.1)
        with pytest.raises(TryLater) as caught:
            await notice_pruned(context)
        assert caught.value.code == "LEDGER-PRUNED"
        assert f"{label(ANN.peer)} keeps entries from 16;" in caught.value.evidence[0]
        assert f"16:{digest('e16')}" in caught.value.evidence[0]
        assert "pruned" in context.alerts


async def test_warning_ends_when_a_peer_with_all_entries_appears(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context = r.context
    context.ledger.core.handle(PeerHeight(ANN.peer, 40), 0.0)
    context.ledger.core.handle(Received(ANN.peer, Pruned(40, 15, digest("e16"))), 0.1)
    nursery.start_soon(notice_pruned, context)
    await settled(lambda: "pruned" in context.alerts)
    context.ledger.core.handle(PeerHeight(BOB.peer, 40), 0.2)
    context.changes.notify_all()
    await settled(lambda: "pruned" not in context.alerts)


async def test_node_does_not_end_on_one_peers_claim_if_another_has_its_head(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """Ann claims to be far ahead, and to have pruned all entries that could prove this claim. Bob
    has the same entries as the node."""
    r = await new_rig(tmp_path, **ALONE)
    r.wait_for(pruned_s=0.0)
    context = r.context
    context.peers.table.note_heartbeat(BOB.peer, heartbeat(r.run.id), 0.0)
    context.ledger.core.handle(PeerHeight(ANN.peer, 10**9), 0.0)
    context.ledger.core.handle(Received(ANN.peer, Pruned(10**9, 10**9, digest("none"))), 0.1)
    nursery.start_soon(notice_pruned, context)
    await settled(lambda: "pruned" in context.alerts)
    await trio.testing.wait_all_tasks_blocked()
    assert context.alerts.warnings["pruned"].what.startswith("no connected peer keeps entry 1 of")
    context.ledger.core.handle(PeerHeight(BOB.peer, 1), 0.2)
    context.changes.notify_all()
    await settled(lambda: "pruned" not in context.alerts)


@pytest.mark.parametrize("who_says_it", [(ANN,), (ANN, CAI), (BOB,), (ANN, BOB)])
async def test_voter_ends_only_if_other_voters_that_form_a_quorum_say_so(
    tmp_path: Path, who_says_it: tuple[Identity, ...]
) -> None:
    """The node does not hear from any other peer, so it knows no peer at its own height. Cai is not
    a voter."""
    me = load_or_create(Home(tmp_path / "home").identity)
    async with rig(tmp_path, founders=(ANN.peer, BOB.peer, me.peer), **ALONE) as r:
        r.wait_for(pruned_s=0.05)
        context, ended, ends = r.context, False, who_says_it == (ANN, BOB)
        for peer in (each.peer for each in who_says_it):
            context.ledger.core.handle(PeerHeight(peer, 40), 0.0)
        for tick in range(2 * len(who_says_it)):
            context.ledger.core.handle(Tick(), 2.0 * tick)
        for peer in (each.peer for each in who_says_it):
            context.ledger.core.handle(Received(peer, Pruned(40, 15, digest("e16"))), 10.0)
        assert len(context.ledger.core.out_of_reach()) == len(who_says_it)
        with trio.move_on_after(60.0 if ends else 6 * r.context.timing.pruned_s):
            try:
                await notice_pruned(context)
            except TryLater:
                ended = True
        assert ended == ends
        (said,) = r.said("nobody-keeps")
        assert (said["height"], len(said["evidence"])) == (1, len(who_says_it))  # type: ignore[arg-type]
        for peer in (each.peer for each in who_says_it):
            told = f"{label(peer)} keeps entries from 16; its checkpoint is 16:{digest('e16')}"
            assert told in said["evidence"]  # type: ignore[operator]
            assert told in context.alerts.warnings["pruned"].what


async def test_node_that_does_not_vote_is_ended_by_the_claim_of_one_peer(tmp_path: Path) -> None:
    """The node is not a voter and has fallen behind the other peers, all of which have pruned the
    entries that it needs."""
    async with rig(tmp_path, founders=(BOB.peer, CAI.peer), **ALONE) as r:
        r.wait_for(pruned_s=0.05)
        context = r.context
        r.decide(opening(context.ledger.snapshot, Participant(BOB.peer, 16, 1)))
        context.ledger.core.handle(PeerHeight(ANN.peer, 40), 0.0)
        context.ledger.core.handle(Tick(), 2.0)
        context.ledger.core.handle(Received(ANN.peer, Pruned(40, 15, digest("e16"))), 10.0)
        with trio.fail_after(10), pytest.raises(TryLater, match="entry 2 of the ledger"):
            await notice_pruned(context)


async def test_claims_of_many_peers_are_journaled_once_naming_eight_peers(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **ALONE)
    context, count = r.context, pruning.NAMED_MAX + 1
    many = [somebody(number).peer for number in range(count)]
    for time in (0.0, 100.0):
        for peer in many:
            context.ledger.core.handle(PeerHeight(peer, 40), time)
        for tick in range(2 * count):
            context.ledger.core.handle(Tick(), time + 2.0 * tick)
        for peer in many:
            context.ledger.core.handle(Received(peer, Pruned(40, 15, digest("e16"))), time + 50.0)
        if not time:
            nursery.start_soon(notice_pruned, context)
        context.changes.notify_all()
        await settled(lambda: "pruned" in context.alerts)
        context.ledger.core.handle(PeerHeight(BOB.peer, 40), time + 60.0)
        context.changes.notify_all()
        await settled(lambda: "pruned" not in context.alerts)
        context.ledger.core.handle(Received(BOB.peer, Entries(0, ())), time + 60.0)
    (said,) = r.said("nobody-keeps")
    assert len(said["evidence"]) == pruning.NAMED_MAX  # type: ignore[arg-type]


# ── bases over the network ───────────────────────────────────────────────────────────────────────


async def test_node_sends_the_base_at_the_requested_checkpoint_only(tmp_path: Path) -> None:
    async with rig(tmp_path, **ALONE) as r:
        grown(r, r.context.identity, STEPS)
        serve_bases(r.context)
        answer = r.network.handlers[BASE_PROTOCOL]
        entries = [each.entry for each in r.context.ledger.core.chain]

        async def asked(height: int, digest_: str) -> bytes:
            return await answer(ANN.peer, pack({"height": height, "digest": digest_}))

        for height in (8, 16, 16):
            base = decode_base(await asked(height, entries[height - 1].digest))
            assert base.checkpoint == Checkpoint(height, entries[height - 1].digest)
        assert await asked(16, digest("another")) == b""
        assert await asked(10, entries[9].digest) == b""
        assert await asked(99, digest("none")) == b""
        for bad in (pack({"height": 0, "digest": digest("x")}), pack({}), b"noise"):
            with pytest.raises(RemoteProtocolError):
                await answer(ANN.peer, bad)


class Newcomer:
    """A newcomer's home, and a network with one peer, Ann, that gives a fixed answer."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.home = place, Home(folder / "newcomer")
        self.network = PaperNetwork(peers={ANN.peer})
        self.said: list[str] = []

    async def begins(self, named: Checkpoint | None, answer: bytes = b"") -> None:
        async def reply(peer: PeerId, payload: bytes) -> bytes:
            return answer

        self.network.answer = reply
        config = NodeConfig(self.home.root, trust_checkpoint=None if named is None else str(named))
        with Diary(self.home.journal) as diary:
            network, run = self.network, self.place.run
            await begin_at_checkpoint(
                network,  # type: ignore[arg-type]
                config,
                self.home,
                run,
                diary,
                self.said.append,
                rank=lambda _: 0,
                draw=random.Random(1),
            )


@pytest.fixture
def newcomer(place: Place, tmp_path: Path) -> Newcomer:
    return Newcomer(place, tmp_path)


async def test_newcomer_starts_at_the_checkpoint_that_its_user_trusts(newcomer: Newcomer) -> None:
    place = newcomer.place
    base = place.origin(16).base
    await newcomer.begins(base.checkpoint, encode_base(base))
    assert newcomer.said == [
        "ledger verified from height 16 (checkpoint trusted by you), not from genesis"
    ]
    ledger, log, _ = open_ledger(newcomer.home, place.run, BOB, 0.0)
    assert (ledger.state.height, pruning.origin_in(log)) == (16, Origin(base, base.checkpoint))

    await newcomer.begins(base.checkpoint)
    assert "no longer needed" in newcomer.said[-1]
    assert len(newcomer.network.requested) == 1

    with pytest.raises(ConfigError) as caught:
        await newcomer.begins(Checkpoint(16, digest("another")))
    assert caught.value.code == "LEDGER-CHECKPOINT"


async def test_without_a_trusted_checkpoint_no_base_is_requested(newcomer: Newcomer) -> None:
    await newcomer.begins(None, encode_base(newcomer.place.origin(16).base))
    assert newcomer.network.requested == []
    assert not newcomer.home.ledger.exists()


async def test_node_with_old_entries_can_start_at_a_later_checkpoint(newcomer: Newcomer) -> None:
    place = newcomer.place
    RecordLog(newcomer.home.ledger).append(map(entry_bytes, place.chain[:5]))
    base = place.origin(16).base
    await newcomer.begins(base.checkpoint, encode_base(base))
    assert open_ledger(newcomer.home, place.run, BOB, 0.0)[0].state.height == 16


@pytest.mark.parametrize("lie", ["nothing", "noise", "another base", "a base without any votes"])
async def test_base_that_differs_from_the_checkpoint_is_refused(
    newcomer: Newcomer, lie: str
) -> None:
    place = newcomer.place
    base = place.origin(16).base
    unsigned = replace(base.commit, certificate=replace(base.commit.certificate, votes=()))
    answers = {
        "nothing": b"",
        "noise": b"noise",
        "another base": encode_base(place.origin(8).base),
        "a base without any votes": encode_base(replace(base, commit=unsigned)),
    }
    with pytest.raises(NetworkUnreachable) as caught:
        await newcomer.begins(base.checkpoint, answers[lie])
    assert caught.value.code == "LEDGER-CHECKPOINT"
    assert len(caught.value.evidence) == 2
    assert pruning.origin_in(RecordLog(newcomer.home.ledger)) is None


async def test_newcomer_without_connections_gets_an_error_that_says_so(newcomer: Newcomer) -> None:
    newcomer.network.peers = set()
    with pytest.raises(NetworkUnreachable) as caught:
        await newcomer.begins(Checkpoint(16, digest("x")))
    assert "no peer is connected" in caught.value.evidence
