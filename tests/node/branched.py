"""A home (the folder with a node's files) whose node has left the run's chain for its own branch,
and the entries of both chains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import open_ledger, rules_of
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Branch,
    Certificate,
    Certified,
    Commit,
    Entry,
    Heal,
    Participant,
    Roster,
    Value,
    branch_message,
    vote_message,
)
from p2ptrain.ledger.messages.effects import Rejoin
from p2ptrain.ledger.paxos.acceptor import Acceptor
from p2ptrain.run import Run
from p2ptrain.store import Disk, Head, RecordLog, Store
from p2ptrain.testing.ledgers import digest, sealing
from p2ptrain.testing.published import policy, publish
from tests.node.rig import ANN, BOB


def signed(state: LedgerState, value: Value, *voters: Identity) -> Certified:
    """Return a certified entry with `value` that `voters` signed, in the first round that one of
    them leads."""
    entry = Entry(state.height + 1, state.head, value)
    names = {voter.peer for voter in voters}
    count = len(state.voters)
    round = 0
    if not isinstance(value, Branch):
        leads = (r for r in range(count) if state.voters[(entry.height + r) % count] in names)
        round = next(leads)
    message = vote_message(state.line, entry.height, round, entry.digest)
    if isinstance(value, Branch):
        message = branch_message(state.line, entry)
    votes = tuple(sorted((voter.peer, voter.sign(message)) for voter in voters))
    return Certified(entry, Certificate(entry.height, round, entry.digest, votes))


class Branched:
    """A home whose node has begun a branch without the other voters, after the first outer step.
    `own` is the chain of the branch, and `theirs` the entries that the others decided instead."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.me = load_or_create(self.home.identity)
        founders = [each.peer for each in (self.me, ANN, BOB)]
        rules = policy(participants_min=1, quorum_loss="branch", branch_after_s=5.0)
        self.run: Run = publish(self.home, founders=founders, steps=9, rules=rules)
        self.rules = rules_of(self.run)
        self.shared, parted = self.step(genesis(self.rules), "u0", self.me, ANN)
        alone = signed(parted, Branch(1, (self.me.peer,)), self.me)
        branched = apply(self.rules, parted, alone.entry)
        own, self.own_end = self.step(branched, "own", self.me)
        self.own = [*self.shared, alone, *own]
        self.theirs, self.end = self.step(parted, "theirs", ANN, BOB)
        healing = Heal(2, self.theirs[0].entry.height, self.theirs[0].entry.digest)
        self.heal = signed(self.own_end, healing, self.me)
        self.rejoin = Rejoin(parted.height, tuple(self.theirs))

    def step(
        self, state: LedgerState, update: str, *voters: Identity
    ) -> tuple[list[Certified], LedgerState]:
        """Return the two entries of an outer step in which the first voter trained a block, and the
        state after the outer step."""
        trained = (Participant(voters[0].peer, self.rules.tokens_per_block, 1),)
        opening = Roster(state.step, state.attempt, state.voters, (), trained)
        chain: list[Certified] = []
        for value in (opening, Commit(state.step, state.attempt, digest(update))):
            chain.append(signed(state, sealing(state, value), *voters))
            state = apply(self.rules, state, chain[-1].entry)
        return chain, state

    def write(self, head: Certified, disk: Disk | None = None) -> None:
        """Write to the home: the chain of the branch, a promise that the node gave in a round of
        voting on the branch, and a snapshot of the state after `head`."""
        RecordLog(self.home.ledger, disk=disk).append(map(entry_bytes, self.own))
        RecordLog(self.home.votes, disk=disk).append(self.votes)
        step = head.entry.value.step + 1
        with Store(self.home.store, disk=disk, chunk_bytes=4096) as store:
            snapshot = store.put_blob("snapshot", [b"theta"], {})
            store.put_head(
                Head(self.run.id, head.entry.height, head.entry.digest, step, snapshot, step)
            )

    @property
    def votes(self) -> Sequence[bytes]:
        acceptor = Acceptor(self.own_end.line, self.own_end.height + 1)
        acceptor.promise(3)
        return acceptor.records()

    def head(self, disk: Disk | None = None) -> Head:
        with Store(self.home.store, disk=disk, chunk_bytes=4096) as store:
            head = store.head()
        assert head is not None
        return head

    def state(self, disk: Disk | None = None) -> LedgerState:
        return open_ledger(self.home, self.run, self.me, 0.0, disk)[0].state
