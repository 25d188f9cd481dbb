"""Answer commands of the node's user (on the control socket) while the node is starting.

A start can take days, for instance while a volunteer waits for approval. Until the node has a
context (the object with its state), it answers only `status`, with the progress of the start, and
refuses other commands. The same holds when a node leaves its branch for another chain, until it has
a new context. This module does not define the stages of a start; `startup` reports them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import Starting, State, words
from p2ptrain.observe.status import NodeStatus
from p2ptrain.run import Run

Answer = dict[str, object]
Command = Callable[[Context], Awaitable[Answer]]

GONE: Answer = {
    "error": "not yet: the node is starting over; try again in a moment",
    "code": "NOT-YET",
}


@dataclass(slots=True)
class StartupStatus:
    """Runs commands on `context` while there is one. Knows how far the start has progressed."""

    me: PeerId
    journal: Journal
    state: State = field(default_factory=Starting)
    run: Run | None = None
    waits_for: str = ""
    """The next action of the user or organiser, for which the start waits; empty if none."""
    doubts: tuple[Caution, ...] = ()
    """Warnings about resources of this machine that may run short. Kept until the process ends."""
    context: Context | None = None
    started_s: float = field(default_factory=time.monotonic)
    _under_way: dict[trio.CancelScope, trio.Event] = field(default_factory=dict)

    def set_state(self, state: State, waits_for: str = "") -> None:
        """Record that the start has reached `state`, and journal it if its name is new."""
        if state.name != self.state.name:
            self.journal.write("state", state=state.name)
        self.state, self.waits_for = state, waits_for

    def doubt(self, found: Sequence[Caution]) -> list[Caution]:
        """Replace the known warnings about this machine with `found`. Return those with a new code,
        which the user has not seen."""
        known = {each.code for each in self.doubts}
        new = [each for each in found if each.code not in known]
        for each in new:
            self.journal.write("doubt", code=each.code, what=f"{each.what}: {each.do}")
        self.doubts = tuple(found)
        return new

    @asynccontextmanager
    async def with_context(self, context: Context) -> AsyncIterator[None]:
        """Run commands on `context` inside the block. On exit, cancel those still running."""
        self.context = context
        try:
            yield
        finally:
            self.context = None
            self.state, self.waits_for = Starting(), ""
            with trio.CancelScope(shield=True):  # Only threads can delay this, and only briefly.
                under_way = dict(self._under_way)
                for scope in under_way:
                    scope.cancel()
                for ended in under_way.values():
                    await ended.wait()

    async def obeyed(self, command: Command) -> Answer:
        """Run `command` and return its answer. Return an error answer if there is no context, or if
        the context is closed before the command ends."""
        if self.context is None:
            return {
                "error": f"not yet: the node in this home is {words(self.state)}",
                "code": "NOT-YET",
            }
        scope, ended, answer = trio.CancelScope(), trio.Event(), GONE
        self._under_way[scope] = ended
        try:
            with scope:
                answer = await command(self.context)
            return answer
        finally:
            del self._under_way[scope]
            ended.set()

    def status(self) -> NodeStatus:
        """Return the status during the start."""
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
