"""The weighted average of the peers' pseudo-gradients, with the same bits on every peer.

arrangement                     the order of the peers and the schedule (pure)
plan                            the bytes that each peer sends, and to whom (pure)
streams_for                     the number of connections between two neighbours (pure)
Difference, Contribution        what a peer contributes: fp32 in memory, or quantised bytes
ReduceRequest, Reduce           one attempt: `run` it in one thread, `abort` it from any thread
Signing, SignedRun              how peers sign their sums, and what they have signed
ReduceStatistics                timings and traffic of a completed reduce
contribution_peak               the largest magnitude of our own contribution
mean_max                        the largest magnitude that a mean may have
residual_max                    the largest rounding error that a peer may add to its contribution
"""

from __future__ import annotations

from p2ptrain.ring.arrangement import NEIGHBOURS_MAX, Arrangement, Paths, arrangement
from p2ptrain.ring.hop_signatures import LEAF_BYTES, SIGNATURE_BYTES, SignedRun, Signing
from p2ptrain.ring.influence import contribution_peak, mean_max, residual_max
from p2ptrain.ring.plan import ReducePlan, Segment, plan
from p2ptrain.ring.reduce import Links, Reduce
from p2ptrain.ring.relayed_order import Relays
from p2ptrain.ring.request import SILENCE_S, ReduceRequest, ReduceStatistics, Traffic
from p2ptrain.ring.schedules import SCHEDULES, Route, Schedule, routes
from p2ptrain.ring.source import Contribution, Difference, Source, quantised_once
from p2ptrain.ring.streams import streams_for

__all__ = [
    "LEAF_BYTES",
    "NEIGHBOURS_MAX",
    "SCHEDULES",
    "SIGNATURE_BYTES",
    "SILENCE_S",
    "Arrangement",
    "Contribution",
    "Difference",
    "Links",
    "Paths",
    "Reduce",
    "ReducePlan",
    "ReduceRequest",
    "ReduceStatistics",
    "Relays",
    "Route",
    "Schedule",
    "Segment",
    "SignedRun",
    "Signing",
    "Source",
    "Traffic",
    "arrangement",
    "contribution_peak",
    "mean_max",
    "plan",
    "quantised_once",
    "residual_max",
    "routes",
    "streams_for",
]
