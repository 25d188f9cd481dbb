"""Replace our ledger on disk with a chain that outranks it, before the node starts over.

This happens when a node on a branch finds another chain with a higher rank
(`ledger/chain/branch_rank`). θ and m contain updates that the other chain does not have, and these
updates cannot be subtracted exactly. So the node first closes its context. Then the entries of the
other chain replace ours after the last common one, and the node starts again from its disk, as
after any restart. Our votes are kept: each one names its chain or branch, and still binds us there.
"""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.archive.chain_log import chain_records, read_chain
from p2ptrain.archive.home import Home
from p2ptrain.ledger.messages.effects import Rejoin
from p2ptrain.store import Disk, RecordLog, Store


def write_adopted_chain(
    home: Home, rejoin: Rejoin, disk: Disk | None = None, *, frame_bytes: int | None = None
) -> None:
    """Write the chain of `rejoin` to `home`. The node's context must already be closed.
    `frame_bytes` is that of `RecordLog.rewrite`.

    The reference to our snapshot is removed first. After a crash between the two writes, our own
    chain is still there, and the node switches to the other chain later. In the reverse order, a
    crash could leave a snapshot of our branch that looks like one of the other chain.

    Raises StoreError: the disk cannot be written to."""
    _forget_snapshot(home, rejoin, disk)
    log = RecordLog(home.ledger, disk=disk)
    chain = read_chain(log)
    shared = [each for each in chain.entries if each.entry.height <= rejoin.height]
    log.rewrite(chain_records(chain.origin, [*shared, *rejoin.chain]), frame_bytes)


def _forget_snapshot(home: Home, rejoin: Rejoin, disk: Disk | None) -> None:
    """If our newest snapshot depends on entries that are about to be dropped, remove the reference
    to it from the store's head, so that no restart uses the snapshot."""
    first = rejoin.chain[0].entry
    with Store(home.store, disk=disk) as store:
        head = store.head()
        if head is None or head.height <= rejoin.height:
            return
        shared = replace(head, height=rejoin.height, head=first.parent, step=first.value.step)
        store.put_head(replace(shared, snapshot=None, snapshot_step=None))
