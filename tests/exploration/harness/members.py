"""The reactions of members to events. The reaction of each member to each event is computed once.

Members and messages are identified by small numbers. A set of messages is represented by an integer
with one bit for each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.accountability.statement_log import StatementLog
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.verify import replay
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages.effects import (
    Accuse,
    Announce,
    Decided,
    Effect,
    FetchUpdate,
    Persist,
    Send,
    VoteWithheld,
    VotingStopped,
)
from p2ptrain.ledger.messages.events import Event, Received, Tick
from p2ptrain.ledger.messages.messages import Entries, Message, Outcome, Prepare, Propose
from p2ptrain.ledger.messages.peer_reports import UpdateHeld
from p2ptrain.ledger.paxos.acceptor import restored_acceptors
from p2ptrain.simulation.disk import SimDisk, signer, verify
from tests.exploration.harness.copying import LEFT_OUT, Fresh, copy_of, key_of
from tests.exploration.harness.statements import contrary, statement_of

PATIENCE_S = 16.0
"""Longest duration of a round in seconds, if the first timeout is 1 s
(`paxos.timers.ROUND_STRETCH_MAX`).
"""


@dataclass(frozen=True, slots=True)
class Unicast:
    sender: PeerId
    receiver: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Member:
    """A running member, its disk, and its own current time in seconds."""

    ledger: Ledger
    disk: SimDisk
    now: float

    @property
    def chain(self) -> tuple[Digest, ...]:
        return tuple(certified.entry.digest for certified in self.disk.chain)


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one event at a member: the member afterwards, and the messages it sent."""

    label: str
    member: int
    said: int
    fault: str = ""


