"""Who answers for a node at its control socket, from its start on.

A start can take days, while a volunteer waits to be approved, and between two lives a node has no
parts either.  Until it has them it says how far it is, in words, and refuses other orders, since
there is nothing yet that could obey.  It does not know how a start goes on: who starts says so.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import Starting, State, words
from p2ptrain.observe.status import NodeStatus
from p2ptrain.run import Run

Answer = dict[str, object]
Command = Callable[[Parts], Awaitable[Answer]]

GONE: Answer = {
    "error": "not yet: what the order was for has just ended, and begins anew",
    "code": "NOT-YET",
}


@dataclass(slots=True)
class Reception:
    """`state` and what follows are of the start alone; `parts` know better once there are any."""

    me: PeerId
    journal: Journal
    state: State = field(default_factory=Starting)
    run: Run | None = None
    waits_for: str = ""
    """What a person could do, where one is waited for."""
    doubts: tuple[Caution, ...] = ()
    """What was found in this machine that may become tight; of the whole life."""
    parts: Parts | None = None
    started_s: float = field(default_factory=time.monotonic)
    _under_way: dict[trio.CancelScope, trio.Event] = field(default_factory=dict)

    def enter(self, state: State, waits_for: str = "") -> None:
        """The start has come to `state`; a change of its name goes to the journal."""
        if state.name != self.state.name:
            self.journal.write("state", state=state.name)
        self.state, self.waits_for = state, waits_for

    def doubt(self, found: Sequence[Caution]) -> list[Caution]:
        """This is doubtful now. Returns what is to be told, since there was none of its code."""
        known = {each.code for each in self.doubts}
        new = [each for each in found if each.code not in known]
        for each in new:
            self.journal.write("doubt", code=each.code, what=f"{each.what}: {each.do}")
        self.doubts = tuple(found)
        return new

    @asynccontextmanager
    async def with_parts(self, parts: Parts) -> AsyncIterator[None]:
        """Inside, orders reach `parts`; afterwards none of them is under way any more."""
        parts.standing.doubts = self.doubts
        self.parts = parts
        try:
            yield
        finally:
            self.parts = None
            self.state, self.waits_for = Starting(), ""
            with trio.CancelScope(shield=True):  # For threads alone, which cannot be cut short.
                under_way = dict(self._under_way)
                for scope in under_way:
                    scope.cancel()
                for ended in under_way.values():
                    await ended.wait()

    async def obeyed(self, command: Command) -> Answer:
        """The answer of `command`; without parts, or when they end first, why there is none."""
        if self.parts is None:
            return {"error": f"not yet: the node here is {words(self.state)}", "code": "NOT-YET"}
        scope, ended, answer = trio.CancelScope(), trio.Event(), GONE
        self._under_way[scope] = ended
        try:
            with scope:
                answer = await command(self.parts)
            return answer
        finally:
            del self._under_way[scope]
            ended.set()

    def status(self) -> NodeStatus:
        """How far the start is."""
        return NodeStatus(
            peer=self.me,
            peer_name=peer_name(self.me),
            state=words(self.state),
            state_name=self.state.name,
            run=self.run.id if self.run else "",
            run_name=self.run.manifest.name if self.run else "",
            outer_steps=self.run.manifest.outer.steps if self.run else 0,
            waits_for=self.waits_for,
            uptime_s=time.monotonic() - self.started_s,
            warnings=tuple(each.words for each in self.doubts),
            cautions=self.doubts,
        )
