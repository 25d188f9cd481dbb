"""The commands of a transcript, and their effects on a group of ledgers.

A report reaches all ledgers on the reporter's side of a partition, or only the ledgers named after
`at`. Messages are delivered and time passes only when a command says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import SCHEDULES, Terms
from p2ptrain.ledger.messages.effects import Effect
from p2ptrain.ledger.messages.events import CloneFound, Event, PeerHeight, Received
from p2ptrain.ledger.messages.messages import ShowFinding
from p2ptrain.ledger.messages.peer_reports import (
    AllowedPeers,
    AuditOffer,
    Joining,
    KnownAmendments,
    Leaving,
    PeerDown,
    PeerUp,
    Ready,
    ReduceDone,
    ReduceFailed,
    SnapshotTaken,
)
from p2ptrain.testing.ledgers import LedgerGroup, Unicast, digest, peers, small_rules
from tests.ledger.transcript_player.auditing import finding_in, with_claim
from tests.ledger.transcript_player.fault import StoryFault
from tests.ledger.transcript_player.forging import forged, tampered
from tests.ledger.transcript_player.looking import disagreement
from tests.ledger.transcript_player.wording import Words

__all__ = ["STORY_WORDS", "Story", "StoryFault"]


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed command. In `down c at a b`, for example, `words` is ("c",), `at` is ("a", "b")."""

    name: str
    words: tuple[str, ...]
    at: tuple[PeerId, ...]
    options: dict[str, str]


def parsed(command: str) -> Line:
    name, *rest = shlex.split(command)
    at = rest.index("at") if "at" in rest else len(rest)
    words = [word for word in rest[:at] if "=" not in word or name == "expect"]
    options = dict(word.split("=", 1) for word in rest[:at] if "=" in word and name != "expect")
    return Line(name, tuple(words), peers(" ".join(rest[at + 1 :])), options)


