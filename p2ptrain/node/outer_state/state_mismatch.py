"""θ and m here that are not what the members certified: noticed, said, and not used any more.

Equal entries make equal states, so a difference is this machine's own fault: its memory, its
processor, or a fault of ours. The members' word is what counts, since a majority of them computed
the same. Whoever noticed nothing would send everybody pseudo-gradients of another model for ever.

This module judges and says; putting θ and m right is the business of `outer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from p2ptrain.errors import ChunkCorrupt, ChunkMissing, MachineUnfit
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.cautions import Caution
from p2ptrain.store import Store

TIMES_MAX = 3
"""A machine that is wrong so often since its node started is no use to the run, nor to its owner.
"""

WARNING = "state"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The state before outer step `step`: what was computed here, and what was certified."""

    step: int
    own: Digest
    certified: Digest


def contradiction(parts: Parts) -> Contradiction | None:
    """Whether the newest certified snapshot is another than ours of that step."""
    certified = parts.ledger.state.snapshot
    if certified is None or certified == parts.outer.disowned:
        return None
    own = parts.ledger.view.own_snapshots.get(certified.step)
    if own is None or own == certified.digest:
        return None
    return Contradiction(certified.step, own, certified.digest)


def is_certified_otherwise(entries: Iterable[Certified], step: int, digest: Digest) -> bool:
    """Whether the chain names another snapshot of `step`: then nothing may begin at ours."""
    commits = (each.entry.value for each in entries if isinstance(each.entry.value, Commit))
    named = (commit.snapshot for commit in commits if commit.snapshot is not None)
    return any(each.step == step and each.digest != digest for each in named)


def begin(parts: Parts, found: Contradiction) -> None:
    """From now on nobody uses θ and m, nor what was trained on them, until they are put right.

    Raises MachineUnfit: it is not the first time.
    """
    parts.journal.write("state-differs", step=found.step, own=found.own, certified=found.certified)
    parts.outer.disowned = parts.ledger.state.snapshot
    parts.outer.replaced += 1
    if parts.outer.replaced > TIMES_MAX:
        raise _unfit(found)
    parts.outer.step = None
    parts.standing.work = None
    parts.standing.warnings[WARNING] = Caution(
        "STATE-DIFFERS",
        f"θ and m HERE ARE WRONG: before outer step {found.step} they were not what the members "
        "certified. They are set aside, and what differs is fetched",
        "test this machine's memory and processor, which may be faulty",
    )
    parts.changes.ring()


def disown(store: Store) -> None:
    """Have no restart begin at a snapshot of ours: it may be of the same wrong line."""
    head = store.head()
    if head is not None and head.snapshot is not None:
        store.put_head(replace(head, snapshot=None, snapshot_step=None))


def end(parts: Parts, found: Contradiction) -> None:
    """θ and m are right again."""
    unlike, of = chunks_unlike(parts.store, found)
    parts.journal.write("state-put-right", step=parts.outer.step, chunks=unlike, of=of)
    parts.standing.warnings[WARNING] = Caution(
        "STATE-DIFFERS",
        f"θ and m here were wrong at outer step {found.step}, in {unlike} of {of} chunks, and are "
        "right again",
        "if that happens once more, test this machine's memory and processor",
    )
    parts.changes.ring()


def chunks_unlike(store: Store, found: Contradiction) -> tuple[int, int]:
    """How many chunks differ, of how many, as far as both lists are held still."""
    try:
        own, certified = store.manifest(found.own), store.manifest(found.certified)
    except (ChunkMissing, ChunkCorrupt):
        return 0, 0
    pairs = zip(own.chunks, certified.chunks, strict=False)
    return sum(ours != theirs for ours, theirs in pairs), len(certified.chunks)


def _unfit(found: Contradiction) -> MachineUnfit:
    return MachineUnfit(
        f"θ and m were wrong here {TIMES_MAX + 1} times since this node started",
        code="STATE-DIFFERS",
        evidence=[
            f"before outer step {found.step}",
            f"here      {found.own}",
            f"certified {found.certified}",
        ],
        likely="this machine's memory or processor is faulty; the other members agree",
        do="test the memory (memtest86+), undo overclocking, then start the node again",
    )
