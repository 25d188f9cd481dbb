"""Make this node's claims: quantise finished work once, store it, and sign a claim about it.

The order on disk is contribution, claim, report (the ledger's SPEC.md, C1). After a crash, a node
either finds its newest claim and the contribution's bytes again, and keeps its promise
(`take_up_again`), or it trains anew and makes another claim. Then it sits out the rest of the outer
step, if a roster has already named the earlier one (S15).
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.archive.contribution_format import ContributionFormat
from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.archive.own_claims import OwnClaim, OwnClaims
from p2ptrain.errors import RemoteProtocolError, StoreError, TrainerDiverged
from p2ptrain.ids import Digest
from p2ptrain.kernels import BadScale, NonFinite
from p2ptrain.ledger.chain.values import Commit
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import durably
from p2ptrain.node.state.trainer import ClaimedWork
from p2ptrain.ring import Contribution, quantised_once
from p2ptrain.state import Arena
from p2ptrain.sync.trainer_orders import LocalWork

SERIAL_SHIFT = 12
"""Bits that are removed from an incarnation. The rest, a count of starts and 20 random bits, is the
first serial number of a process: 52 bits at most. So a home that was restored from a backup does
not use a number again, and two copies of a home hardly ever use the same one."""


async def claim_work(
    context: Context, outer_step: OuterStep, work: LocalWork, *, is_exact: bool
) -> ClaimedWork:
    """Quantise the finished work in the arena, and claim it. `is_exact`: all of the work began at
    exactly the θ of this outer step. θ and the work must not change in the meantime.

    Raises:
        TrainerDiverged: once quantised, an element is larger than the run allows.
        StoreError: the contribution or the claim cannot be stored.
    """
    arena, claims = context.trainer.arena, context.trainer.claims
    assert arena is not None
    assert claims is not None
    begun_s = context.now()
    contribution = await trio.to_thread.run_sync(_quantised, arena, outer_step)
    quantised_s = context.now()
    format = format_of(context, outer_step)
    digest = await trio.to_thread.run_sync(format.write, context.store, contribution.payload)
    base = base_of(context, work.step) if is_exact and is_plain(context) else None
    made = await _made(context, claims, work, base, digest)
    context.journal.write(
        "claimed",
        step=work.step,
        serial=made.claim.serial,
        claim=made.claim.digest,
        contribution=digest,
        quantise_s=quantised_s - begun_s,
        store_s=context.now() - quantised_s,
    )
    return ClaimedWork(made, contribution)


async def follow_line(context: Context) -> None:
    """If the ledger is on another line than the claim about our work, claim the same contribution
    on the new line."""
    claimed, work, claims = context.trainer.claimed, context.trainer.work, context.trainer.claims
    if claimed is None or work is None or claims is None:
        return
    if (old := claimed.made.claim).line == context.ledger.snapshot.line:
        return
    made = await _made(context, claims, work, old.base, old.contribution)
    if context.trainer.claimed is claimed:
        context.trainer.claimed = ClaimedWork(made, claimed.contribution, claimed.is_restored)


async def _made(
    context: Context, claims: OwnClaims, work: LocalWork, base: Digest | None, contribution: Digest
) -> OwnClaim:
    make = partial(
        claims.make,
        context.ledger.snapshot.line,
        work.step,
        base,
        work.tokens,
        work.blocks,
        contribution,
        serial_min=context.identities.incarnation >> SERIAL_SHIFT,
    )
    return await durably(make)


def format_of(context: Context, outer_step: OuterStep) -> ContributionFormat:
    return ContributionFormat(outer_step.update, context.me, context.store.chunk_bytes)


def is_plain(context: Context) -> bool:
    """Return whether all of θ is averaged at once, and trainers wait for the average. In other
    runs, work never begins at a θ that the ledger certifies."""
    sync = context.manifest.sync
    return sync.fragments == 1 and sync.overlap_steps == 0


def base_of(context: Context, step: int) -> Digest | None:
    """Return the entry after which θ was the θ of outer step `step`: the last Commit, or the run if
    there was none; None if the entry has been pruned."""
    first = context.ledger.kept.start.step
    for each in range(step - 1, first - 1, -1):
        entry = context.ledger.history.closing(each).entry
        if isinstance(entry.value, Commit):
            return entry.digest
    return Digest(context.run) if first == 0 else None


def _quantised(arena: Arena, outer_step: OuterStep) -> Contribution:
    """Return the quantised work. Raises TrainerDiverged: it is out of bounds."""
    theta, local = arena.side_by_side(outer_step.fragment)
    try:
        contribution = quantised_once(theta, local, outer_step.codec)
    except NonFinite as exc:
        raise TrainerDiverged(f"the trained weights cannot be encoded: {exc}") from exc
    if contribution.peak > outer_step.influence_max:
        raise TrainerDiverged(
            f"once encoded, a trained weight differs from the shared one by {contribution.peak:.3g}"
            f"; this run allows at most {outer_step.influence_max:.3g}",
            code="DIVERGED",
        )
    return contribution


def take_up_again(context: Context) -> None:
    """After a restart, offer the newest claim's work again, if it is about the current outer step
    and its contribution is stored completely. This blocks, so call it before the tasks start."""
    claims, state = context.trainer.claims, context.ledger.snapshot
    made = None if claims is None else claims.newest
    if made is None or (made.claim.line, made.claim.step) != (state.line, state.step):
        return
    lease, outer_step = state.leases.get(context.me, ()), context.known_outer_step(state.step)
    if outer_step is None or lease[: len(made.trained)] != made.trained:
        return
    work = LocalWork(state.step, made.trained, made.claim.tokens)
    if not work.stands_for(state.step, lease, outer_step.pace):
        return
    digest, where = made.claim.contribution, {"step": state.step, "claim": made.claim.digest}
    try:
        format_of(context, outer_step).checked_manifest(context.store, digest)
        payload = context.store.read_blob(digest)
        contribution = Contribution(payload, outer_step.update.numel, outer_step.codec)
    except (StoreError, RemoteProtocolError, BadScale) as exc:
        context.journal.write("claim-lost", **where, reason=str(exc))
        return
    context.trainer.work = work
    context.trainer.claimed = ClaimedWork(made, contribution, is_restored=True)
    context.journal.write("claim-kept", **where)
