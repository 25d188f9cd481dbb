"""A network that loses, delays, duplicates and reorders messages and can be cut. All its choices
come from one random generator.

It carries the ledger's messages, and heartbeats, which a node gossips every two seconds and at once
after a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.messages.messages import Message
from p2ptrain.simulation.clock import Clock
from p2ptrain.simulation.profiles import Profile


@dataclass(frozen=True, slots=True)
class SimHeartbeat:
    """`events` are passed to the receiver's ledger. Some heartbeats repeat all reports of the
    sender; most of them contain only new reports."""

    peer: PeerId
    events: tuple[Event, ...]


Payload = Message | SimHeartbeat
Deliver = Callable[[PeerId, PeerId, Payload], None]


class SimNetwork:
    """`send` calls `deliver(sender, receiver, payload)` later once or twice, or not at all."""

    def __init__(self, clock: Clock, random: Random, profile: Profile, deliver: Deliver) -> None:
        self.messages = 0
        self.faulty = True
        self._clock = clock
        self._random = random
        self._profile = profile
        self._deliver = deliver
        self._cuts: list[tuple[frozenset[PeerId], frozenset[PeerId]]] = []

    def send(self, sender: PeerId, receiver: PeerId, payload: Payload) -> None:
        self.messages += 1
        if self._cuts and not self.connects(sender, receiver):
            return
        profile, chance = self._profile, self._random.random
        if self.faulty and profile.loss and chance() < profile.loss:
            return
        arrive = partial(self._arrive, sender, receiver, payload)
        self._clock.after(self._delay_s(), arrive)
        if self.faulty and profile.duplication and chance() < profile.duplication:
            self._clock.after(self._delay_s(), arrive)

    def connects(self, sender: PeerId, receiver: PeerId) -> bool:
        """Return whether a message can go from `sender` to `receiver` now."""
        return not any(sender in here and receiver in there for here, there in self._cuts)

    def joins(self, one: PeerId, other: PeerId) -> bool:
        return self.connects(one, other) and self.connects(other, one)

    def cut(self, here: frozenset[PeerId], there: frozenset[PeerId], *, one_way: bool) -> None:
        self._cuts.append((here, there))
        if not one_way:
            self._cuts.append((there, here))

    def heal(self) -> bool:
        """Remove all cuts, and return whether there were any."""
        cuts, self._cuts = self._cuts, []
        return bool(cuts)

    def _delay_s(self) -> float:
        profile = self._profile
        low_s, high_s = profile.delay_s
        delay_s = low_s + (high_s - low_s) * self._random.random()
        if self.faulty and profile.delay_spike and self._random.random() < profile.delay_spike:
            delay_s += self._random.uniform(0, profile.delay_spike_s)
        return delay_s

    def _arrive(self, sender: PeerId, receiver: PeerId, payload: Payload) -> None:
        if not self._cuts or self.connects(sender, receiver):
            self._deliver(sender, receiver, payload)
