"""A few ledgers in one process, for tests that control every message.

`LedgerGroup` contains real ledgers, their disks, and the messages between them. The test decides
which messages are delivered, lost or delayed, which ledger crashes, and how much time passes.
`certify` makes certified entries without any protocol. The signatures are cheap, as in the
simulator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.quorum import proposer
from p2ptrain.ledger.chain.rules import QuorumPolicy, Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Commit,
    Entry,
    Schedule,
    Value,
    vote_message,
)
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.history.pruning import base_at
from p2ptrain.ledger.messages import effects
from p2ptrain.ledger.messages.effects import Effect
from p2ptrain.ledger.messages.events import Event, Received, Tick
from p2ptrain.ledger.messages.messages import (
    Accepted,
    EntriesRequest,
    Message,
    PromiseProof,
    Propose,
)
from p2ptrain.ledger.messages.peer_reports import Ready, ReduceDone, UpdateHeld
from p2ptrain.ledger.paxos.acceptor import Acceptor, restored_acceptors
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.policy.reduce_order import Arrange, in_given_order
from p2ptrain.simulation.disk import SimDisk, signature_of, signer, verify

DELIVERIES_MAX = 10_000
"""Maximum number of messages that one call delivers. More messages mean that the ledgers answer
each other for ever."""


def digest(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).hexdigest())


def peers(names: str) -> tuple[PeerId, ...]:
    """Return the peer ids in `names`, such as `peers("a b c")`."""
    return tuple(PeerId(name) for name in names.split())


def small_rules(
    founders: str = "a b c",
    *,
    outer_steps: int = 5,
    participants_min: int = 1,
    attempts_max: int = 3,
    grace_s: float = 10.0,
    quorum: QuorumPolicy = "majority",
    branch_after_s: float | None = None,
) -> Rules:
    """Return rules for tests. With `branch_after_s`, ledgers without a quorum branch after that
    time."""
    return Rules(
        run=RunId(digest("a run")),
        founders=peers(founders),
        outer_steps=outer_steps,
        blocks=16,
        blocks_per_lease=2,
        tokens_per_block=100,
        participants_min=participants_min,
        attempts_max=attempts_max,
        grace_s=grace_s,
        round_timeout_s=1.0,
        patience_s=0.5,
        quorum=quorum,
        quorum_loss="wait" if branch_after_s is None else "branch",
        branch_after_s=branch_after_s or 600.0,
    )


def certify(rules: Rules, state: LedgerState, value: Value, *, round: int = 0) -> Certified:
    """Return `value` as the next entry, with the votes of all voters."""
    entry = Entry(state.height + 1, state.head, value)
    message = vote_message(state.line, entry.height, round, entry.digest)
    votes = tuple(sorted((voter, signature_of(voter, message)) for voter in state.voters))
    return Certified(entry, Certificate(entry.height, round, entry.digest, votes))


def sealing(state: LedgerState, value: Value) -> Value:
    """Return `value`. If it is a commit that certifies a snapshot, add the digest of `state`."""
    if isinstance(value, Commit) and value.snapshot is not None:
        return replace(value, state=state.digest)
    return value


def chain_of(rules: Rules, values: Iterable[Value]) -> tuple[list[Certified], LedgerState]:
    """Return the certified chain of these values, and the state at its end. Commits that certify a
    snapshot get the right state digest."""
    chain: list[Certified] = []
    state = genesis(rules)
    for value in values:
        chain.append(certify(rules, state, sealing(state, value)))
        state = apply(rules, state, chain[-1].entry)
    return chain, state


def proposal_of(
    rules: Rules, round: int, entry: Entry, promises: tuple[PromiseProof, ...] = ()
) -> Propose:
    """Return the proposal of `entry` by the founder that proposes in `round`."""
    voter = proposer(rules.founders, entry.height, round)
    vote = vote_message(rules.run, entry.height, round, entry.digest)
    return Propose(round, entry, signature_of(voter, vote), promises)


def accepted(rules: Rules, round: int, entry: Entry) -> Accepted:
    """Return the part of a promise which says that its voter accepted `entry` in `round`."""
    return Accepted(round, entry, proposal_of(rules, round, entry).signature)


@dataclass(frozen=True, slots=True)
class Unicast:
    sender: PeerId
    receiver: PeerId
    message: Message


Postman = Callable[[Unicast], bool]
"""Returns whether the message arrives."""

Watch = Callable[[PeerId, Effect], None]
"""Called with each effect of each ledger, before the effect is carried out."""


def everything(unicast: Unicast) -> bool:
    return True


def ignore(name: PeerId, effect: Effect) -> None:
    """Do nothing with an effect: the `watch` of tests that do not look at effects."""


@dataclass(slots=True)
class LedgerGroup:
    """Ledgers by name. Nothing is delivered and no time passes unless the test says so."""

    rules: Rules
    names: tuple[PeerId, ...] = ()
    now: float = 0.0
    ledgers: dict[PeerId, Ledger] = field(default_factory=dict)
    disks: dict[PeerId, SimDisk] = field(default_factory=dict)
    mail: list[Unicast] = field(default_factory=list)
    notes: list[tuple[PeerId, str]] = field(default_factory=list)
    fetches: list[tuple[PeerId, effects.FetchUpdate]] = field(default_factory=list)
    arrange: Arrange = in_given_order
    watch: Watch = ignore

    def __post_init__(self) -> None:
        self.names = self.names or self.rules.founders
        for name in self.names:
            self.disks[name] = SimDisk()
            self.start(name)

    def start(self, name: PeerId | str) -> Ledger:
        """Start, or restart, a ledger from its disk."""
        me = PeerId(name)
        disk = self.disks.setdefault(me, SimDisk())
        kept = (disk.chain, disk.records, self.now, disk.base)
        self.ledgers[me] = Ledger(self.rules, me, signer(me), verify, *kept, self._arrange)
        return self.ledgers[me]

    def _arrange(self, peers: Sequence[PeerId]) -> tuple[Schedule, Sequence[PeerId]]:
        return self.arrange(peers)

    def prune(self, name: PeerId | str, height: int) -> None:
        """Delete the entries below `height` in memory and on disk. The entry at `height` must
        certify a snapshot."""
        ledger = self.ledgers[PeerId(name)]
        base = base_at(self.rules, ledger.kept, height)
        assert base is not None, "the entry is not a commit that certifies a snapshot"
        ledger.kept.prune(base)
        self.disks[ledger.me].prune(base)

    def crash(self, name: PeerId | str) -> None:
        """Remove the process and the messages that were on their way to it. Its disk stays."""
        del self.ledgers[PeerId(name)]
        self.mail = [unicast for unicast in self.mail if unicast.receiver != name]

    def __getitem__(self, name: str) -> Ledger:
        return self.ledgers[PeerId(name)]

    # ── events and mail ──────────────────────────────────────────────────────────────────────────

    def send_events(self, name: PeerId | str, *events: Event) -> list[Effect]:
        """Send these events to one ledger. Return the effects, which are also carried out."""
        me, caused = PeerId(name), list[Effect]()
        for event in events:
            caused += self.ledgers[me].handle(event, self.now)
        for effect in caused:
            self._carry_out(me, effect)
        return caused

    def send_to_all(self, *events: Event) -> None:
        for name in list(self.ledgers):
            self.send_events(name, *events)

    def ready(self, names: str) -> None:
        """Report to all ledgers that these peers have trained on their whole lease."""
        for peer in peers(names):
            state = self.ledgers[peer].state
            blocks = len(state.leases[peer])
            self.send_to_all(Ready(peer, state.step, 100 * blocks, blocks))

    def made(self, update: Digest, names: str) -> None:
        """Report to all ledgers that these peers have finished the current reduce with `update`."""
        for peer in peers(names):
            state = self.ledgers[peer].state
            assert state.roster is not None
            self.send_to_all(ReduceDone(peer, state.step, state.roster.attempt, update))

    def hold_update(self, update: Digest, names: str) -> None:
        for peer in peers(names):
            self.disks[peer].updates.add(update)
            self.send_events(peer, UpdateHeld(update))

    def deliver(self, arrives: Postman = everything) -> None:
        """Deliver all messages in order, and then the messages that these cause. If `arrives`
        returns False for a message, the message is lost."""
        for _ in range(DELIVERIES_MAX):
            if not self.mail:
                return
            unicast = self.mail.pop(0)
            if arrives(unicast) and unicast.receiver in self.ledgers:
                self.send_events(unicast.receiver, Received(unicast.sender, unicast.message))
        raise AssertionError("the ledgers answer each other without end")

    def wait(self, seconds: float, arrives: Postman = everything) -> None:
        """Let time pass: timers fire when they are due, and messages are delivered."""
        until = self.now + seconds
        for _ in range(DELIVERIES_MAX):
            self.deliver(arrives)
            due = [(at, n) for n in self.ledgers if (at := self.ledgers[n].next_deadline())]
            if not due or min(due)[0] > until:
                self.now = until
                return
            self.now = max(self.now, min(due)[0])
            self.send_events(min(due)[1], Tick())
        raise AssertionError("a timer fires again and again without end")

    # ── what a test looks at ─────────────────────────────────────────────────────────────────────

    def electorate(self, name: PeerId | str) -> Electorate:
        """Return the electorate (the voters who decide the next entry) as `name` knows it. It signs
        as `name`, so a test can make `name` say anything."""
        ledger = self.ledgers[PeerId(name)]
        return Electorate.after(ledger.state, self.rules, ledger.me, signer(ledger.me), verify)

    def acceptor(self, name: PeerId | str) -> Acceptor:
        """Return the promises and votes of `name` for its next entry, as they are on its disk."""
        me = PeerId(name)
        state = self.ledgers[me].state
        place = state.line, state.height + 1
        kept = restored_acceptors(self.disks[me].records, decided=state.decided)
        return kept.get(place, Acceptor(*place))

    def round(self, name: PeerId | str) -> int:
        """Return the round in which `name` tries to decide its next entry."""
        return self.ledgers[PeerId(name)].status(self.now).round

    def heights(self) -> dict[str, int]:
        return {name: ledger.state.height for name, ledger in self.ledgers.items()}

    def _carry_out(self, me: PeerId, effect: Effect) -> None:
        self.watch(me, effect)
        match effect:
            case effects.Persist(record):
                self.disks[me].append_record(record)
            case effects.Decided(certified):
                self.disks[me].chain.append(certified)
            case effects.Rejoin(height, chain):
                self.disks[me].chain[height:] = chain
                self.start(me)
            case effects.Send(peer, message):
                self.mail.append(Unicast(me, peer, message))
            case effects.Announce(message):
                others = [name for name in self.names if name != me]
                self.mail.extend(Unicast(me, other, message) for other in others)
            case effects.AskEntries(peer, from_height):
                self.mail.append(Unicast(me, peer, EntriesRequest(from_height)))
            case effects.FetchUpdate():
                self.fetches.append((me, effect))
            case effects.Note(text):
                self.notes.append((me, text))
