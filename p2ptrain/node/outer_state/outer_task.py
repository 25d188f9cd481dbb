"""Keep θ and m at the ledger's head: load a snapshot, then apply committed updates one by one.

A newcomer, a node that was away for an hour and a node that missed one ring all do the same. They
fetch the next update by its digest from any peer that has it, and apply its bytes. They do not have
to trust that peer: the ledger names the digest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import ManifestInvalid, RemoteProtocolError, StoreError
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.ledger.messages.peer_reports import SnapshotTaken
from p2ptrain.node.outer_state import fetch, snapshot_choice, state_mismatch, update_blobs
from p2ptrain.node.outer_state.start import Start, leap_pays
from p2ptrain.node.outer_state.state_mismatch import Contradiction
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.threads import durably, in_thread
from p2ptrain.observe.states import CatchingUp, StandingBy
from p2ptrain.state import Frozen, snapshot_meta, write_frozen
from p2ptrain.store import Head, Leisure, Store

HEAR_FIRST_S = 10.0
"""Five heartbeats: a node that has not heard a peer by then is alone, and starts from its disk."""

LOST_S = 10.0
"""Five heartbeats: by then, every peer that still has an update or snapshot has been heard and
asked."""


async def keep_outer_state(parts: Parts) -> None:
    """Load a snapshot, then follow the ledger until cancelled.

    Raises:
        StoreError: the store cannot take a needed blob.
        RemoteProtocolError: the members certified bytes that are not a valid update.
    """
    with trio.move_on_after(HEAR_FIRST_S):
        while not parts.ledger_is_current():
            await parts.changes.wait()
    if own := snapshot_choice.own_start(parts.store, parts.ledger, parts.origin):
        # Its certification may lack only our report (SPEC.md S8).
        await parts.tell(SnapshotTaken(parts.me, own.step, own.digest))
    await _load(parts)
    started_s, replayed = time.monotonic(), 0
    async with trio.open_nursery() as nursery:
        while not parts.at_head():
            replayed += await _go_on(parts, nursery)
        parts.journal.write(
            "caught-up",
            step=parts.outer.step,
            updates=replayed,
            seconds=time.monotonic() - started_s,
        )
        parts.speak_now()
        while True:
            if found := state_mismatch.contradiction(parts):
                await _put_right(parts, found, nursery)
            elif parts.at_head():
                await parts.changes.wait()
            else:
                await _go_on(parts, nursery)


async def _put_right(parts: Parts, found: Contradiction, nursery: trio.Nursery) -> None:
    """Continue from the certified snapshot. Chunks that it shares with ours are already here."""
    state_mismatch.begin(parts, found)
    while parts.outer.writing:
        await parts.changes.wait()
    await trio.to_thread.run_sync(state_mismatch.disown, parts.store)
    await _load(parts, first_step=found.step)
    while not parts.at_head():
        await _go_on(parts, nursery)
    state_mismatch.end(parts, found)


async def _load(parts: Parts, first_step: int = 0, *, or_log: bool = False) -> bool:
    """Load a snapshot of `first_step` or later into θ and m.

    If no peer has the best snapshot, or its certified digest does not name a snapshot, try the next
    best. Snapshots that could not be fetched are tried again after the others: a peer that has them
    may come back. With `or_log`, do not wait for that: return False if none can be loaded.
    """
    useless, passed = set[Digest](), set[Digest]()
    while True:
        here = await snapshot_choice.look(parts)
        pick = partial(snapshot_choice.best_start, parts, here, first_step=first_step)
        start = pick(useless | passed)
        if start is not None:
            others = bool(passed) or or_log or pick(useless | {start.digest}) is not None
            superseded = partial(_is_superseded, partial(pick, useless | passed), start)
            patience = _Patience(parts, superseded, bounded=others)
            fault = await _loaded_or_why_not(parts, start, patience.is_over)
            if fault is None:
                return True
            (useless if isinstance(fault, ManifestInvalid) else passed).add(start.digest)
        elif or_log:
            return False
        elif passed:
            passed.clear()
        else:
            why = "for a certified snapshot that is newer than the checkpoint"
            parts.enter(StandingBy(why))
            await parts.changes.wait()


def _is_superseded(pick: Callable[[], Start | None], start: Start) -> bool:
    return pick() != start


class _Patience:
    """The time limit for a snapshot that no peer sends. It applies only if there are other
    snapshots. It is over when there has been a peer to ask for LOST_S but no progress, since a
    transfer may pause for a while.
    """

    def __init__(self, parts: Parts, superseded: Callable[[], bool], *, bounded: bool) -> None:
        self._parts = parts
        self._superseded = superseded
        self._bounded = bounded
        self._since, self._had = parts.now(), parts.standing.fetching

    def is_over(self) -> bool:
        so_far = self._parts.standing.fetching
        if so_far != self._had or not fetch.sources(self._parts):
            self._since, self._had = self._parts.now(), so_far
        late = self._parts.now() > self._since + LOST_S
        return self._superseded() or (self._bounded and late)


async def _loaded_or_why_not(
    parts: Parts, start: Start, unwanted: Callable[[], bool]
) -> StoreError | None:
    """Load `start`. Return None, or the error if no peer has it or it is not a snapshot."""
    try:
        await _load_from(parts, start, unwanted)
    except StoreError as exc:
        lie = isinstance(exc, ManifestInvalid) and start.digest != parts.manifest.genesis
        if exc.code != "CKPT-NO-SOURCE" and not lie:
            raise
        parts.journal.write("snapshot-useless", digest=start.digest, reason=exc.what)
        return exc
    return None


async def _load_from(parts: Parts, start: Start, unwanted: Callable[[], bool]) -> None:
    await _fetch(parts, start, unwanted)
    load = partial(parts.outer.vectors.load_snapshot, parts.store, start.digest)
    while parts.standing.theta_in_use or parts.outer.writing:
        await parts.changes.wait()
    async with parts.outer.lock:
        parts.outer.moving = True
        try:
            # If there was no θ before, a half-loaded one does no harm.
            given_up = unwanted if parts.outer.step is None else fetch.never
            await fetch.use(parts, start.digest, load, given_up)
        except ManifestInvalid:
            parts.outer.moving = False  # Nothing was changed.
            raise
        parts.outer.step = start.step
        parts.outer.moving = False
    parts.changes.ring()


async def _fetch(parts: Parts, start: Start, unwanted: Callable[[], bool]) -> None:
    """Fetch the manifest first. Fetch the rest only if the manifest states the size of a snapshot.
    Otherwise liars that form a quorum could fill our disk; of two members, one can be a quorum.
    """
    begun = await fetch.fetch_loose(parts, [start.digest], unwanted=unwanted)
    check = partial(parts.outer.vectors.check_manifest, parts.store, start.digest)
    await trio.to_thread.run_sync(check)
    rest = await fetch.fetch(parts, start.digest, shown=True, unwanted=unwanted)
    if bytes_by_peer := Counter(begun.bytes_by_peer) + Counter(rest.bytes_by_peer):
        parts.journal.write(
            "snapshot-fetched",
            step=start.step,
            seconds=begun.seconds + rest.seconds,
            bytes_by_peer=bytes_by_peer,
            dropped=(*begun.dropped, *rest.dropped),
        )


async def _go_on(parts: Parts, nursery: trio.Nursery) -> int:
    """Advance by one outer step, or load a newer certified snapshot instead. Load the snapshot if
    the updates up to it have more bytes, or if no peer has them any more: peers keep a certified
    snapshot that is newer than the updates that they have dropped.
    """
    step = parts.outer.step
    assert step is not None
    nearer = await _nearer(parts, step)
    if nearer is not None and await _leapt(parts, nearer):
        return 0
    try:
        return await _advance(parts, nursery)
    except StoreError as exc:
        if exc.code != "CKPT-NO-SOURCE":
            raise
        parts.journal.write("update-lost", step=step, reason=exc.what)
    await _load(parts, first_step=step + 1, or_log=True)
    return 0


async def _nearer(parts: Parts, step: int) -> Start | None:
    """Return the newest certified snapshot if it has fewer bytes than the missing updates.

    A seed, or a node that keeps everything, fetches the updates anyway: replays need them.
    """
    certified = parts.ledger.state.snapshot
    if certified is None or certified.digest == parts.outer.passed_over:
        return None
    pays = partial(
        leap_pays,
        snapshot_bytes=8 * parts.layout.numel,
        update_bytes=update_blobs.payload_bytes_about(parts),
    )
    wants_updates = parts.config.seed or parts.config.keep_snapshots is None
    if wants_updates or not pays(updates=certified.step - step):
        return None
    values = [parts.history.closing(each).entry.value for each in range(step, certified.step)]
    missed = [value.update for value in values if isinstance(value, Commit)]
    lacking = await trio.to_thread.run_sync(_lacking, parts.store, missed)
    return Start(certified.step, certified.digest) if pays(updates=lacking) else None


def _lacking(store: Store, blobs: Sequence[Digest]) -> int:
    """Return how many of these blobs must be fetched, at least partly."""
    return sum(not store.has_chunk(digest) for digest in blobs)


async def _leapt(parts: Parts, to: Start) -> bool:
    """Load this snapshot. Return False if no peer has it; the updates are then applied instead."""
    step, since = parts.outer.step, parts.now()
    if await _loaded_or_why_not(parts, to, lambda: parts.now() > since + LOST_S) is not None:
        parts.outer.passed_over = to.digest
        return False
    parts.journal.write("leapt", step=step, to=to.step)
    return True


async def _advance(parts: Parts, nursery: trio.Nursery) -> int:
    """Advance by one outer step. Return the number of updates applied: 1, or 0 for a Skip."""
    step = parts.outer.step
    assert step is not None
    closing = parts.history.closing(step)
    behind = parts.ledger.state.step - step
    if behind > 1:
        parts.enter_unless_training(CatchingUp(behind))
    commit = closing.entry.value
    if isinstance(commit, Commit):
        await _apply(parts, commit)
    else:
        parts.outer.step = step + 1
    _note_utilisation(parts)
    parts.journal.write("committed", **_account(parts, step, closing))
    parts.changes.ring()
    parts.speak_now()
    every = parts.manifest.policy.snapshot_every
    # After a long absence, the next snapshot would soon be outdated.
    if isinstance(commit, Commit) and (step + 1) % every == 0 and behind <= every:
        await _snapshot(parts, closing, nursery)
    return int(isinstance(commit, Commit))


async def _apply(parts: Parts, commit: Commit) -> None:
    """Apply the update once neither a ring nor a trainer reads θ."""
    since = parts.now()

    def lost() -> bool:
        snapshot = parts.ledger.state.snapshot
        newer = snapshot is not None and snapshot.step > commit.step
        return newer and parts.now() > since + LOST_S

    await parts.until_known(commit.step)
    outer_step = parts.outer_step(commit.step)
    await update_blobs.own_result(parts, commit.step)
    payload = await update_blobs.obtain(parts, commit.update, outer_step, lost)
    await _hold_to_the_bound(parts, commit, outer_step, payload)
    while parts.standing.theta_in_use:
        await parts.changes.wait()
    rates, codec, fragment = outer_step.rates, outer_step.codec, outer_step.fragment
    apply = partial(parts.outer.vectors.apply, payload, rates.lr, rates.momentum, codec, fragment)
    async with parts.outer.lock:
        parts.outer.moving = True
        await trio.to_thread.run_sync(apply)
        parts.outer.step = commit.step + 1
        parts.outer.moving = False


async def _hold_to_the_bound(
    parts: Parts, commit: Commit, outer_step: OuterStep, payload: memoryview
) -> None:
    """Check the bound on influence.

    Raises RemoteProtocolError: the update breaks the bound, so most voters lie. Continuing without
    the update would silently fork θ.
    """
    try:
        await update_blobs.hold(payload, outer_step, parts.history.reduce_of(commit.step))
    except RemoteProtocolError as exc:
        height = parts.history.closing(commit.step).entry.height
        raise RemoteProtocolError(
            f"entry {height} commits update {commit.update[:12]}, which nodes must not apply: "
            f"{exc.what}",
            code=exc.code,
        ) from exc


async def _snapshot(parts: Parts, closing: Certified, nursery: trio.Nursery) -> None:
    """Write θ and m as they are after `closing`, and tell the ledger the digest to certify.

    Return once they are frozen; they may then change while they are written. A snapshot that is due
    before the previous one has been written is left out: both would only compete for the disk.
    """
    if parts.outer.writing:
        parts.journal.write("snapshot-left-out", step=closing.entry.value.step + 1)
        return
    held = ExitStack()
    freeze = parts.outer.vectors.freeze(parts.store.chunk_bytes)
    frozen = await trio.to_thread.run_sync(held.enter_context, freeze)
    parts.outer.writing = True
    nursery.start_soon(_write, parts, closing, frozen, held)


async def _write(parts: Parts, closing: Certified, frozen: Frozen, held: ExitStack) -> None:
    step = closing.entry.value.step + 1
    meta = snapshot_meta(parts.run, step, parts.layout.digest)
    numel, leisure = parts.layout.numel, Leisure()
    write = partial(write_frozen, parts.store, frozen, numel, meta, leisure=leisure)
    try:
        with held:
            digest = await in_thread(write, stop=leisure.end)
    finally:
        parts.outer.writing = False
    head = Head(
        run=parts.run,
        height=closing.entry.height,
        head=closing.entry.digest,
        step=step,
        snapshot=digest,
        snapshot_step=step,
    )
    await durably(parts.store.put_head, head)
    parts.journal.write("snapshot", step=step, digest=digest)
    await parts.tell(SnapshotTaken(parts.me, step, digest))


def _note_utilisation(parts: Parts) -> None:
    """Record the fraction of the time since the last outer step spent in inner steps."""
    standing, now_s = parts.standing, time.monotonic()
    if standing.advanced_s is not None:
        wall_s = max(1e-9, now_s - standing.advanced_s)
        standing.utilisation = min(1.0, standing.inner_s / wall_s)
    standing.advanced_s, standing.inner_s = now_s, 0.0


def _account(parts: Parts, step: int, closing: Certified) -> dict[str, object]:
    """Return the journal's fields for a finished outer step."""
    participants = parts.history.participants(step)
    return {
        "step": step,
        "height": closing.entry.height,
        "head": closing.entry.digest,
        "skipped": not isinstance(closing.entry.value, Commit),
        "tokens": sum(each.tokens for each in participants),
        "peers": len(participants),
        "took_part": any(each.peer == parts.me for each in participants),
        "compute_utilisation": parts.standing.utilisation,
    }
