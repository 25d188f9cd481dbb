"""Decide which of the oldest entries a node may forget, and make the base that replaces them.

A base is a state, and the Commit that names it and follows it. Entries may be forgotten if
everything that a restart needs is kept: the chain from a base onwards, and a snapshot of θ and m.
The updates in that chain must lead from the snapshot to the present. A snapshot is certified some
steps after it is taken, so the base's Commit is often older than the one that names the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p2ptrain.ledger.chain.apply import apply
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.ledger.history.base import Base
from p2ptrain.ledger.history.kept_chain import KeptChain


def prunable_to(entries: Sequence[Certified], *, keep_entries: int, step_max: int) -> int | None:
    """Return the height of the newest Commit that may become the base's Commit; None if no entry
    may be forgotten.

    At least `keep_entries` entries follow that Commit. The outer step that it ends is at most
    `step_max` (the step of this node's own snapshot). It is also at most the step of the newest
    certified snapshot, because other nodes start from that snapshot.
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


def base_at(rules: Rules, kept: KeptChain, height: int) -> Base | None:
    """Return the base whose Commit is the entry at `height`. Return None if that entry is not kept
    or cannot be the Commit of a base.
    """
    found = entries_up_to(kept, height)
    return None if found is None else base_after(rules, kept.start, *found)


def entries_up_to(kept: KeptChain, height: int) -> tuple[list[Certified], Certified] | None:
    """Return the kept entries before the Commit at `height`, and that Commit.

    Return None if that entry is not kept or cannot be the Commit of a base. The list is a copy,
    which `base_after` can read in a thread while the chain grows or is pruned.
    """
    commit = kept.at(height)
    if commit is None or not isinstance(commit.entry.value, Commit):
        return None
    if commit.entry.value.state is None:
        return None
    return kept.entries[: height - 1 - kept.start.height], commit


def base_after(
    rules: Rules,
    start: LedgerState,
    entries: Sequence[Certified],
    commit: Certified,
    unwanted: Callable[[], bool] = lambda: False,
) -> Base | None:
    """Return the base that consists of `commit` and the state before it, which is computed by
    applying `entries` to `start`. That takes about 25 µs for each entry.

    `unwanted` is called before each entry. If it returns True, stop and return None.
    """
    state = start
    for certified in entries:
        if unwanted():
            return None
        state = apply(rules, state, certified.entry)
    return Base(state, commit)
