"""Runs with claims: each participant's contribution is quantised once and signed. Nodes are real,
trainers are simulated."""

from __future__ import annotations

from pathlib import Path

from p2ptrain.run.trust_rules import TrustRules
from tests.node.swarm import swarm

CLAIMS = TrustRules(claims=True)


async def test_members_average_the_contributions_that_they_claimed(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=4, trust=CLAIMS) as s:
        await s.until(lambda: s.at_step(4))
        s.check_chain()
        s.check_equal()
