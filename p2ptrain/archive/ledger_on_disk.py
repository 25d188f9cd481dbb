"""The ledger on this disk: certified entries in one log, this node's promises and votes in another.

A restarted node loads its ledger only from these two logs. If the chain does not verify, the disk
is damaged or somebody changed the file; a node never continues a chain that it cannot verify.
"""

from __future__ import annotations

from p2ptrain.archive.chain_log import ChainFile, read_chain
from p2ptrain.archive.home import Home
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError, StoreError
from p2ptrain.identity import Identity, verify
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.verify import replay
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.policy.reduce_order import Arrange, in_given_order
from p2ptrain.ring.wait_for import reduce_deadline_s
from p2ptrain.run import Run, RunManifest
from p2ptrain.store import Disk, RecordLog
from p2ptrain.trainer.formats.shapes import layout_of


def rules_of(run: Run) -> Rules:
    """Return the ledger's rules, taken from the run's manifest."""
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
        quorum_loss=policy.quorum_loss,
        branch_after_s=policy.branch_after_s,
        founders_vote=manifest.founders_vote,
        reduce_s=reduce_s_max(manifest),
        claims=manifest.trust.claims,
        audits=manifest.trust.audits,
    )


REDUCES_S = 2.0
"""Voters consider a reduce failed if no participant reports for this many times its deadline."""


def reduce_s_max(manifest: RunManifest) -> float:
    """Return the seconds after which voters consider a reduce failed if no participant reports
    anything. Honest participants abort a reduce much earlier, so this time matters only if all
    participants are malicious and silent. An amendment may change the codec, so the time is that of
    the codec with the largest payload: 4 bytes per element.
    """
    return REDUCES_S * reduce_deadline_s(4 * layout_of(manifest.model).numel)


def open_ledger(
    home: Home,
    run: Run,
    identity: Identity,
    now: float,
    disk: Disk | None = None,
    arrange: Arrange = in_given_order,
) -> tuple[Ledger, RecordLog, RecordLog]:
    """Open the ledger as it was when this node stopped. Return the ledger, the log of its chain,
    and the log of its votes.

    Raises StoreError: a log is damaged, or the chain does not verify.
    """
    chain_log, votes = RecordLog(home.ledger, disk=disk), RecordLog(home.votes, disk=disk)
    for log in (chain_log, votes):
        log.keep_open()
    rules = rules_of(run)
    chain = verified(home, rules, chain_log)
    try:
        records = list(votes)
        sign, peer, base = identity.sign, identity.peer, chain.base
        kept = (chain.entries, records, now, base)
        ledger = Ledger(rules, peer, sign, verify, *kept, arrange)
    except LocalProtocolError as exc:
        raise StoreError(
            f"{home.votes} cannot be read: {exc.what}",
            code="LEDGER-BROKEN",
            likely="the file is damaged, or another program wrote into it",
            do=(
                f"move {home.root} away and join again as a new peer; without this file the node "
                "might break promises that it made before"
            ),
        ) from exc
    if len(records) > len(ledger.records()):
        _shorten(votes, ledger.records())
    return ledger, chain_log, votes


def _shorten(votes: RecordLog, binding: list[bytes]) -> None:
    """Keep only the votes that still bind this node. If the disk is too full to rewrite the log,
    continue with the long log, because a node needs its ledger before it can free disk space.
    """
    try:
        votes.rewrite(binding)
    except StoreError:
        if not votes.takes_more:
            raise


def verified(home: Home, rules: Rules, chain_log: RecordLog) -> ChainFile:
    """Return the chain in a home's log, after verifying every certificate. Raises StoreError."""
    try:
        chain = read_chain(chain_log)
        replay(rules, chain.whole, verify, None if chain.base is None else chain.base.state)
    except RemoteProtocolError as exc:
        raise StoreError(
            f"the ledger in {home.ledger} does not verify: {exc.what}",
            code="LEDGER-BROKEN",
            likely="the file is damaged, or belongs to a different run",
            do=f"move {home.ledger} away; the node then fetches the ledger from its peers",
        ) from exc
    return chain