@dataclass(slots=True)
class Story:
    """A group of ledgers, the sides of a partition, and the effects of the ledgers since the last
    command.
    """

    words: Words = field(default_factory=Words)
    sides: tuple[frozenset[PeerId], ...] = ()
    told_at: float = 0.0
    acts: list[tuple[float, PeerId, Effect]] = field(default_factory=list)
    _group: LedgerGroup | None = None

    def do(self, command: str) -> list[str]:
        """Execute one command, and return the ledgers' effects in words. Raises StoryFault."""
        if command.startswith("#"):
            return []
        line = parsed(command)
        if line.name not in STORY_WORDS:
            raise StoryFault(f"there is no command {line.name!r}")
        STORY_WORDS[line.name](self, line)
        return self._told()

    @property
    def group(self) -> LedgerGroup:
        if self._group is None:
            raise StoryFault("a story must begin with the command `members`")
        return self._group

    def reaches(self, one: PeerId, other: PeerId) -> bool:
        return not self.sides or any(one in side and other in side for side in self.sides)

    def _told(self) -> list[str]:
        lines: list[str] = []
        acts, self.acts = self.acts, []
        for at, me, effects in _runs(acts):
            if at != self.told_at:
                self.told_at = at
                lines.append(f"[after {at:g} s]")
            lines += self.words.effects(me, effects)
        return lines

    # ── members, crashes and partitions
    # ─────────────────────────────────────────────────────────────────────────────

    def members(self, line: Line) -> None:
        """members a b c [steps=5 attempts=3 grace=10 least=1 quorum=two-thirds branch=60] [at d]:
        start a run with these founders, and d as an outsider. With audits=yes, there are auditors
        """
        numbers = {key: int(line.options[key]) for key in _RULES if key in line.options}
        rules = small_rules(
            " ".join(line.words),
            quorum="two-thirds" if line.options.get("quorum") == "two-thirds" else "majority",
            branch_after_s=float(line.options["branch"]) if "branch" in line.options else None,
            **{_RULES[key]: number for key, number in numbers.items()},
        )
        if "audits" in line.options:
            rules = replace(rules, claims=True, audits=True)
        self._group = LedgerGroup(rules, (*rules.founders, *line.at), watch=self._note_act)

    def _note_act(self, me: PeerId, effect: Effect) -> None:
        self.acts.append((self.group.now, me, effect))

    def crash(self, line: Line) -> None:
        for name in line.words:
            self.group.crash(name)

    def prune(self, line: Line) -> None:
        """prune a 4: a forgets all entries before the fourth, which certifies a snapshot"""
        name, height = line.words
        self.group.prune(name, int(height))

    def restart(self, line: Line) -> None:
        for name in line.words:
            self.group.start(name)

    def wipe(self, line: Line) -> None:
        """wipe c: c loses its disk, and restarts with an empty one"""
        for name in line.words:
            self.group.crash(name)
            del self.group.disks[PeerId(name)]
            self.group.start(name)

    def namesake(self, line: Line) -> None:
        """namesake a: other peers tell a that another process uses its identity"""
        for name in line.words:
            self.group.send_events(name, CloneFound(f"other peers hear two processes of {name}"))

    def partition(self, line: Line) -> None:
        """partition a b | c d e"""
        sides = " ".join(line.words).split("|")
        self.sides = tuple(frozenset(peers(side)) for side in sides)

    def heal(self, line: Line) -> None:
        self.sides = ()

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _report(self, source: PeerId, event: Event, line: Line) -> None:
        hearers = line.at or tuple(self.group.ledgers)
        for name in hearers:
            if name in self.group.ledgers and self.reaches(source, name):
                self.group.send_events(name, event)

    def _report_each(self, line: Line, event: Callable[[PeerId], Event]) -> None:
        for peer in peers(" ".join(line.words)):
            self._report(peer, event(peer), line)

    def ready(self, line: Line) -> None:
        """ready a b [tokens=100 blocks=1]"""
        for peer in peers(" ".join(line.words)):
            state = self.group.ledgers[peer].state
            blocks = int(line.options.get("blocks", len(state.leases.get(peer, ()))))
            tokens = int(line.options.get("tokens", 100 * blocks))
            report = Ready(peer, state.step, tokens, blocks)
            claims = self.group.rules.claims
            self._report(peer, with_claim(report, state) if claims else report, line)

    def offer(self, line: Line) -> None:
        """offer a b [cores=1]: a and b offer capacity for audits; cores=0 withdraws it"""
        cores = int(line.options.get("cores", 1))
        self._report_each(line, lambda peer: AuditOffer(peer, cores))

    def finds(self, line: Line) -> None:
        """finds a c link [at b]: a signs that it found a fault in the newest claim of c"""
        (auditor, peer), what = peers(" ".join(line.words[:2])), line.words[2]
        found = finding_in(self.group.ledgers[auditor].state, auditor, peer, what)
        self._report(auditor, Received(auditor, ShowFinding(found)), line)

    def done(self, line: Line) -> None:
        """done a b u1: a and b report that they finished the reduce, and hold its result"""
        self.holds(line)
        self.says(line)

    def says(self, line: Line) -> None:
        """says a b u1: a and b report that they finished the reduce, even without holding its
        result
        """
        *names, update = line.words
        for peer in peers(" ".join(names)):
            step, attempt = self._reduce(peer)
            what = self.words.call(digest(update), update)
            self._report(peer, ReduceDone(peer, step, attempt, what), line)

    def holds(self, line: Line) -> None:
        """holds a b u1: a and b have the update on disk"""
        *names, update = line.words
        self.group.hold_update(self.words.call(digest(update), update), " ".join(names))

    def fail(self, line: Line) -> None:
        """fail a [suspects=b,c]"""
        suspects = peers(line.options.get("suspects", "").replace(",", " "))
        for peer in peers(" ".join(line.words)):
            self._report(peer, ReduceFailed(peer, *self._reduce(peer), suspects), line)

    def snapshot(self, line: Line) -> None:
        """snapshot a b 1 s1 [at c]: a and b report that they wrote this snapshot of θ and m before
        step 1
        """
        *names, step, text = line.words
        what = self.words.call(digest(text), text)
        for peer in peers(" ".join(names)):
            self._report(peer, SnapshotTaken(peer, int(step), what), line)

    def down(self, line: Line) -> None:
        for peer in peers(" ".join(line.words)):
            for name in line.at or tuple(self.group.ledgers):
                self.group.send_events(name, PeerDown(peer))

    def up(self, line: Line) -> None:
        self._report_each(line, PeerUp)

    def join(self, line: Line) -> None:
        self._report_each(line, Joining)

    def leave(self, line: Line) -> None:
        self._report_each(line, Leaving)

    def allow(self, line: Line) -> None:
        """allow a b c: from now on, the allowlist contains a, b and c"""
        for name in line.at or tuple(self.group.ledgers):
            self.group.send_events(name, AllowedPeers(frozenset(peers(" ".join(line.words)))))

    def amend(self, line: Line) -> None:
        """amend 1 step=3 [blocks=4] [at a b]: announce an amendment that is in force from outer
        step 3 on
        """
        number, step = int(line.words[0]), int(line.options["step"])
        blocks = int(line.options["blocks"]) if "blocks" in line.options else None
        terms = Terms(number, step, digest(f"amendment {number}"), blocks)
        for name in line.at or tuple(self.group.ledgers):
            known = self.group[name].reports.terms
            self.group.send_events(name, KnownAmendments(known | {terms}))

    def arrange(self, line: Line) -> None:
        """arrange direct c a b: proposers use this schedule and this order of peers"""
        schedule, *names = line.words
        by = next((each for each in SCHEDULES if each == schedule), None)
        if by is None:
            raise StoryFault(f"there is no schedule {schedule!r}")
        order = peers(" ".join(names))
        self.group.arrange = lambda those: (by, [peer for peer in order if peer in those])

    def heartbeat(self, line: Line) -> None:
        """heartbeat a: all ledgers learn the height and the line of a's chain"""
        self._report_each(line, self._heard)

    def _heard(self, peer: PeerId) -> PeerHeight:
        state = self.group[peer].state
        line = state.line if self.group.rules.branches else None
        return PeerHeight(peer, state.height, line)

    def _reduce(self, peer: PeerId) -> tuple[int, int]:
        """Return the step and the attempt of the current reduce, as `peer` knows it."""
        state = self.group.ledgers[peer].state
        if state.roster is None:
            raise StoryFault(f"{peer} does not know of a reduce")
        return state.step, state.roster.attempt

    # ── messages and time
    # ────────────────────────────────────────────────────────────────────────────

    def deliver(self, line: Line) -> None:
        """deliver: deliver all waiting messages, and all messages that result from them.

        deliver a->b propose: deliver only this message, and no messages that result from it
        """
        if not line.words:
            self.group.deliver(self._arrives)
            return
        for unicast in self._picked(line):
            if unicast.receiver in self.group.ledgers and self._arrives(unicast):
                self.group.send_events(unicast.receiver, Received(unicast.sender, unicast.message))

    def drop(self, line: Line) -> None:
        """drop: lose all waiting messages. drop a->b propose: lose only this message"""
        if line.words:
            self._picked(line)
        else:
            self.group.mail.clear()

    def tick(self, line: Line) -> None:
        """tick 2.0: let two seconds pass; timers fire and messages arrive"""
        self.group.wait(float(line.words[0]), self._arrives)

    def _arrives(self, unicast: Unicast) -> bool:
        return self.reaches(unicast.sender, unicast.receiver)

    def _picked(self, line: Line) -> list[Unicast]:
        """Remove the waiting messages that match the words, and return them."""
        chosen = [unicast for unicast in self.group.mail if _fits(unicast, line.words)]
        if not chosen:
            raise StoryFault(f"no waiting message matches {' '.join(line.words)}")
        self.group.mail = [unicast for unicast in self.group.mail if unicast not in chosen]
        return chosen

    # ── attacks and expectations
    # ─────────────────────────────────────────────────────────────────────

    def tamper(self, line: Line) -> None:
        """tamper a->c accept line: alter this part of the message before it arrives"""
        *which, part = line.words
        for unicast in self._picked(Line(line.name, tuple(which), (), {})):
            self.group.mail.append(tampered(unicast, part, self.group.rules.run))

    def forge(self, line: Line) -> None:
        """forge c->a skip by=a,b,c: c sends an outcome with a forged certificate

        forge c->a accusation by=d: c sends two genuine votes of d as evidence
        """
        (route, kind) = line.words
        sender, _, receiver = route.partition("->")
        by = peers(line.options.get("by", "").replace(",", " "))
        message = forged(self.group[receiver], kind, PeerId(sender), by)
        self.group.mail.append(Unicast(PeerId(sender), PeerId(receiver), message))

    def expect(self, line: Line) -> None:
        """expect a,b height 1: check a fact about a and b. `looking` lists the facts."""
        fault = disagreement(self.group, line.words, self.words)
        if fault:
            raise StoryFault(f"expected {' '.join(line.words)}, but {fault}")


