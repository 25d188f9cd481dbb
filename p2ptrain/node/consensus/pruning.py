"""Prune (delete) the ledger's oldest entries if configured. Warn the user if all peers with more
entries have pruned some that this node needs.

By default, a node keeps all entries, so that anybody can check the run from its manifest onwards. A
node that prunes keeps a base instead: the ledger's state at a checkpoint, from which it can
restart. `trusted_checkpoint` explains how a newcomer starts if no peer keeps all entries.
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
from p2ptrain.ledger.history.kept_chain import KeptChain
from p2ptrain.ledger.history.pruning import base_at, prunable_to
from p2ptrain.names import label
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import durably
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import Run
from p2ptrain.store import Disk, Head, RecordLog, Store
from p2ptrain.suggested_command import to_paste

NAMED_MAX = 8
"""Maximum number of peers named in the warning: the user needs to ask only one or two."""


async def prune(context: Context) -> None:
    """Prune entries as configured. Only the ledger's task calls this, between events."""
    keep, ledger = context.config.keep_entries, context.ledger.core
    if keep is None:
        return
    head = await durably(context.store.head)
    shorten = partial(_shortened, ledger.rules, ledger.kept, context.ledger.origin, head, keep)
    origin = await durably(shorten)
    if origin is None:
        return
    await durably(_write, context.ledger.chain_log, ledger.kept, origin)
    count = ledger.kept.prune(origin.base)
    context.ledger.origin = origin
    context.journal.write("pruned", entries=count, checkpoint=str(origin.base.checkpoint))


def prune_home(
    home: Home,
    run: Run,
    keep_entries: int,
    disk: Disk | None = None,
    *,
    frame_bytes: int | None = None,
) -> Origin | None:
    """Prune a stopped node's ledger. Return where it begins now; None if nothing was pruned.
    `frame_bytes` is that of `RecordLog.rewrite`.

    Raises StoreError: the ledger does not verify, or the disk cannot be written to."""
    rules, log = rules_of(run), RecordLog(home.ledger, disk=disk)
    chain = verified(home, rules, log)
    kept = KeptChain(rules, chain.base)
    for certified in chain.whole:
        kept.append(certified)
    with Store(home.store, disk=disk) as store:
        head = store.head()
    origin = _shortened(rules, kept, chain.origin, head, keep_entries)
    if origin is not None:
        _write(log, kept, origin, frame_bytes)
    return origin


def _shortened(
    rules: Rules, kept: KeptChain, origin: Origin | None, head: Head | None, keep_entries: int
) -> Origin | None:
    """Return where the chain may begin; None if no entry may be pruned. The entries after the
    snapshot from which this node would restart are needed, so they stay."""
    if head is None or head.run != rules.run or head.snapshot_step is None:
        return None
    height = prunable_to(kept.entries, keep_entries=keep_entries, step_max=head.snapshot_step)
    base = None if height is None else base_at(rules, kept, height)
    return None if base is None else Origin(base, origin.trusted if origin else None)


def _write(log: RecordLog, kept: KeptChain, origin: Origin, frame_bytes: int | None = None) -> None:
    after = origin.base.checkpoint.height - kept.start.height
    log.rewrite(chain_records(origin, kept.entries[after:]), frame_bytes)


def origin_in(log: RecordLog) -> Origin | None:
    """Return where the chain in a verified log begins; None if it begins at genesis."""
    first = next(iter(log), None)
    return None if first is None else origin_of(first)


async def notice_pruned(context: Context) -> None:
    """Warn the user if no peer keeps the entries that this node lacks.

    Peers that are ahead only claim that these entries exist, and may lie. So a claim alone leads
    only to a warning. The node stops only if the claims are credible (`_is_credible`), and no other
    peer has the same newest entry (head) as this node.

    Raises TryLater: both conditions have held for `pruned_s`."""
    told = 0
    while True:
        while not context.ledger.core.out_of_reach():
            await context.changes.wait_calmly()
        lacking = context.ledger.snapshot.height + 1
        kept = nobody_keeps(context).evidence[:NAMED_MAX]
        what = f"no connected peer keeps entry {lacking} of the ledger; " + "; ".join(kept)
        context.alerts.show("pruned", Caution("LEDGER-PRUNED", what))
        if told != lacking:  # Journal this once: a peer can withdraw and repeat its claim.
            context.journal.write("nobody-keeps", height=lacking, evidence=kept)
            told = lacking
        with trio.move_on_after(context.timing.pruned_s):
            while _is_left_behind(context):
                await context.changes.wait_calmly()
        if _is_left_behind(context):
            raise nobody_keeps(context)
        while context.ledger.core.out_of_reach():
            await context.changes.wait_calmly()
        context.alerts.clear("pruned")


def _is_left_behind(context: Context) -> bool:
    """Return whether the claims are credible, and no peer has the same head as this node."""
    head = context.ledger.snapshot.head
    in_company = any(record.heartbeat.head == head for record in context.peers.table)
    said = context.ledger.core.out_of_reach()
    return bool(said) and not in_company and _is_credible(context, said)


def _is_credible(context: Context, said: Collection[PeerId]) -> bool:
    """Return whether the claims of the peers in `said` are enough to stop this node.

    If this node is not a voter, they are: stopping it harms nobody but its user, even if the claims
    are lies. A voter stops only if a quorum of the voters that its own ledger names makes the
    claim, since only a quorum can have decided the next entry. Until then, the other voters may
    need this node's vote, and its user sees the claims."""
    voters = context.ledger.snapshot.voters
    is_voter = context.me in voters
    return not is_voter or quorum.reached(context.ledger.rules.quorum, voters, said)


def nobody_keeps(context: Context) -> TryLater:
    """Return the error that says who has pruned the entries that this node lacks."""
    said = [
        f"{label(peer)} keeps entries from {answer.up_to + 1}; "
        f"its checkpoint is {answer.up_to + 1}:{answer.checkpoint}"
        for peer, answer in sorted(context.ledger.core.out_of_reach().items())
    ]
    believe = to_paste(context.home.root, "node --trust-checkpoint HEIGHT:DIGEST")
    return TryLater(
        f"no reachable peer keeps entry {context.ledger.snapshot.height + 1} of the ledger",
        code="LEDGER-PRUNED",
        evidence=said,
        likely=(
            "these nodes keep only recent entries, and the nodes that keep all entries are "
            "offline; nobody is at fault"
        ),
        do=(
            "start the node later; or ask somebody you trust for a checkpoint (p2ptrain ledger "
            f"show prints it), and start the node with it: {believe}"
        ),
    )
