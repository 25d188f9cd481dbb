"""Sybils in an open run: one attacker runs many invented identities, which lie together.

Each runs the real ledger, joins, and takes part as far as its tricks allow. All Sybils of a world
share their tricks, their inventions and their keys. They cannot sign for others, but they can
replay old messages of founders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Any

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Entry,
    Roster,
    Skip,
    Value,
    Vote,
    promise_message,
    vote_message,
)
from p2ptrain.ledger.messages.effects import Effect, Send
from p2ptrain.ledger.messages.messages import Accept, Message, Outcome, Prepare, Promise, Propose
from p2ptrain.ledger.messages.peer_reports import Leaving, ReduceDone, ReduceFailed, UpdateHeld
from p2ptrain.simulation.disk import digest, signature_of
from p2ptrain.simulation.liars.liar import MISCHIEF, Liar
from p2ptrain.simulation.network import Payload, SimHeartbeat
from p2ptrain.simulation.node import SimNode


class Trick(Enum):
    VOTES = "votes and promises, as if it were a voter"
    ENTRIES = "rosters that make Sybils voters and drop founders, certified by Sybils"
    RESULTS = "the same invented update from all Sybils, which serve its bytes"
    BLAME = "failed reduces, for which it blames the founders"
    SILENCE = "reduces that it belongs to but does not join"
    NUMBERS = "a different number of tokens for each receiver"
    GOODBYES = "replays of old goodbyes of founders"


def crowd_of(random: Random, most: int) -> tuple[PeerId, ...]:
    """Return the Sybils of one world."""
    return tuple(PeerId(f"s{number}") for number in range(random.randint(1, most) if most else 0))


def tricks_of(random: Random) -> frozenset[Trick]:
    """Return a random set of tricks. If all were used, a clumsy trick could hide a clever one."""
    return frozenset(random.sample(list(Trick), random.randint(1, len(Trick))))


class Sybil(SimNode):
    """`crowd` are all Sybils of the world, and `tricks` are those that they use."""

    def __init__(
        self,
        *place: Any,
        random: Random,
        crowd: Sequence[PeerId],
        tricks: frozenset[Trick],
        **rest: Any,
    ) -> None:
        super().__init__(*place, **rest)
        self._random = random
        self._crowd = tuple(crowd)
        self._tricks = tricks
        self._goodbyes: dict[PeerId, Leaving] = {}

    # ── false votes ──────────────────────────────────────────────────────────────────────────────

    def receive(self, sender: PeerId, payload: Payload) -> None:
        if isinstance(payload, SimHeartbeat):
            self._remember(payload)
        elif Trick.VOTES in self._tricks:
            self._vote(sender, payload)
        super().receive(sender, payload)

    def _vote(self, sender: PeerId, message: Message) -> None:
        line = self.state.line
        if isinstance(message, Propose):
            place = line, message.height, message.round, message.entry.digest
            signed = signature_of(self.me, vote_message(*place))
            self._send(sender, Accept(Vote(*place, self.me, signed)))
        elif isinstance(message, Prepare):
            said = promise_message(line, message.height, message.round, None, None)
            signed = signature_of(self.me, said)
            self._send(sender, Promise(message.height, message.round, None, signed))

    def gossip(self) -> None:
        super().gossip()
        if Trick.NUMBERS in self._tricks:
            self._say_other_numbers()
        if self._random.random() >= MISCHIEF:
            return
        if Trick.ENTRIES in self._tricks:
            self._forge()
        if Trick.GOODBYES in self._tricks:
            self._say_goodbyes_again()

    def _forge(self) -> None:
        """Send an entry that would give the Sybils control of the run, certified by themselves."""
        state, round = self.state, self._random.randrange(4)
        stay = state.voters[: self._random.randint(1, len(state.voters))]
        value: Value = Skip(state.step)
        if state.roster is None:
            learners = tuple(peer for peer in state.learners if peer not in self._crowd)
            value = Roster(state.step, state.attempt, (*stay, *self._crowd), learners)
        entry = Entry(state.height + 1, state.head, value)
        said = vote_message(state.line, entry.height, round, entry.digest)
        votes = tuple(sorted((name, signature_of(name, said)) for name in self._crowd))
        certificate = Certificate(entry.height, round, entry.digest, votes)
        self._tell_all(Propose(round, entry, signature_of(self.me, said)))
        self._tell_all(Outcome(Certified(entry, certificate)))

    # ── replayed goodbyes ────────────────────────────────────────────────────────────────────────

    def _remember(self, beat: SimHeartbeat) -> None:
        for event in beat.events:
            if isinstance(event, Leaving) and event.peer in self._rules.founders:
                self._goodbyes[event.peer] = event

    def _say_goodbyes_again(self) -> None:
        """Replay old goodbyes of founders that are back and are members again. Real nodes reject
        such a heartbeat, since they have received a newer one from that founder. Here it arrives,
        because the rules of the ledger alone must protect the founder's vote."""
        down, state = self.ledger.reports.down, self.state
        for founder, event in self._goodbyes.items():
            if founder not in down and state.is_member(founder):
                self._tell_all(SimHeartbeat(founder, (event,)))

    # ── false reports ────────────────────────────────────────────────────────────────────────────

    def _take_part(self, entry: Digest, roster: Roster) -> None:
        if self._has_reported(roster):
            return
        now = (roster.step, roster.attempt)
        if Trick.RESULTS in self._tricks:
            invented = digest(f"invented by Sybils: {entry}")
            self.disk.updates.add(invented)
            self.handle(UpdateHeld(invented))
            self.report(ReduceDone(self.me, *now, invented))
        elif Trick.BLAME in self._tricks:
            self.report(ReduceFailed(self.me, *now, self._rules.founders))
        elif Trick.SILENCE not in self._tricks:
            super()._take_part(entry, roster)

    def _say_other_numbers(self) -> None:
        """Report a different number of tokens to each peer, so that founders do not agree on it."""
        ready = self._ready
        if ready is None or ready.tokens < 2:
            return
        for peer in self._world.others(self.me):
            other = replace(ready, tokens=self._random.randint(1, ready.tokens))
            self._send(peer, SimHeartbeat(self.me, (other,)))


