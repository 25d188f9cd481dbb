"""Wait after skipped outer steps. If step after step is skipped because peers cannot average, each
further step waits longer before it opens a reduce. Otherwise a night without a network would use up
all outer steps of a run.
"""

from __future__ import annotations

import math

from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.policy.reports import Reports

REST_S_MAX = 3600.0
"""Maximum wait in seconds after skipped steps. With this value, a run of 500 outer steps survives
three weeks in which peers cannot average.
"""


def rests_until(rules: Rules, reports: Reports) -> float:
    """Return the time until which this node does not open a reduce. The first skip may be an
    accident, so the next step does not wait.
    """
    return _after_rest(rules, reports, 1.0)


def rested_at_least_until(rules: Rules, reports: Reports) -> float:
    """Return the time until which a voter refuses a roster that opens a reduce. It is half of the
    proposer's wait, since each node saw a quorum ready at a different time.
    """
    return _after_rest(rules, reports, 0.5)


def _after_rest(rules: Rules, reports: Reports, part: float) -> float:
    if reports.skips < 2 or reports.enough_since is None:
        return -math.inf
    doubled = min(reports.skips - 2, 32)  # 2.0**1024 overflows.
    return reports.enough_since + part * min(REST_S_MAX, rules.grace_s * 2.0**doubled)
