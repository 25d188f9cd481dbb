"""Keep θ and m at the ledger's newest outer step: load a snapshot, then apply committed updates.

A newcomer, a node that was away for an hour and a node that missed one reduce all do the same. They
fetch the next update from any peer that has it, and apply its bytes. They do not have to trust that
peer: the ledger names the update's digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import ManifestInvalid, RemoteProtocolError, StoreError
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Certified, Commit, SnapshotRef
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.node.outer_state import fetch, snapshot_choice, state_mismatch, update_blobs
from p2ptrain.node.outer_state.state_mismatch import StateMismatch
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.outer import Advance
from p2ptrain.node.state.threads import durably, in_thread
from p2ptrain.observe.states import CatchingUp, StandingBy
from p2ptrain.state import Frozen, snapshot_meta, write_frozen
from p2ptrain.store import Head, IdleThrottle


async def keep_outer_state(context: Context) -> None:
    """Load a snapshot, then follow the ledger until cancelled.

    Raises:
        StoreError: the store cannot take a needed blob.
        RemoteProtocolError: the members certified bytes that are not a valid update."""
    with trio.move_on_after(context.timing.hear_first_s):
        while not context.peers.ledger_is_current():
            await context.changes.wait()
    if own := snapshot_choice.own_start(context.store, context.ledger.core, context.ledger.origin):
        # Report our own snapshot: its certification may need only this report (SPEC.md S8).
        await context.ledger.submit(SnapshotTaken(context.me, own.step, own.digest))
    await _load(context)
    started_s, replayed = context.now(), 0
    async with trio.open_nursery() as nursery:
        while not context.at_head():
            replayed += await _advance_or_leap(context, nursery)
        took_s = context.now() - started_s
        context.journal.write(
            "caught-up", step=context.outer.step, updates=replayed, seconds=took_s
        )
        context.own_heartbeat.send_now()
        while True:
            if found := state_mismatch.contradiction(context):
                await _restore_certified_state(context, found, nursery)
            elif context.at_head():
                await context.changes.wait()
            else:
                await _advance_or_leap(context, nursery)


async def _restore_certified_state(
    context: Context, found: StateMismatch, nursery: trio.Nursery
) -> None:
    """Stop using a wrong state, load the certified snapshot, and apply the updates after it. Chunks
    that it shares with our own snapshot need not be fetched."""
    state_mismatch.quarantine_state(context, found)
    while context.outer.writing:
        await context.changes.wait()
    await trio.to_thread.run_sync(state_mismatch.disown_snapshot, context.store)
    await _load(context, first_step=found.step)
    while not context.at_head():
        await _advance_or_leap(context, nursery)
    state_mismatch.release_state(context, found)


async def _load(context: Context, first_step: int = 0, *, or_log: bool = False) -> bool:
    """Load a snapshot of `first_step` or later into θ and m. Return whether one was loaded.

    Try the best snapshot first (`snapshot_choice`). If no peer has it, or its certified digest does
    not name a snapshot, try the next best. After all have failed, start again with those that no
    peer had, since a peer may have come back. With `or_log`, return False instead of starting again
    (the caller then continues with the ledger's updates)."""
    # Digests of blobs that are not snapshots, and of snapshots that could not be fetched.
    useless, passed = set[Digest](), set[Digest]()
    while True:
        seen = context.changes.count
        here = await snapshot_choice.find_held_states(context)
        pick = partial(snapshot_choice.best_start, context, here, first_step=first_step)
        start = pick(useless | passed)
        if start is not None:
            others = bool(passed) or or_log or pick(useless | {start.digest}) is not None
            superseded = partial(_is_superseded, partial(pick, useless | passed), start)
            patience = Patience(context, superseded, bounded=others)
            fault = await _loaded_or_why_not(context, start, patience.is_over)
            if fault is None:
                return True
            (useless if isinstance(fault, ManifestInvalid) else passed).add(start.digest)
        elif or_log:
            return False
        elif passed:
            passed.clear()
        else:
            why = "for a certified snapshot that is newer than the checkpoint"
            context.state.set_state(StandingBy(why))
            await context.changes.wait(since=seen)


def _is_superseded(pick: Callable[[], SnapshotRef | None], start: SnapshotRef) -> bool:
    return pick() != start


class Patience:
    """Decides when to give up fetching a snapshot: when `superseded` returns True, because another
    snapshot is better now. If `bounded` (there are other snapshots to try), it is also given up if
    no bytes have arrived for `lost_s` although there were peers to ask. With a shorter limit,
    transfers that only pause for a while would be given up."""

    def __init__(self, context: Context, superseded: Callable[[], bool], *, bounded: bool) -> None:
        self._context = context
        self._superseded = superseded
        self._bounded = bounded
        self._since, self._had = context.now(), context.outer.fetching

    def is_over(self) -> bool:
        so_far = self._context.outer.fetching
        if so_far != self._had or not fetch.sources(self._context):
            self._since, self._had = self._context.now(), so_far
        late = self._context.now() > self._since + self._context.timing.lost_s
        return self._superseded() or (self._bounded and late)


async def _loaded_or_why_not(
    context: Context, start: SnapshotRef, unwanted: Callable[[], bool]
) -> StoreError | None:
    """Load `start` and return None; return the error if no peer has it, or it is not a snapshot."""
    try:
        await _load_from(context, start, unwanted)
    except StoreError as exc:
        lie = isinstance(exc, ManifestInvalid) and start.digest != context.manifest.genesis
        if exc.code != "CKPT-NO-SOURCE" and not lie:
            raise
        context.journal.write("snapshot-useless", digest=start.digest, reason=exc.what)
        return exc
    return None


async def _load_from(context: Context, start: SnapshotRef, unwanted: Callable[[], bool]) -> None:
    await _fetch(context, start, unwanted)
    load = partial(context.outer.vectors.load_snapshot, context.store, start.digest)
    while context.trainer.theta_in_use or context.outer.writing:
        await context.changes.wait()
    async with context.outer.lock:
        context.outer.moving = True
        try:
            # A half-loaded θ does no harm if there was no θ before. Otherwise the load must not be
            # given up.
            given_up = unwanted if context.outer.step is None else fetch.never
            await fetch.use(context, start.digest, load, given_up)
        except ManifestInvalid:
            context.outer.moving = False  # The load failed before it changed θ or m.
            raise
        context.outer.step = start.step
        context.outer.moving = False
    context.changes.notify_all()


async def _fetch(context: Context, start: SnapshotRef, unwanted: Callable[[], bool]) -> None:
    """Fetch the snapshot `start`: first its manifest, and the rest only if the manifest states the
    right size. Otherwise a quorum of liars (of two members, one can suffice) could fill our
    disk."""
    begun = await fetch.fetch_loose(context, [start.digest], unwanted=unwanted)
    check = partial(context.outer.vectors.check_manifest, context.store, start.digest)
    await trio.to_thread.run_sync(check)
    rest = await fetch.fetch(context, start.digest, shown=True, unwanted=unwanted)
    if bytes_by_peer := Counter(begun.bytes_by_peer) + Counter(rest.bytes_by_peer):
        context.journal.write(
            "snapshot-fetched",
            step=start.step,
            seconds=begun.seconds + rest.seconds,
            bytes_by_peer=bytes_by_peer,
            dropped=(*begun.dropped, *rest.dropped),
        )


async def _advance_or_leap(context: Context, nursery: trio.Nursery) -> int:
    """Advance by one outer step, or load a newer certified snapshot instead. Return the number of
    updates applied. The snapshot is loaded if it has fewer bytes than the updates up to it. It is
    also loaded if no peer has the next update any more: peers keep a certified snapshot that is
    newer than the updates that they have dropped."""
    step = context.outer.step
    assert step is not None
    nearer = await _snapshot_that_saves_bytes(context, step)
    if nearer is not None and await _leapt(context, nearer):
        return 0
    try:
        return await _advance(context, nursery)
    except StoreError as exc:
        if exc.code != "CKPT-NO-SOURCE":
            raise
        context.journal.write("update-lost", step=step, reason=exc.what)
    await _load(context, first_step=step + 1, or_log=True)
    return 0


async def _snapshot_that_saves_bytes(context: Context, step: int) -> SnapshotRef | None:
    """Return the newest certified snapshot if it has fewer bytes than the missing updates.

    Return None for a seed, or a node that keeps everything: it needs the updates anyway, so that
    the run can be replayed from it."""
    certified = context.ledger.snapshot.snapshot
    if certified is None or certified.digest == context.outer.passed_over:
        return None
    updates_max = 8 * context.layout.numel // update_blobs.payload_bytes_about(context)
    wants_updates = context.config.seed or context.config.keep_snapshots is None
    if wants_updates or certified.step - step <= updates_max:
        return None
    history, has_chunk = context.ledger.history, context.store.has_chunk
    values = [history.closing(each).entry.value for each in range(step, certified.step)]
    updates = [value.update for value in values if isinstance(value, Commit)]
    missing = await trio.to_thread.run_sync(lambda: sum(not has_chunk(each) for each in updates))
    return certified if missing > updates_max else None


async def _leapt(context: Context, to: SnapshotRef) -> bool:
    """Load the snapshot `to` in place of the updates up to it. Return False if no peer has it."""
    step, late = context.outer.step, fetch.after(context, context.timing.lost_s)
    if await _loaded_or_why_not(context, to, late) is not None:
        context.outer.passed_over = to.digest
        return False
    context.journal.write("leapt", step=step, to=to.step)
    return True


async def _advance(context: Context, nursery: trio.Nursery) -> int:
    """Advance by one outer step. Return the number of updates applied: 1, or 0 for a Skip."""
    step = context.outer.step
    assert step is not None
    closing = context.ledger.history.closing(step)
    behind = context.ledger.snapshot.step - step
    if behind > 1:
        context.state.set_state_unless_training(CatchingUp(behind))
    commit = closing.entry.value
    took_s: dict[str, float] = {}
    if isinstance(commit, Commit):
        took_s = await _apply(context, commit)
    else:
        context.outer.step = step + 1
    _note_utilisation(context)
    context.journal.write("committed", **_journal_fields(context, step, closing), **took_s)
    context.changes.notify_all()
    context.own_heartbeat.send_now()
    every = context.manifest.policy.snapshot_every
    # A node that is far behind does not write snapshots, since they would soon be outdated.
    if isinstance(commit, Commit) and (step + 1) % every == 0 and behind <= every:
        await _snapshot(context, closing, nursery)
    return int(isinstance(commit, Commit))


async def _apply(context: Context, commit: Commit) -> dict[str, float]:
    """Fetch and apply the update of `commit`, once neither a reduce nor the trainer uses θ. Return
    the seconds that fetching and applying took, for the journal."""
    since = context.now()

    def lost() -> bool:
        snapshot = context.ledger.snapshot.snapshot
        newer = snapshot is not None and snapshot.step > commit.step
        return newer and context.now() > since + context.timing.lost_s

    await context.until_known(commit.step)
    outer_step = context.outer_step(commit.step)
    await update_blobs.own_result(context, commit.step)
    begun_s = context.now()
    payload = await update_blobs.fetch_update(context, commit.update, outer_step, lost)
    fetch_s = context.now() - begun_s
    await _hold_to_the_bound(context, commit, outer_step, payload)
    while context.trainer.theta_in_use:
        await context.changes.wait()
    rates, codec, fragment = outer_step.rates, outer_step.codec, outer_step.fragment
    apply = partial(context.outer.vectors.apply, payload, rates.lr, rates.momentum, codec, fragment)
    async with context.outer.lock:
        context.outer.moving, begun_s = True, context.now()
        await trio.to_thread.run_sync(apply)
        context.outer.step = commit.step + 1
        context.outer.moving = False
    return {"fetch_s": fetch_s, "apply_s": context.now() - begun_s}


async def _hold_to_the_bound(
    context: Context, commit: Commit, outer_step: OuterStep, payload: memoryview
) -> None:
    """Check that the update moves no weight farther than the run's bound on influence allows.

    Raises RemoteProtocolError: the update breaks the bound, so most voters lie. Continuing without
    the update would silently fork θ."""
    try:
        reduce = context.ledger.history.reduce_of(commit.step)
        await trio.to_thread.run_sync(outer_step.update.check_bound, payload, reduce)
    except RemoteProtocolError as exc:
        height = context.ledger.history.closing(commit.step).entry.height
        raise RemoteProtocolError(
            f"entry {height} commits update {commit.update[:12]}, which nodes must not apply: "
            f"{exc.what}",
            code=exc.code,
        ) from exc


async def _snapshot(context: Context, closing: Certified, nursery: trio.Nursery) -> None:
    """Start to write a snapshot: θ and m as they are after the entry `closing`. `_write` reports
    its digest to the ledger for certification.

    Return once θ and m are frozen; after that, they may change while the frozen copy is written. If
    the previous snapshot is still being written, do not write one now: both would compete for the
    disk."""
    if context.outer.writing:
        context.journal.write("snapshot-left-out", step=closing.entry.value.step + 1)
        return
    held = ExitStack()
    freeze = context.outer.vectors.freeze(context.store.chunk_bytes)
    frozen = await trio.to_thread.run_sync(held.enter_context, freeze)
    context.outer.writing = True
    nursery.start_soon(_write, context, closing, frozen, held)


async def _write(context: Context, closing: Certified, frozen: Frozen, held: ExitStack) -> None:
    step = closing.entry.value.step + 1
    meta = snapshot_meta(context.run, step, context.layout.digest)
    numel, throttle = context.layout.numel, IdleThrottle()
    write = partial(write_frozen, context.store, frozen, numel, meta, throttle=throttle)
    try:
        with held:
            digest = await in_thread(write, stop=throttle.end)
    finally:
        context.outer.writing = False
    head = Head(
        run=context.run,
        height=closing.entry.height,
        head=closing.entry.digest,
        step=step,
        snapshot=digest,
        snapshot_step=step,
    )
    await durably(context.store.put_head, head)
    context.journal.write("snapshot", step=step, digest=digest)
    await context.ledger.submit(SnapshotTaken(context.me, step, digest))


def _note_utilisation(context: Context) -> None:
    """Record which fraction of the time since the last outer step was spent in inner steps."""
    last, now = context.outer.advanced, Advance(context.now(), context.trainer.inner_s)
    if last is not None:
        wall_s = max(1e-9, now.at_s - last.at_s)
        context.outer.utilisation = min(1.0, (now.inner_s - last.inner_s) / wall_s)
    context.outer.advanced = now


def _journal_fields(context: Context, step: int, closing: Certified) -> dict[str, object]:
    """Return the journal's fields for a finished outer step."""
    participants = context.ledger.history.participants(step)
    return {
        "step": step,
        "height": closing.entry.height,
        "head": closing.entry.digest,
        "skipped": not isinstance(closing.entry.value, Commit),
        "tokens": sum(each.tokens for each in participants),
        "peers": len(participants),
        "took_part": any(each.peer == context.me for each in participants),
        "compute_utilisation": context.outer.utilisation,
    }