_RULES = {
    "steps": "outer_steps",
    "attempts": "attempts_max",
    "grace": "grace_s",
    "least": "participants_min",
}


def _fits(unicast: Unicast, words: Sequence[str]) -> bool:
    """Return whether the message matches the words: `a->b`, `propose`, or both."""
    sender, arrow, receiver = words[0].partition("->")
    kinds = words[1:] if arrow else words
    if arrow and (unicast.sender != sender or receiver not in ("*", unicast.receiver)):
        return False
    return not kinds or type(unicast.message).__name__.lower() in kinds


def _runs(
    acts: Iterable[tuple[float, PeerId, Effect]],
) -> Iterable[tuple[float, PeerId, list[Effect]]]:
    """Group consecutive effects of the same peer at the same time."""
    together: list[tuple[float, PeerId, list[Effect]]] = []
    for at, me, effect in acts:
        if together and together[-1][:2] == (at, me):
            together[-1][2].append(effect)
        else:
            together.append((at, me, [effect]))
    return together


STORY_WORDS: dict[str, Callable[[Story, Line], None]] = {
    name: getattr(Story, name)
    for name in """
members crash prune restart wipe namesake partition heal ready done says holds fail snapshot down up
join leave allow amend arrange offer finds heartbeat deliver drop tick tamper forge expect
""".split()
}
