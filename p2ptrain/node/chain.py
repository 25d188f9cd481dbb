"""The ledger on this disk: certified entries in one log, what we promised in another.

A restarted node is exactly what these two logs say. A chain that does not verify is a fault of this
disk, and is told as one; the node never goes on from a chain that it cannot check.
"""

from __future__ import annotations

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError, StoreError
from p2ptrain.identity import Identity, verify
from p2ptrain.ledger.canonical import canonical, parse
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages import MESSAGE_BYTES_MAX
from p2ptrain.ledger.reading import certified_from_plain
from p2ptrain.ledger.rules import Rules
from p2ptrain.ledger.values import Certified
from p2ptrain.ledger.verify import replay
from p2ptrain.node.home import Home
from p2ptrain.run import Run
from p2ptrain.store import Disk, RecordLog


def rules_of(run: Run) -> Rules:
    """What the manifest says about agreeing, as the ledger wants it."""
    manifest = run.manifest
    policy = manifest.policy
    return Rules(
        run=run.id,
        founders=manifest.founders,
        outer_steps=manifest.outer.steps,
        blocks=manifest.data.train_blocks,
        blocks_per_lease=manifest.blocks_per_lease,
        tokens_per_block=manifest.data.block_tokens,
        participants_min=policy.participants_min,
        attempts_max=policy.attempts_max,
        grace_s=policy.grace_s,
        round_timeout_s=policy.round_timeout_s,
        patience_s=policy.patience_s,
        quorum=policy.quorum,
    )


def entry_bytes(certified: Certified) -> bytes:
    """A certified entry as the log keeps it."""
    return canonical(certified.plain())


def open_ledger(
    home: Home, run: Run, identity: Identity, now: float, disk: Disk | None = None
) -> tuple[Ledger, RecordLog, RecordLog]:
    """The ledger as it was when this node stopped, and its two logs: chain and votes.

    Raises:
        StoreError: a log is damaged, or the chain in it does not verify.
    """
    chain_log, votes = RecordLog(home.ledger, disk=disk), RecordLog(home.votes, disk=disk)
    rules = rules_of(run)
    try:
        chain = [
            certified_from_plain(parse(record, bytes_max=MESSAGE_BYTES_MAX)) for record in chain_log
        ]
        replay(rules, chain, verify)
    except RemoteProtocolError as exc:
        raise StoreError(
            f"the ledger in {home.ledger} does not verify: {exc.what}",
            code="LEDGER-BROKEN",
            likely="the file is damaged, or belongs to another run",
            do=f"move {home.ledger} away: the node fetches the ledger again from its peers",
        ) from exc
    try:
        records = list(votes)
        ledger = Ledger(rules, identity.peer, identity.sign, verify, chain, records, now)
    except LocalProtocolError as exc:
        raise StoreError(
            f"{home.votes} cannot be read: {exc.what}",
            code="LEDGER-BROKEN",
            likely="the file is damaged, or something else wrote into it",
            do=f"move {home.root} away and join again as a new peer: without this file, this one "
            "might break promises that it has given",
        ) from exc
    if len(records) > len(ledger.records()):
        votes.rewrite(ledger.records())
    return ledger, chain_log, votes
