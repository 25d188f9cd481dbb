"""Wait after skipped outer steps. If step after step is skipped, because nobody can average with
anybody, each further one waits longer before it opens. Otherwise a night without a network would
use up the outer steps of a run.
"""

from __future__ import annotations

import math

from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.policy.reports import Reports

REST_S_MAX = 3600.0
"""Longest wait in seconds after skipped steps. With it a run of 500 outer steps outlasts three
weeks in which nobody can average.
"""


def rests_until(rules: Rules, reports: Reports) -> float:
    """Return the time until which this node opens no reduce. The first skip may be an accident: the
    next step opens at once.
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
