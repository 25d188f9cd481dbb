"""Voters agree although every message has a long delay. The test runs real ledgers and outboxes in
simulated time.

No message is lost and no voter is down. Then only a node's own repeated messages could delay a
round of voting further, because they wait in the same queue as new messages.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.messages.events import Event, Received, Tick
from p2ptrain.ledger.messages.messages import Message, Outcome
from p2ptrain.ledger.messages.peer_reports import Ready, ReduceDone, UpdateHeld
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.node.consensus.outbox import Outboxes
from p2ptrain.node.state.forwarding import Forwarding
from p2ptrain.testing.ledgers import LedgerGroup, digest, small_rules

STEPS = 4
ONE_WAY_S = (0.5, 1.5)
"""The shortest and longest delay of a message, in seconds. So an answer arrives after about two
seconds, which is the length of the first round at a height. Later rounds last up to eight seconds
and need two round trips: one for promises and one for votes."""
LIMIT_S = 180.0
"""Time limit of the run, in simulated seconds. The run takes 60 to 70 s. It took 280 to 480 s in an
earlier version, in which repeated messages waited in the queue too."""


class SlowPost:
    """Voters whose messages and gossip have long delays."""

    def __init__(self, nursery: trio.Nursery) -> None:
        rules = small_rules("a b c d e", outer_steps=STEPS, participants_min=2)
        self.group = LedgerGroup(replace(rules, round_timeout_s=2.0))
        self._nursery = nursery
        self._random = Random(1)
        self._told: dict[PeerId, int] = {}
        self._boxes = {name: Outboxes(self._context(name), nursery) for name in self.group.names}
        for name in self.group.names:
            nursery.start_soon(self._keep_time, name)
            self._happens(name)

    @property
    def over(self) -> bool:
        states = [ledger.state for ledger in self.group.ledgers.values()]
        return all(state.phase is Phase.ENDED for state in states)

    def _context(self, sender: PeerId) -> Any:
        """Return an object with the parts of a node's context that an outbox uses."""

        async def request(peer: PeerId, _: str, payload: bytes, **limits: float) -> bytes:
            done = trio.Event()
            self._nursery.start_soon(self._carry, sender, peer, payload, done)
            with trio.fail_after(limits["deadline_s"]):
                await done.wait()
            return b""

        asked = SimpleNamespace(first_question=SimpleNamespace(is_over=True))
        alone = SimpleNamespace(snapshot=SimpleNamespace(is_member=lambda peer: False))
        return SimpleNamespace(
            me=sender,
            network=SimpleNamespace(request=request, connected=set),
            identities=asked,
            ledger=alone,  # Nobody else could forward a request.
            peers=SimpleNamespace(
                forwarding=Forwarding(), may_fetch_in_every_way=lambda sender, receiver: False
            ),
            now=trio.current_time,
        )

    async def _carry(
        self, sender: PeerId, receiver: PeerId, payload: bytes, answered: trio.Event
    ) -> None:
        await self._under_way()
        self._happens(receiver, Received(sender, decode(payload)))
        await self._under_way()
        answered.set()

    async def _gossip(self, receiver: PeerId, event: Event) -> None:
        await self._under_way()
        self._happens(receiver, event)

    async def _under_way(self) -> None:
        await trio.sleep(self._random.uniform(*ONE_WAY_S))

    async def _keep_time(self, name: PeerId) -> None:
        while True:
            due = self.group.ledgers[name].next_deadline()
            if due is not None and due <= trio.current_time():
                self._happens(name, Tick())
            await trio.sleep(0.05)

    def _happens(self, name: PeerId, *events: Event) -> None:
        self.group.now = trio.current_time()
        self.group.send_events(name, *events)
        letters, self.group.mail = self.group.mail, []
        for letter in letters:
            self._send(letter.sender, letter.receiver, letter.message)
        if self._told.get(name) != (height := self.group.ledgers[name].state.height):
            self._told[name] = height
            self._report(name)

    def _send(self, sender: PeerId, receiver: PeerId, message: Message) -> None:
        if isinstance(message, Outcome):
            self._nursery.start_soon(self._gossip, receiver, Received(sender, message))
        else:
            self._boxes[sender].post(receiver, encode(message))

    def _report(self, name: PeerId) -> None:
        """Report that this voter is ready or, if a reduce is in progress, that the reduce is
        done."""
        state = self.group.ledgers[name].state
        report: Event = Ready(name, state.step, 200, 2)
        if state.roster is not None:
            update = digest(f"update {state.step}")
            self._happens(name, UpdateHeld(update))
            report = ReduceDone(name, state.step, state.roster.attempt, update)
        for other in self.group.names:
            self._nursery.start_soon(self._gossip, other, report)


async def test_voters_agree_in_time_if_answers_take_two_seconds(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    post = SlowPost(nursery)
    with trio.fail_after(LIMIT_S):
        while not post.over:
            await trio.sleep(1.0)
