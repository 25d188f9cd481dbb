"""Restart honest nodes in both phases: kill one node, stop two, and start them again.

A replayed heartbeat from before a restart can mislead only nodes that did not receive the original.
So the order matters: first the sender of the old heartbeats restarts, then the nodes that the
attackers try to mislead.
"""

from __future__ import annotations

import time

from tests.siege.harness.field import Field, SiegeNode
from tests.siege.harness.watch import Deed, Phase

KILL_AT = 0.2
LEAVE_AT = (0.4, 0.6)
"""Times of the stops, as fractions of the phase. The rest of the phase gives the replays time to
have an effect.
"""

AWAY_S = 1.0


def restarts(field: Field, phase: Phase, seconds: float) -> list[Deed]:
    killed, *leaving = field.nodes[: 1 + len(LEAVE_AT)]
    deeds = _restart(field, phase, killed, phase.began_s + KILL_AT * seconds, kindly=False)
    for node, share in zip(leaving, LEAVE_AT, strict=True):
        deeds += _restart(field, phase, node, phase.began_s + share * seconds, kindly=True)
    return deeds


def _restart(
    field: Field, phase: Phase, node: SiegeNode, at_s: float, *, kindly: bool
) -> list[Deed]:
    began: list[float] = []

    def end() -> bool:
        if node.ended:
            return True  # The node ended by itself. A restart would hide that.
        began.append(time.monotonic())
        node.stopped_by_us = True
        if kindly:
            node.stop()
        else:
            node.kill()
        return True

    def begin() -> bool:
        if not began or not node.stopped_by_us:
            return bool(node.ended)
        if node.running:
            return False
        phase.look()
        field.start(node)
        phase.note_down(node, began[0])
        return True

    return [(at_s, end), (at_s + AWAY_S, begin)]
