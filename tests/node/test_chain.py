"""The ledger on disk: a log of decided entries, and a log of this node's votes and promises. Both
are checked when they are opened."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import open_ledger, rules_of
from p2ptrain.errors import StoreError
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, Entry, Participant, Roster
from p2ptrain.ledger.paxos.acceptor import Acceptor
from p2ptrain.node.consensus.ledger_task import VOTE_RECORDS_MAX, shorten_votes
from p2ptrain.run import Run
from p2ptrain.store import RecordLog
from p2ptrain.store.disk import LocalDisk
from p2ptrain.testing.published import policy, publish
from tests.node.rig import ANN, rig, signed


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def run(home: Home) -> Run:
    return publish(home, steps=9, rules=policy(participants_min=1))


@pytest.fixture
def me(home: Home, run: Run) -> Identity:
    return load_or_create(home.identity)


def test_rules_are_taken_from_the_manifest(run: Run) -> None:
    rules, manifest = rules_of(run), run.manifest
    assert rules.run == run.id
    assert rules.founders == manifest.founders
    assert (rules.outer_steps, rules.blocks_per_lease) == (9, manifest.inner.steps)
    assert rules.tokens_per_block == manifest.data.block_tokens
    assert (rules.grace_s, rules.attempts_max) == (policy().grace_s, policy().attempts_max)


def first_entries(home: Home, run: Run, me: Identity) -> None:
    """Append a roster and the commit of its reduce to the chain on disk."""
    ledger, log, _ = open_ledger(home, run, me, 0.0)
    state = ledger.state
    roster = Roster(0, 0, state.voters, (), (Participant(me.peer, 16, 1),))
    first = signed(run.id, state, roster, me)
    log.append([entry_bytes(first)])
    reopened, log, _ = open_ledger(home, run, me, 0.0)
    log.append([entry_bytes(signed(run.id, reopened.state, Commit(0, 0, Digest("d" * 64)), me))])


def test_chain_is_read_back_unchanged(home: Home, run: Run, me: Identity) -> None:
    first_entries(home, run, me)
    ledger, _, _ = open_ledger(home, run, me, 0.0)
    assert (ledger.state.height, ledger.state.step) == (2, 1)
    assert ledger.state.tokens == 16


def broken(error: StoreError, path: Path) -> bool:
    """Return whether the error reports a broken ledger, and its advice names the file `path`."""
    return error.code == "LEDGER-BROKEN" and str(path) in error.do


@pytest.mark.parametrize("record", [b"", b"noise", b"{}", b'{"entry":1,"certificate":2}'])
def test_record_that_is_not_an_entry_is_reported_as_damage(
    home: Home, run: Run, me: Identity, record: bytes
) -> None:
    RecordLog(home.ledger).append([record])
    with pytest.raises(StoreError) as caught:
        open_ledger(home, run, me, 0.0)
    assert broken(caught.value, home.ledger)


def test_entry_that_a_stranger_signed_is_refused(home: Home, run: Run, me: Identity) -> None:
    ledger, log, _ = open_ledger(home, run, me, 0.0)
    roster = Roster(0, 0, ledger.state.voters, (), (Participant(me.peer, 16, 1),))
    log.append([entry_bytes(signed(run.id, ledger.state, roster, ANN))])
    with pytest.raises(StoreError) as caught:
        open_ledger(home, run, me, 0.0)
    assert broken(caught.value, home.ledger)


def test_chain_of_a_different_run_is_refused(
    home: Home, run: Run, me: Identity, tmp_path: Path
) -> None:
    first_entries(home, run, me)
    other = Home(tmp_path / "other")
    other_run = publish(other, steps=8, rules=policy(participants_min=1))
    home.ledger.rename(other.ledger)
    with pytest.raises(StoreError) as caught:
        open_ledger(other, other_run, load_or_create(other.identity), 0.0)
    assert broken(caught.value, other.ledger)


def promised(me: Identity, run: Run, rounds: int) -> tuple[list[bytes], Acceptor]:
    """Return the records of a voter that has made a promise in each round below `rounds`, and has
    accepted an entry in round 3. Also return the state of this voter."""
    acceptor = Acceptor(run.id, 1)
    records = [acceptor.promise(round_) for round_ in range(1, 4)]
    roster = Roster(0, 0, (me.peer,), (ANN.peer,))
    records.append(acceptor.accept(3, Entry(1, Digest(run.id), roster), b"signed"))
    records += [acceptor.promise(round_) for round_ in range(4, rounds)]
    return records, acceptor


def test_log_of_votes_is_shortened_to_those_that_still_count(
    home: Home, run: Run, me: Identity
) -> None:
    records, acceptor = promised(me, run, 500)
    RecordLog(home.votes).append(records)
    for _ in range(3):
        ledger, _, votes = open_ledger(home, run, me, 0.0)
        assert ledger.records() == acceptor.records() == list(votes)
        assert len(acceptor.records()) == 2


def test_votes_of_the_last_decided_height_are_kept(home: Home, run: Run, me: Identity) -> None:
    """The entries of both heights are decided, so the votes for them no longer matter. Those of the
    last height are kept: if the entries were lost, nothing else would show that this node has voted
    at that height."""
    records, _ = promised(me, run, 10)
    later = Acceptor(run.id, 2)
    RecordLog(home.votes).append([*records, later.promise(1)])
    first_entries(home, run, me)
    ledger, _, votes = open_ledger(home, run, me, 0.0)
    assert ledger.state.height == 2
    assert list(votes) == later.records() == ledger.records()


class Full(LocalDisk):
    """A full disk. No file can be created, but existing files can grow within their last block."""

    def __init__(self) -> None:
        self.full = True

    def write(self, path: Path, data: memoryview) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, data)


def test_log_of_votes_is_used_as_it_is_if_a_full_disk_prevents_shortening(
    home: Home, run: Run, me: Identity
) -> None:
    records, acceptor = promised(me, run, 50)
    RecordLog(home.ledger)
    RecordLog(home.votes).append(records)
    ledger, _, votes = open_ledger(home, run, me, 0.0, Full())
    assert ledger.records() == acceptor.records()
    assert list(votes) == records
    votes.append([acceptor.promise(50)])
    ledger, _, votes = open_ledger(home, run, me, 0.0)
    assert list(votes) == ledger.records() == acceptor.records()


def test_start_fails_if_the_shortened_log_may_not_be_stored(
    home: Home, run: Run, me: Identity
) -> None:
    class Unsure(LocalDisk):
        """A disk that cannot sync a directory after a file in it was renamed."""

        renamed = False

        def replace(self, source: Path, target: Path) -> None:
            super().replace(source, target)
            self.renamed = True

        def sync_directory(self, path: Path) -> None:
            if self.renamed:
                raise OSError(errno.ENOSPC, "No space left on device")

    records, acceptor = promised(me, run, 50)
    RecordLog(home.ledger)
    RecordLog(home.votes).append(records)
    with pytest.raises(StoreError) as caught:
        open_ledger(home, run, me, 0.0, Unsure())
    assert caught.value.code == "DISK-LOW"
    ledger, _, _ = open_ledger(home, run, me, 0.0)
    assert ledger.records() == acceptor.records()


async def test_node_starts_on_a_full_disk_and_shortens_its_votes_later(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        records, acceptor = promised(r.context.identity, r.run, VOTE_RECORDS_MAX + 9)
        r.context.ledger.votes.append(records)
    disk = Full()
    async with rig(tmp_path, run=r.run, disk=disk) as again:
        context = again.context
        assert context.ledger.vote_records == len(records)
        await shorten_votes(context)
        assert context.ledger.vote_records == len(records)
        disk.full = False
        await shorten_votes(context)
        assert (context.ledger.vote_records, list(context.ledger.votes)) == (2, acceptor.records())


def test_damaged_log_of_votes_is_reported_with_advice(home: Home, run: Run, me: Identity) -> None:
    RecordLog(home.votes).append([b"not a vote"])
    with pytest.raises(StoreError) as caught:
        open_ledger(home, run, me, 0.0)
    assert caught.value.code == "LEDGER-BROKEN"
    assert caught.value.do
