"""Leave in an orderly way: say goodbye, wait until the others have agreed to continue without us,
then exit.

If a voter vanishes, the others need time to detect that, and until then it counts against their
quorum. A voter that says goodbye votes once more, for the roster without it. A second Ctrl-C leaves
immediately; the others then detect it like any failure.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import trio

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.messages.peer_reports import Leaving
from p2ptrain.ledger.policy.membership import keeps_its_vote
from p2ptrain.node.state.context import Parts
from p2ptrain.observe import states

LEAVE_S = 20.0
GOODBYE_S = 0.3
"""Seconds for the last heartbeat to reach a neighbour, which forwards it."""


class Exit:
    """Handles SIGINT and SIGTERM. `parts` is set once there are peers to say goodbye to."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.parts: Parts | None = None

    async def obey_signals(self, node: trio.CancelScope) -> None:
        """Leave on the first signal, then cancel `node`. On the second signal, cancel it
        immediately."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                async for _ in signals:
                    if self.parts is None or self.parts.standing.leaving:
                        break
                    self._say(farewell(self.parts))
                    nursery.start_soon(self._leave, self.parts, node)
                node.cancel()

    async def _leave(self, parts: Parts, node: trio.CancelScope) -> None:
        await leave(parts)
        node.cancel()


async def leave(parts: Parts) -> None:
    """Say goodbye. Return when the run can continue without this node, or after `LEAVE_S`."""
    parts.standing.leaving = True
    parts.enter(states.Leaving())
    await parts.tell(Leaving(parts.me))
    parts.speak_now()
    with trio.move_on_after(LEAVE_S):
        while _is_needed(parts):
            await parts.changes.wait(at_most_s=1.0)
    parts.speak_now()
    await trio.sleep(GOODBYE_S)
    parts.journal.write("left", member=parts.ledger.state.is_member(parts.me))


def _is_needed(parts: Parts) -> bool:
    """Return whether others need our vote to agree on a roster without us.

    A learner does not vote, and a founder of an open run keeps its vote as long as it is up. So
    both may leave immediately.
    """
    state = parts.ledger.state
    if parts.me not in state.voters or keeps_its_vote(parts.ledger.view.founders, state, parts.me):
        return False
    others = [voter for voter in state.voters if voter != parts.me and not parts.is_down(voter)]
    return bool(others) and state.phase is not Phase.ENDED


def farewell(parts: Parts) -> str:
    """Return the text shown to a user who presses Ctrl-C."""
    standing = parts.standing
    lost = ""
    if standing.work is None and standing.inner_step:
        lost = f"; {standing.inner_step} of {standing.inner_steps} inner steps will be lost"
    alone = ""
    if parts.ledger.state.voters == (parts.me,) and parts.ledger.state.phase is not Phase.ENDED:
        alone = " This node is the run's only voter: nothing is committed until it is back."
    return f"Leaving within {LEAVE_S:.0f} s{lost}. Press Ctrl-C again to leave now.{alone}"
