"""Forget the ledger's oldest entries where the user wants that, and say when others have.

By default a node keeps everything, so that anybody can check the run from its manifest on. Who
prunes keeps a base, from which its own restart goes on; see `checkpoints` for newcomers.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import trio

from p2ptrain.archive.chain_log import Origin, chain_records, origin_of
from p2ptrain.archive.home import Home
from p2ptrain.archive.ledger_on_disk import rules_of, verified
from p2ptrain.errors import TryLater
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import quorum
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.history.kept_chain import Kept
from p2ptrain.ledger.history.pruning import base_at, prunable_to
from p2ptrain.names import label
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.threads import durably
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import Run
from p2ptrain.store import Disk, Head, RecordLog, Store
from p2ptrain.suggested_command import to_paste

PATIENCE_S = 60.0
"""How long a node waits for somebody who keeps what it lacks, before it gives up."""

NAMED_MAX = 8
"""Of those who keep no more what this node lacks: a person asks about one or two of them."""


# ── forgetting ───────────────────────────────────────────────────────────────────────────────────


async def prune(parts: Parts) -> None:
    """Forget what may be forgotten. For the ledger's own task, between events."""
    keep, ledger = parts.config.keep_entries, parts.ledger
    if keep is None:
        return
    head = await trio.to_thread.run_sync(parts.store.head)
    shorten = partial(_shortened, ledger.rules, ledger.kept, parts.origin, head, keep)
    origin = await trio.to_thread.run_sync(shorten)
    if origin is None:
        return
    await durably(_write, parts.chain_log, ledger.kept, origin)
    count = ledger.kept.prune(origin.base)
    parts.origin = origin
    parts.journal.write("pruned", entries=count, checkpoint=str(origin.base.checkpoint))


def prune_home(home: Home, run: Run, keep_entries: int, disk: Disk | None = None) -> Origin | None:
    """The same for a home whose node is stopped. None if there was nothing to forget.

    Raises StoreError: the ledger does not verify, or the disk cannot be written to.
    """
    rules, log = rules_of(run), RecordLog(home.ledger, disk=disk)
    chain = verified(home, rules, log)
    kept = Kept(rules, chain.base)
    for certified in chain.whole:
        kept.append(certified)
    with Store(home.store, disk=disk) as store:
        head = store.head()
    origin = _shortened(rules, kept, chain.origin, head, keep_entries)
    if origin is not None:
        _write(log, kept, origin)
    return origin


def _shortened(
    rules: Rules, kept: Kept, origin: Origin | None, head: Head | None, keep_entries: int
) -> Origin | None:
    """Where the chain may begin: no later than the snapshot from which this home would restart."""
    if head is None or head.run != rules.run or head.snapshot_step is None:
        return None
    height = prunable_to(kept.entries, keep_entries=keep_entries, step_max=head.snapshot_step)
    base = None if height is None else base_at(rules, kept, height)
    return None if base is None else Origin(base, origin.trusted if origin else None)


def _write(log: RecordLog, kept: Kept, origin: Origin) -> None:
    after = origin.base.checkpoint.height - kept.start.height
    log.rewrite(chain_records(origin, kept.entries[after:]))


def origin_in(log: RecordLog) -> Origin | None:
    """Where the chain in a log that has been verified begins, if not at genesis."""
    first = next(iter(log), None)
    return None if first is None else origin_of(first)


# ── when nobody keeps enough ─────────────────────────────────────────────────────────────────────


async def notice_pruned(parts: Parts) -> None:
    """Say so if nobody keeps the entries that this node lacks.

    That they exist is the word of those who are ahead and show nothing of it. So it is told to
    people, and ends nothing, while others stand where this node stands, or while those who say it
    could not have gone on without the rest.

    Raises:
        TryLater: for some time now all who are further on have pruned them, and nobody was seen
            where this node is.
    """
    told = 0
    while True:
        while not parts.ledger.out_of_reach():
            await parts.changes.wait()
        lacking, kept = parts.ledger.state.height + 1, nobody_keeps(parts).evidence[:NAMED_MAX]
        parts.standing.warnings["pruned"] = Caution(
            "LEDGER-PRUNED",
            f"nobody here keeps entry {lacking} of the ledger; " + "; ".join(kept),
        )
        if told != lacking:  # Once: who says so can take it back, and say it again.
            parts.journal.write("nobody-keeps", height=lacking, evidence=kept)
            told = lacking
        with trio.move_on_after(PATIENCE_S):
            while _is_left_behind(parts):
                await parts.changes.wait()
        if _is_left_behind(parts):
            raise nobody_keeps(parts)
        while parts.ledger.out_of_reach():
            await parts.changes.wait()
        del parts.standing.warnings["pruned"]


def _is_left_behind(parts: Parts) -> bool:
    """Whether all who are heard are ahead, out of reach, or behind: nobody has our head."""
    head = parts.ledger.state.head
    in_company = any(view.heartbeat.head == head for view in parts.peers)
    said = parts.ledger.out_of_reach()
    return bool(said) and not in_company and _is_credible(parts, said)


def _is_credible(parts: Parts, said: Collection[PeerId]) -> bool:
    """Whether the word of these is enough to end this node. Only a quorum of the voters at our head
    can have decided what comes after it. Who is no voter there, new or not, loses nothing by a lie;
    a voter waits, since the others may need its vote, and its user is told what those say.
    """
    state = parts.ledger.state
    if parts.me not in state.voters:
        return True
    return quorum.reached(parts.ledger.rules.quorum, state.voters, said)


def nobody_keeps(parts: Parts) -> TryLater:
    """That all who seem to be ahead have pruned what is lacking here, and what to do."""
    said = [
        f"{label(peer)} keeps entries from {answer.up_to + 1} on; "
        f"its checkpoint is {answer.up_to + 1}:{answer.checkpoint}"
        for peer, answer in sorted(parts.ledger.out_of_reach().items())
    ]
    believe = to_paste(parts.home.root, "node --trust-checkpoint HEIGHT:DIGEST")
    return TryLater(
        f"nobody who can be reached keeps entry {parts.ledger.state.height + 1} of the ledger",
        code="LEDGER-PRUNED",
        evidence=said,
        likely="nobody's fault: these nodes keep only new entries, and who keeps all is away",
        do="start the node later; or ask a person whom you trust for a checkpoint (p2ptrain ledger "
        f"show prints it), and believe that: {believe}",
    )
