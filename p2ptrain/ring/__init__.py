"""The bit-identical weighted average of pseudo-gradients over a ring of peers.

arrangement                     in which order, and by which schedule: pure
plan                            who sends which bytes to whom: pure
streams_for                     over how many connections: pure
ReduceRequest, Reduce           one attempt: `run` it in a thread, `abort` it from any
ReduceReport                    how it went
own_peak, mean_max, owed_max    what is held to the bound before a reduce, after it, and between
"""

from __future__ import annotations

from p2ptrain.ring.arrangement import NEIGHBOURS_MAX, Arrangement, Paths, arrangement
from p2ptrain.ring.influence import mean_max, owed_max, own_peak
from p2ptrain.ring.plan import Plan, Segment, plan
from p2ptrain.ring.reduce import Links, Reduce
from p2ptrain.ring.request import ReduceReport, ReduceRequest, Traffic
from p2ptrain.ring.schedules import SCHEDULES, Route, Schedule, routes
from p2ptrain.ring.streams import streams_for

__all__ = [
    "NEIGHBOURS_MAX",
    "SCHEDULES",
    "Arrangement",
    "Links",
    "Paths",
    "Plan",
    "Reduce",
    "ReduceReport",
    "ReduceRequest",
    "Route",
    "Schedule",
    "Segment",
    "Traffic",
    "arrangement",
    "mean_max",
    "owed_max",
    "own_peak",
    "plan",
    "routes",
    "streams_for",
]
