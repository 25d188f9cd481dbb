"""Judge the demo: a pure function from Facts to an object with `ok`, so that tests can pass facts
that violate a claim.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LOSS_FALL_NATS = 1.0
KILL_TO_COMMIT_S_MAX = 5.0
STEPS_AFTER_SEED_MIN = 2
JOIN_SOURCES_MIN = 2


@dataclass
class Facts:
    """The observed facts. None means that an event never happened."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)
    """The device of each volunteer's trainer."""
    outer_steps: int = 0
    outer_steps_planned: int = 0
    val_loss_first: float | None = None
    val_loss_last: float | None = None
    setup_s: float = 0.0
    run_s: float = 0.0
    killed_at_step: int | None = None
    killed_in_reduce: bool = False
    killed_step_committed_without_victim: bool = False
    survivors_tokens_kept: bool = False
    kill_to_commit_s: float | None = None
    join_fetch_s: float | None = None
    join_sources: int = 0
    join_updates_replayed: int | None = None
    join_first_roster_step: int | None = None
    refused_code: str | None = None
    refused_exit: int | None = None
    refused_says_what_to_do: bool = False
    seed_stopped_at_step: int | None = None
    steps_after_seed_stopped: int = 0
    blocks_trained_once: int = 0
    blocks_trained_otherwise: int | None = None
    """Number of committed blocks whose training no journal records. If a journal contradicts the
    ledger, `p2ptrain ledger trained` fails, and the demo with it."""


def claims(facts: Facts) -> dict[str, bool]:
    """Return each claim of the demo in words, and whether the facts support it."""
    first, last = facts.val_loss_first, facts.val_loss_last
    to_commit_s = facts.kill_to_commit_s
    return {
        "the run completed all outer steps": 0 < facts.outer_steps_planned == facts.outer_steps,
        "all remaining nodes have the same ledger and the same weights": _agree(facts.nodes),
        f"the validation loss fell by {LOSS_FALL_NATS} nat or more": first is not None
        and last is not None
        and first - last >= LOSS_FALL_NATS,
        "a volunteer was killed during an exchange": facts.killed_in_reduce,
        "the others committed that outer step without it": (
            facts.killed_step_committed_without_victim
        ),
        "none of the survivors' work was lost": facts.survivors_tokens_kept,
        f"the others committed within {KILL_TO_COMMIT_S_MAX:.0f} s of the kill": to_commit_s
        is not None
        and to_commit_s <= KILL_TO_COMMIT_S_MAX,
        f"a newcomer fetched a snapshot from {JOIN_SOURCES_MIN} peers or more": (
            facts.join_fetch_s is not None and facts.join_sources >= JOIN_SOURCES_MIN
        ),
        "the newcomer replayed the updates after that snapshot": bool(facts.join_updates_replayed),
        "the newcomer contributed to an average": facts.join_first_roster_step is not None,
        "an unknown peer was refused and told what to do": facts.refused_exit == 6
        and facts.refused_code is not None
        and facts.refused_code.startswith("AUTH-")
        and facts.refused_says_what_to_do,
        "each committed block was trained on once, by the member that held its lease": (
            facts.blocks_trained_once > 0 and facts.blocks_trained_otherwise == 0
        ),
        "the run continued without the seed": facts.seed_stopped_at_step is not None
        and facts.steps_after_seed_stopped >= STEPS_AFTER_SEED_MIN,
    }


def _agree(nodes: list[dict[str, Any]]) -> bool:
    """Return whether at least three nodes remain, with the same state at the same height."""
    names = ("ledger_height", "ledger_head", "state_digest", "outer_step")
    accounts = {tuple(node.get(name) for name in names) for node in nodes}
    return len(nodes) >= 3 and len(accounts) == 1 and None not in accounts.pop()


def verdict(facts: Facts) -> dict[str, Any]:
    """Return the object that `--json` writes: `ok`, every fact, and the claims."""
    judged = claims(facts)
    return {"schema": 1, "ok": all(judged.values()), **asdict(facts), "claims": judged}