@dataclass(slots=True)
class Members:
    """All states of members and all messages found so far.

    `reports` are the events that each member receives when it starts. `witnesses` says whether
    members remember the signatures of others. If `witnesses` is false, each member forgets those
    signatures before each step, so states that differ only in remembered signatures are equal and
    there are fewer states to explore.
    """

    rules: Rules
    reports: dict[PeerId, Sequence[Event]]
    witnesses: bool = False
    members: list[Member] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    chains: list[tuple[Digest, ...]] = field(default_factory=list)
    unicasts: list[Unicast] = field(default_factory=list)
    mail_to: dict[PeerId, int] = field(default_factory=dict)
    contraries: list[int] = field(default_factory=list)
    _at_height: dict[int, int] = field(default_factory=dict)
    _mute: dict[tuple[PeerId, int], int] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)
    _unicast_numbers: dict[object, int] = field(default_factory=dict)
    _steps: dict[tuple[int, int], Step] = field(default_factory=dict)
    _on_mail: dict[tuple[int, int], tuple[Step, ...]] = field(default_factory=dict)
    _on_timeout: dict[int, Step | None] = field(default_factory=dict)
    _on_crash: dict[tuple[int, int], tuple[Step, ...]] = field(default_factory=dict)

    # ── what can happen to a member ──────────────────────────────────────────────────────────────

    def start(self, name: PeerId) -> Step:
        """Start a member for the first time, with an empty disk."""
        return self._started("start", name, SimDisk(), 0.0, 0)

    def on_mail(self, number: int, mail: int) -> tuple[Step, ...]:
        """Return the steps caused by these messages, without steps that change nothing."""
        place = (number, mail)
        if place not in self._on_mail:
            steps = [self._on_unicast(number, unicast) for unicast in _bits(mail)]
            moving = (it for it in steps if it.member != number or it.said & ~mail or it.fault)
            self._on_mail[place] = tuple(dict.fromkeys(moving))
        return self._on_mail[place]

    def on_timeout(self, number: int) -> Step | None:
        """Return the step in which the member's round times out, or None if that changes
        nothing.
        """
        if number not in self._on_timeout:
            self._on_timeout[number] = self._timeout(number)
        return self._on_timeout[number]

    def on_crash(self, number: int, mail: int) -> tuple[Step, ...]:
        """Return the steps of a crash and restart, between two events or between two writes."""
        place = (number, mail)
        if place not in self._on_crash:
            member = self.members[number]
            steps = [self._started("restart", member.ledger.me, member.disk, member.now, 0)]
            for unicast in _bits(mail):
                steps += self._torn(number, unicast)
            self._on_crash[place] = tuple(dict.fromkeys(steps))
        return self._on_crash[place]

    # ── steps, computed by running the ledger─────────────────────────────────────────────────────

    def _on_unicast(self, number: int, unicast: int) -> Step:
        place = (number, unicast)
        if place not in self._steps:
            ledger, effects = self._heard(number, unicast)
            member = self.members[number]
            label = _label(self.unicasts[unicast])
            self._steps[place] = self._after(label, member, ledger, effects, member.now)
        return self._steps[place]

    def _heard(self, number: int, unicast: int) -> tuple[Ledger, list[Effect]]:
        member, it = self.members[number], self.unicasts[unicast]
        ledger = self._copied(member.ledger)
        return ledger, ledger.handle(Received(it.sender, it.message), member.now)

    def _copied(self, ledger: Ledger) -> Ledger:
        fresh: Fresh = (
            {} if self.witnesses else {StatementLog: lambda: StatementLog(self.rules.run, verify)}
        )
        twin: Ledger = copy_of(ledger, fresh)
        return twin

    def _timeout(self, number: int) -> Step | None:
        member = self.members[number]
        ledger = self._copied(member.ledger)
        before, until = ledger.status(member.now), member.now + PATIENCE_S
        effects: list[Effect] = []
        now = member.now
        while (due := ledger.next_deadline()) is not None and due <= until:
            now = max(now, due)
            effects += ledger.handle(Tick(), now)
            after = ledger.status(now)
            if (after.height, after.round) != (before.height, before.round):
                break
        step = self._after(f"{ledger.me} times out", member, ledger, effects, now)
        return None if step.member == number and not step.said else step

    def _torn(self, number: int, unicast: int) -> Iterator[Step]:
        """Yield crashes of the member while it carries out the effects of this message.

        Yield one crash before each write, unless that write is the first effect.
        """
        ledger, effects = self._heard(number, unicast)
        member, said, begun = self.members[number], 0, False
        disk = _copied(member.disk)
        for effect in effects:
            if begun and isinstance(effect, Persist | Decided):
                label = f"{_label(self.unicasts[unicast])}, torn; restart"
                yield self._started(label, ledger.me, disk, member.now, said)
            begun = begun or isinstance(effect, Persist | Decided | Send | Announce)
            _write(disk, effect)
            said |= self._said(ledger.me, effect)

    def _started(self, label: str, me: PeerId, disk: SimDisk, now: float, said: int) -> Step:
        fault = _replay_fault(self.rules, disk)
        ledger = Ledger(self.rules, me, signer(me), verify, disk.chain, disk.records, now)
        effects = [it for event in self.reports[me] for it in ledger.handle(event, now)]
        step = self._after(f"{me}: {label}", Member(ledger, disk, now), ledger, effects, now)
        return Step(step.label, step.member, step.said | said, step.fault or fault)

    def _after(
        self, label: str, before: Member, ledger: Ledger, effects: Sequence[Effect], now: float
    ) -> Step:
        disk, said = _copied(before.disk), 0
        for effect in _with_fetched(ledger, effects, now):
            _write(disk, effect)
            said |= self._said(ledger.me, effect)
        fault = _accusation(ledger.me, effects)
        if len(disk.chain) != len(before.disk.chain):
            fault = fault or _replay_fault(self.rules, disk)
        return Step(label, self._number(Member(ledger, disk, now)), said, fault)

    # ── numbers ──────────────────────────────────────────────────────────────────────────────────

    def _number(self, member: Member) -> int:
        number = self._numbers.setdefault(self._key(member), len(self.members))
        if number == len(self.members):
            self.members.append(member)
            self.heights.append(len(member.disk.chain))
            self.chains.append(member.chain)
        return number

    def _key(self, member: Member) -> object:
        left_out = LEFT_OUT - {"_statement_log"} if self.witnesses else LEFT_OUT
        kept = restored_acceptors(member.disk.records, decided={self.rules.run: len(member.chain)})
        now, ledger = member.now, member.ledger
        return (ledger.me, key_of(ledger, now, left_out), key_of(kept, now), member.chain)

    def _said(self, me: PeerId, effect: Effect) -> int:
        match effect:
            case Send(_, Entries()):
                return 0
            case Send(peer, message):
                return self._unicast(Unicast(me, peer, message))
            case Announce(Outcome() | Prepare() | Propose() as message):
                others = (peer for peer in self.rules.founders if peer != me)
                return sum(self._unicast(Unicast(me, peer, message)) for peer in others)
            case _:
                return 0

    def _unicast(self, unicast: Unicast) -> int:
        """Return the bit of a message. If it is new, compare it with all others of its sender."""
        sender = None if isinstance(unicast.message, Outcome) else unicast.sender
        key = (sender, unicast.receiver, key_of(unicast.message, 0.0))
        number = self._unicast_numbers.setdefault(key, len(self.unicasts))
        if number < len(self.unicasts):
            return 1 << number
        mine, against = statement_of(unicast.message), 0
        for other, known in enumerate(self.unicasts):
            if known.sender == unicast.sender and contrary(statement_of(known.message), mine):
                against |= 1 << other
                self.contraries[other] |= 1 << number
        self.unicasts.append(unicast)
        self.contraries.append(against)
        self.mail_to[unicast.receiver] = self.mail_to.get(unicast.receiver, 0) | 1 << number
        height = _height(unicast.message)
        self._at_height[height] = self._at_height.get(height, 0) | 1 << number
        if mine is None:
            place = (unicast.receiver, height)
            self._mute[place] = self._mute.get(place, 0) | 1 << number
        return 1 << number

    def alive(self, said: int, heights: tuple[int, int, int]) -> int:
        """Return the messages that still matter, given the heights of the members' chains.

        A message about a height that its receiver has passed no longer affects the receiver. If the
        message is a signed statement, it is kept until all members have passed that height.
        """
        for height in range(1, max(heights) + 1):
            if height <= min(heights):
                said &= ~self._at_height.get(height, 0)
                continue
            for name, reached in zip(self.rules.founders, heights, strict=True):
                if reached >= height:
                    said &= ~self._mute.get((name, height), 0)
        return said


