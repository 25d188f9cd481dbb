"""Which of its first entries a node may forget, and the base that stands for them then.

Pure. An entry may go if all that a restart needs is kept: the chain from a base on, and a snapshot
of θ and m from which the updates in that chain lead to the head. A snapshot is certified some steps
after it was taken, so the base is often an older Commit than the one that names the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.ledger.base import Base
from p2ptrain.ledger.kept import Kept
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.state import apply
from p2ptrain.ledger.values import Certified, Commit


def prunable_to(entries: Sequence[Certified], *, keep_entries: int, step_max: int) -> int | None:
    """The height of the newest Commit that could be the base; None if nothing may go.

    At least `keep_entries` entries follow it, and it ends an outer step up to `step_max`, that of
    the node's own snapshot, and up to that of the newest certified one, from which others start.
    """
    reach = min(step_max, _newest_snapshot(entries))
    for certified in reversed(entries[1 : max(0, len(entries) - keep_entries)]):
        value = certified.entry.value
        if isinstance(value, Commit) and value.state is not None and value.step <= reach:
            return certified.entry.height
    return None


def _newest_snapshot(entries: Sequence[Certified]) -> int:
    for certified in reversed(entries):
        value = certified.entry.value
        if isinstance(value, Commit) and value.snapshot is not None:
            return value.snapshot.step
    return -1


def base_at(rules: Rules, kept: Kept, height: int) -> Base | None:
    """The base whose Commit is the entry at `height`; None if that entry is none, or not kept."""
    commit = kept.at(height)
    if commit is None or not isinstance(commit.entry.value, Commit):
        return None
    if commit.entry.value.state is None:
        return None
    state = kept.start
    for certified in kept.entries[: height - 1 - kept.start.height]:
        state = apply(rules, state, certified.entry)
    return Base(state, commit)
