"""Take part in the open reduce: connect to neighbours, average, store the update, and report the
result.

A node makes one attempt at a time, and each attempt once; the members agree on the next one. During
an attempt the node holds the lock of the outer state, so θ does not change while it is averaged.
When an attempt has become useless, since the ledger has moved on or a participant is down, the node
abandons it immediately and does not wait for its deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import outcome
import trio

from p2ptrain.archive.kept_sums import SignedReduce
from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import ReduceAborted, StoreError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.ledger.messages.peer_reports import ReduceDone, ReduceFailed, UpdateHeld
from p2ptrain.ledger.policy.reduce_results import confessed
from p2ptrain.node.reduce.due_reduce import reduce_due, reduce_impossible, source_of
from p2ptrain.node.reduce.kept_links import KeptLinks, kept_links
from p2ptrain.node.reduce.overdue_commit import wait_for_commit
from p2ptrain.node.reduce.reduce_links import ReduceLinks, connect, without_relayed
from p2ptrain.node.reduce.reduce_request import refuse_liars, request_of, signer_of
from p2ptrain.node.reduce.sketch_exchange import book_of, exchange_sketches
from p2ptrain.node.reduce.sketch_judging import Attempt, judge_average
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread
from p2ptrain.observe.states import Exchanging, StandingBy
from p2ptrain.peers.heartbeat import ReduceReport
from p2ptrain.ring import (
    Difference,
    Reduce,
    ReduceRequest,
    ReduceStatistics,
    residual_max,
)
from p2ptrain.state import Residual
from p2ptrain.state.pseudo_gradient import compare

LINGER_S = 3.0
"""Seconds for which a failed attempt's connections stay open. The reason for the failure reaches
the other peers by gossip in this time, so they do not blame us for a lost connection."""

Result = TypeVar("Result")


async def run_reduces(context: Context) -> None:
    """Take part in every reduce whose roster includes us, or report that we cannot."""
    async with kept_links(context) as kept:
        await _run_reduces(context, kept)


async def _run_reduces(context: Context, kept: KeptLinks) -> None:
    tried: tuple[int, int] | None = None
    while True:
        settle(context)
        ledger, work, held = context.ledger.core, context.trainer.work, context.outer.step
        about = (ledger.state, held, context.me)
        claimed = context.trainer.claimed
        claim = None if claimed is None else claimed.made.claim.digest
        roster = reduce_due(*about, work, claim)
        said = ledger.reports.ready.get(context.me)
        wanted = roster or reduce_impossible(*about, said, work, claim)
        outer_step = None
        if wanted is not None and (wanted.step, wanted.attempt) != tried:
            outer_step = context.known_outer_step(wanted.step)
        if wanted is None or outer_step is None:
            await context.changes.wait()
            continue
        tried = (wanted.step, wanted.attempt)
        if roster is None:
            await _decline(context, wanted)
            continue
        began_s = context.now()
        with closing(ReduceLinks(kept)) as edges:
            is_done = await _attempt(context, outer_step, roster, edges)
            if is_done:
                edges.keep()
        if not is_done:
            kept.attempt_failed(roster)
        else:
            await _expect_commit(context, roster, context.now() - began_s)


async def _decline(context: Context, roster: Roster) -> None:
    """Report that this node lacks the work that the roster names. If it has different work for the
    first blocks of its lease, offer that for the next attempt: the trainer will not repeat it."""
    where, work = (roster.step, roster.attempt), context.trainer.work
    lease = context.ledger.snapshot.leases.get(context.me, ())
    if work is None or work.step != roster.step or lease[: len(work.blocks)] != work.blocks:
        context.trainer.discard_work()
    await give_up(
        context,
        ReduceAborted(*where, (context.me,), "this node has lost its work for this exchange"),
    )
    if (ready := context.trainer.report_of(context.me)) is not None:
        # By reporting its work as lost, this node has withdrawn its Ready. So it sends Ready again.
        await context.ledger.submit(ready)


async def _attempt(
    context: Context, outer_step: OuterStep, roster: Roster, edges: ReduceLinks
) -> bool:
    """Run one reduce, from its roster to our report. Return whether it has a result."""
    step, attempt = roster.step, roster.attempt
    where = {"step": step, "attempt": attempt, "schedule": roster.schedule}
    context.journal.write("exchange-started", **where, peers=roster.peers)
    context.state.set_state(Exchanging())
    try:
        refuse_liars(context, roster)
        update = await _judged(context, outer_step, roster, edges)
    except ReduceAborted as exc:
        if context.me in exc.suspects:
            context.trainer.discard_work()  # Our work is lost, or contains non-finite numbers.
        await give_up(context, exc)
        with trio.move_on_after(LINGER_S):
            while context.ledger.snapshot.roster == roster:
                await context.changes.wait()
        return False
    context.reduce.report = ReduceReport(step, attempt, update, ())
    context.state.set_state(StandingBy("for the members to commit the update"))
    await context.ledger.submit(UpdateHeld(update, (step, attempt)))
    await context.ledger.submit(ReduceDone(context.me, step, attempt, update))
    context.own_heartbeat.send_now()
    await _save_sums(context)
    return True


async def _save_sums(context: Context) -> None:
    """Write what was signed to disk. Nobody waits for it. Without it, a node that restarts cannot
    explain its sums any more, which proves nothing."""
    if context.reduce.sums is not None:
        try:
            await trio.to_thread.run_sync(context.reduce.sums.save)
        except StoreError as exc:
            context.journal.write("sums-unsaved", reason=exc.what)


async def _expect_commit(context: Context, roster: Roster, took_s: float) -> None:
    try:
        await wait_for_commit(context, roster, took_s)
    except ReduceAborted as exc:
        await give_up(context, exc)


async def give_up(context: Context, why: ReduceAborted) -> None:
    """Report that this attempt has failed here, and which peers this node itself found at fault.

    Do not repeat a neighbour's accusation: the neighbour reports it itself, and a liar's accusation
    would count once for each peer that heard it (SPEC.md S13). A roster may contain names that are
    not peer ids; other nodes would reject a report with such a name.
    """
    step, attempt = why.step, why.attempt
    suspects = tuple(filter(is_peer_id, why.suspects))
    context.journal.write(
        "exchange-failed",
        step=step,
        attempt=attempt,
        reason=why.reason,
        suspects=suspects,
        heard=why.heard,
    )
    if why.heard:
        suspects = ()
    context.reduce.report = ReduceReport(step, attempt, None, suspects)
    context.state.set_state(StandingBy("for the members to decide how to continue"))
    await context.ledger.submit(ReduceFailed(context.me, step, attempt, suspects))
    context.own_heartbeat.send_now()


@dataclass(frozen=True, slots=True)
class Average:
    """The result of a reduce: the digest of the update, and its bytes."""

    update: Digest
    payload: bytearray


async def _judged(
    context: Context, outer_step: OuterStep, roster: Roster, edges: ReduceLinks
) -> Digest:
    """Run the reduce, and judge the contributions to it, in a run with claims. Return the digest of
    the update. Raises ReduceAborted: the reduce failed, or a contribution breaks a rule."""
    about = (context, outer_step, roster)
    book = context.reduce.sketches = book_of(*about)
    if book is None:
        return (await _averaged(*about, edges)).update
    context.changes.notify_all()  # Other participants may have asked for our claim already.
    attempt = Attempt(outer_step, roster, book, request_of(*about).weights)

    async def work() -> Digest:
        average = await _averaged(*about, edges)
        judged = partial(judge_average, context, attempt, average.payload)
        try:
            await while_it_matters(context, roster, judged, awaited=book.incomplete)
        except ReduceAborted:
            if roster.step not in context.ledger.core.updates:
                raise  # Otherwise more than half of the participants found nothing wrong.
        return average.update

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange_sketches, *about)
        found = await outcome.acapture(work)
        nursery.cancel_scope.cancel()
    return found.unwrap()


async def _averaged(
    context: Context, outer_step: OuterStep, roster: Roster, edges: ReduceLinks
) -> Average:
    """Run `_reduce`. In the meantime `averaging` is set, which tells other tasks not to fetch the
    update that this reduce is about to make."""
    context.reduce.averaging = roster.step
    try:
        return await _reduce(context, outer_step, roster, edges)
    finally:
        context.reduce.averaging = None
        context.changes.notify_all()


async def _reduce(
    context: Context, outer_step: OuterStep, roster: Roster, edges: ReduceLinks
) -> Average:
    """Run the reduce, store the resulting update, and return its digest and its bytes.
    Raises ReduceAborted: the reduce failed."""
    assert context.trainer.arena is not None, "a seed is never a participant"
    request = request_of(context, outer_step, roster)
    payload = bytearray(outer_step.update.payload_bytes)
    async with context.outer.lock:
        # While we waited for the lock, its holder may have applied this step's update to θ.
        if reason := why_moot(context, roster):
            raise reason
        links = await while_it_matters(context, roster, partial(connect, context, request, edges))
        residuals = context.outer.residuals  # They are empty in a run without error feedback.
        residual = residuals[outer_step.fragment_index] if residuals else None
        if residual is not None:
            begun = partial(residual.begun, roster.step, roster.attempt, len(roster.peers))
            await trio.to_thread.run_sync(begun)
        fragment, claimed = outer_step.fragment, context.trainer.claimed
        gather = partial(context.trainer.arena.side_by_side, fragment)
        theta, local = await trio.to_thread.run_sync(gather)
        reduce = Reduce(
            request,
            links,
            source_of(context, roster, outer_step, Difference(theta, local)),
            payload,
            context.plane.uplink,
            residual=None if residual is None else residual.owed,
            residual_out=None if residual is None else residual.aside,
            signing=(signing := signer_of(context, roster)),
        )
        where = {"step": roster.step, "attempt": roster.attempt}
        context.journal.write("exchange-connected", **where, peers=roster.peers)
        report = await _run(context, roster, request, reduce, residual, edges)
        if signing is not None and context.reduce.sums is not None:
            made = SignedReduce(roster.step, signing.roster, reduce.signed())
            context.reduce.sums.note(made)
        for each in report.traffic:
            context.peers.relaying.note_success(each.peer)
        # Compare while the lock is held: once it is released, θ may change.
        compared = None
        if claimed is None or not claimed.is_restored:  # Otherwise the arena is empty.
            result = np.frombuffer(payload, np.uint8)
            compared = await trio.to_thread.run_sync(compare, theta, local, result, request.codec)
    for each in report.traffic:
        context.peers.paths.moved(each.peer, each.sent_bytes, each.sending_s)
    try:
        update = await trio.to_thread.run_sync(outer_step.update.write, context.store, payload)
    except StoreError as exc:
        raise ReduceAborted(roster.step, roster.attempt, (), f"not stored: {exc.what}") from exc
    facts = report.facts() | ({} if compared is None else asdict(compared))
    context.journal.write("exchange-done", **where, update=update, **facts)
    context.reduce.last_ring = report
    context.reduce.received_bytes += report.received_bytes
    context.reduce.comparison = compared
    return Average(update, payload)


async def _run(
    context: Context,
    roster: Roster,
    request: ReduceRequest,
    reduce: Reduce,
    residual: Residual | None,
    edges: ReduceLinks,
) -> ReduceStatistics:
    """Run `reduce` while the attempt is needed.
    Raises ReduceAborted: the reduce failed."""
    context.reduce.ring = reduce

    async def run() -> ReduceStatistics:
        try:
            return await in_thread(reduce.run, stop=partial(reduce.abort, "it was abandoned"))
        except ReduceAborted as exc:
            raise without_relayed(context, request, exc, edges) from exc

    try:
        return await while_it_matters(context, roster, run, context.timing.reduce.lag_s)
    except ReduceAborted:
        if residual is not None:
            lost_max = residual_max(request.codec, len(request.peers), request.influence_max)
            await trio.to_thread.run_sync(residual.cut_short, lost_max)
        raise
    finally:
        context.reduce.ring = None


def settle(context: Context) -> None:
    """Tell each residual (this node's rounding errors) which attempt was committed, if any. If that
    outer step has been pruned, clear the residual, since the outcome is unknown.
    The ledger says which attempts were committed, even if the attempt failed here. The updates that
    were applied here do not: a node that loads a snapshot instead of applying an update may have
    contributed to that update too.
    """
    ledger = context.ledger.core
    for residual in context.outer.residuals:
        step = residual.open_step
        if step is None or step >= ledger.state.step:
            continue
        if step < ledger.kept.start.step:
            residual.forget()
            continue
        value = context.ledger.history.closing(step).entry.value
        residual.ended(value.attempt if isinstance(value, Commit) else None)


async def while_it_matters(
    context: Context,
    roster: Roster,
    work: Callable[[], Awaitable[Result]],
    lag_s: float = 0.0,
    awaited: Callable[[], Sequence[PeerId]] | None = None,
) -> Result:
    """Return the result of `work`. Cancel `work` as soon as the attempt is no longer needed, or
    `lag_s` later if the other members have committed the update. `awaited` returns the participants
    that `work` still needs; by default, all of them.
    Raises ReduceAborted: `work` failed, or the attempt is no longer needed."""
    moot: list[ReduceAborted] = []
    results: list[Result] = []

    async def watch() -> None:
        while (reason := why_moot(context, roster, awaited and awaited())) is None:
            await context.changes.wait()
        if roster.step in context.ledger.core.updates:
            await trio.sleep(lag_s)
        moot.append(reason)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            results.append(await work())
        except ReduceAborted as exc:
            moot.append(exc)
        nursery.cancel_scope.cancel()
    if results:
        return results[0]
    raise moot[0]


def why_moot(
    context: Context, roster: Roster, awaited: Sequence[PeerId] | None = None
) -> ReduceAborted | None:
    """Return why this attempt is no longer needed; None while it is needed. `awaited` are the
    participants that it still needs; by default, all of them."""
    where = roster.step, roster.attempt
    if context.ledger.snapshot.roster != roster:
        return ReduceAborted(*where, (), "the members agreed to continue without it")
    lost = tuple(
        peer
        for peer in (roster.peers if awaited is None else awaited)
        if peer != context.me and context.peers.is_down(peer)
    )
    if lost:
        return ReduceAborted(*where, lost, "a participant is down")
    if without := confessed(context.ledger.snapshot, context.ledger.core.reports):
        return ReduceAborted(*where, without, "a participant lost its work", heard=True)
    return None