def _copied(disk: SimDisk) -> SimDisk:
    return SimDisk(list(disk.chain), list(disk.records), disk.updates)


def _write(disk: SimDisk, effect: Effect) -> None:
    if isinstance(effect, Persist):
        disk.append_record(effect.record)
    elif isinstance(effect, Decided):
        disk.chain.append(effect.certified)


def _with_fetched(ledger: Ledger, effects: Sequence[Effect], now: float) -> list[Effect]:
    """Give the ledger each update that it requests, and return all effects.

    In this exploration every member can always fetch the bytes.
    """
    found = list(effects)
    for effect in found:  # The loop also visits the effects that it appends.
        if isinstance(effect, FetchUpdate):
            found += ledger.handle(UpdateHeld(effect.update), now)
    return found


def _accusation(me: PeerId, effects: Sequence[Effect]) -> str:
    """Return a fault if an effect accuses a peer. All members are honest, so every accusation is
    wrong.
    """
    for effect in effects:
        if isinstance(effect, Accuse):
            return f"{me} accuses {effect.evidence.peer}"
        if isinstance(effect, VotingStopped | VoteWithheld):
            return f"{me} thinks that another process is using its identity"
    return ""


def _replay_fault(rules: Rules, disk: SimDisk) -> str:
    """Return the reason why the chain on this disk does not verify, or an empty string."""
    try:
        replay(rules, disk.chain, verify)
    except RemoteProtocolError as exc:
        return exc.what
    return ""


def _height(message: Message) -> int:
    """Return the height that a message is about. Every message that a ledger sends unasked has a
    height.
    """
    height = getattr(message, "height", None)
    assert isinstance(height, int)
    return height


def _label(unicast: Unicast) -> str:
    return f"{unicast.sender} -> {unicast.receiver}: {type(unicast.message).__name__}"


def _bits(mail: int) -> Iterator[int]:
    while mail:
        lowest = mail & -mail
        yield lowest.bit_length() - 1
        mail ^= lowest
