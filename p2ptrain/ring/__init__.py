"""The bit-identical weighted average of pseudo-gradients over a ring of peers.

arrangement                     the order of the peers and the schedule (pure)
plan                            the bytes that each peer sends, and to whom (pure)
streams_for                     the number of connections between two neighbours (pure)
ReduceRequest, Reduce           one attempt: `run` it in one thread, `abort` it from any thread
ReduceReport                    timings and traffic of a completed reduce
own_peak, mean_max, owed_max    the magnitude of the own contribution; bounds on means and residuals
"""

from __future__ import annotations

from p2ptrain.ring.arrangement import NEIGHBOURS_MAX, Arrangement, Paths, arrangement
from p2ptrain.ring.influence import mean_max, owed_max, own_peak
from p2ptrain.ring.plan import Plan, Segment, plan
from p2ptrain.ring.reduce import Links, Reduce
from p2ptrain.ring.request import SILENCE_S, ReduceReport, ReduceRequest, Traffic
from p2ptrain.ring.schedules import SCHEDULES, Route, Schedule, routes
from p2ptrain.ring.streams import streams_for

__all__ = [
    "NEIGHBOURS_MAX",
    "SCHEDULES",
    "SILENCE_S",
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
