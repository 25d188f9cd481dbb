"""Wait after skipped outer steps. If several outer steps in a row are skipped because peers cannot
average, each further one waits longer before its reduce is opened. Otherwise a night without a
network would use up all outer steps of a run.
"""

from __future__ import annotations

import math

from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.policy.reports import Reports

REST_S_MAX = 3600.0
"""Maximum wait in seconds after skipped steps: 500 steps without a network take three weeks."""


def rests_until(rules: Rules, reports: Reports) -> float:
    """Return the time from which this node may open a reduce: at once after a single skip."""
    return _after_rest(rules, reports, 1.0)


def rested_at_least_until(rules: Rules, reports: Reports) -> float:
    """Return the time before which a voter refuses a roster that opens a reduce. It waits half as
    long as a proposer, because nodes learn at different times that a quorum is ready.
    """
    return _after_rest(rules, reports, 0.5)


def _after_rest(rules: Rules, reports: Reports, part: float) -> float:
    if reports.skips < 2 or reports.enough_since is None:
        return -math.inf
    doubled = min(reports.skips - 2, 32)  # 2.0**1024 overflows.
    return reports.enough_since + part * min(REST_S_MAX, rules.grace_s * 2.0**doubled)