class Ally(Liar):
    """A founder that lies for the Sybils. It proposes rosters that would give Sybils votes, take
    votes from founders, or make absent founders voters."""

    def __init__(self, *place: Any, crowd: Sequence[PeerId], **rest: Any) -> None:
        super().__init__(*place, **rest)
        self._crowd = tuple(crowd)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(peer, Propose(_, Entry(_, _, Roster() as roster) as entry) as proposal):
                chosen = self._roster_instead(entry.height, roster)
                if chosen is None:
                    return super()._carry_out(effect)
                self._send(peer, self._bent(proposal, replace(entry, value=chosen)))
            case _:
                super()._carry_out(effect)

    def _roster_instead(self, height: int, roster: Roster) -> Roster | None:
        """Return the roster that the ally proposes at `height` instead of `roster`; None if it
        proposes `roster`."""
        voters, state = roster.voters, self.state
        down = self.ledger.reports.down
        away = [peer for peer in self._rules.founders if peer not in voters]
        wish = Random(f"{self.me}/{height}").randrange(5 + 3 * bool(away))
        if wish == 0:
            crowd = tuple(peer for peer in self._crowd if peer in state.learners)
            voters = (*voters, *crowd[: len(voters)])
        elif wish == 1:
            voters = tuple(voter for voter in voters if voter not in down) or voters
        elif wish == 2:
            voters = voters[: max(1, len(voters) - 1)]
        elif wish > 4:
            voters = (*voters, *away[: len(voters)])
        learners = tuple(peer for peer in roster.learners if peer not in voters)
        members = {*voters, *learners}
        parts = tuple(part for part in roster.participants if part.peer in members)
        if voters == roster.voters or (roster.participants and not parts):
            return None
        return replace(roster, voters=voters, learners=learners, participants=parts)
