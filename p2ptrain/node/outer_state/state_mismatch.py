"""Detect that this node's θ and m differ from the certified ones, and stop using them.

Equal ledger entries lead to equal states. So a difference is caused by a fault of this machine
(memory or processor) or by a bug in p2ptrain. The certified state is the right one, since a quorum
computed it. Without this check, the node would contribute pseudo-gradients of a different model.

This module detects and reports; `outer_task` corrects θ and m.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, MachineUnfit
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.store import Store

TIMES_MAX = 3
"""Maximum number of mismatches since the node started. A machine with more mismatches is of no use
to the run or to its owner, so the node ends."""

WARNING = "state"


@dataclass(frozen=True, slots=True)
class StateMismatch:
    """Two different digests of the state before outer step `step`: the one computed here, and the
    certified one."""

    step: int
    own: Digest
    certified: Digest


def contradiction(context: Context) -> StateMismatch | None:
    """Compare our own snapshot with the newest certified one, if both are of the same outer step.
    Return the mismatch if their digests differ; otherwise None."""
    certified = context.ledger.snapshot.snapshot
    if certified is None or certified == context.outer.disowned:
        return None
    own = context.ledger.core.reports.own_snapshots.get(certified.step)
    if own is None or own == certified.digest:
        return None
    return StateMismatch(certified.step, own, certified.digest)


def is_certified_otherwise(entries: Iterable[Certified], step: int, digest: Digest) -> bool:
    """Return whether the chain names a snapshot of `step` with a different digest. If so, our own
    snapshot, `digest`, must not be used."""
    commits = (each.entry.value for each in entries if isinstance(each.entry.value, Commit))
    named = (commit.snapshot for commit in commits if commit.snapshot is not None)
    return any(each.step == step and each.digest != digest for each in named)


def quarantine_state(context: Context, found: StateMismatch) -> None:
    """Do not use θ and m until they are corrected, and discard the work that was trained on them.

    Raises MachineUnfit: this has happened more than TIMES_MAX times."""
    context.journal.write(
        "state-differs", step=found.step, own=found.own, certified=found.certified
    )
    context.outer.disowned = context.ledger.snapshot.snapshot
    context.outer.replaced += 1
    if context.outer.replaced > TIMES_MAX:
        raise MachineUnfit(
            f"θ and m in this node were wrong {TIMES_MAX + 1} times since it started",
            code="STATE-DIFFERS",
            evidence=[
                f"before outer step {found.step}",
                f"here      {found.own}",
                f"certified {found.certified}",
            ],
            likely="this machine's memory or processor is faulty: most members agree on the state",
            do="test the memory (memtest86+), undo overclocking, then start the node again",
        )
    context.outer.step = None
    context.trainer.discard_work()
    context.alerts.show(
        WARNING,
        Caution(
            "STATE-DIFFERS",
            f"θ and m IN THIS NODE ARE WRONG: before outer step {found.step} they differed from "
            "what the members certified. The node stops using them and fetches the parts that "
            "differ",
            "test this machine's memory and processor, which may be faulty",
        ),
    )
    context.changes.notify_all()


def disown_snapshot(store: Store) -> None:
    """Remove the reference to our own snapshot from the store's head: the snapshot may be wrong
    too, so a restart must not use it."""
    head = store.head()
    if head is not None and head.snapshot is not None:
        store.put_head(replace(head, snapshot=None, snapshot_step=None))


def release_state(context: Context, found: StateMismatch) -> None:
    """Tell the user and the journal that θ and m are correct again."""
    unlike, of = chunks_unlike(context.store, found)
    context.journal.write("state-put-right", step=context.outer.step, chunks=unlike, of=of)
    context.alerts.show(
        WARNING,
        Caution(
            "STATE-DIFFERS",
            f"θ and m in this node were wrong at outer step {found.step}, in {unlike} of {of} "
            "chunks; they have been corrected",
            "if this happens again, test this machine's memory and processor",
        ),
    )
    context.changes.notify_all()


def chunks_unlike(store: Store, found: StateMismatch) -> tuple[int, int]:
    """Return how many chunks of the two snapshots differ, and how many chunks the certified one
    has. Both numbers are 0 if a manifest is missing or damaged."""
    try:
        own, certified = store.manifest(found.own), store.manifest(found.certified)
    except (ChunkMissing, ChunkCorrupt):
        return 0, 0
    pairs = zip(own.chunks, certified.chunks, strict=False)
    return sum(ours != theirs for ours, theirs in pairs), len(certified.chunks)
